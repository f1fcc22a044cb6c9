"""What is rolled out: the steps of a model, or the versions of a variant."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Protocol

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.promotion import Alias, Change, Promotion
from modelyard.errors import Forbidden, NotFound
from modelyard.parts.rollouts.records import RolledOut, RunningRollout, StagedRollout
from modelyard.parts.variants import aliases as variant_aliases
from modelyard.parts.variants.keeping import called, keep, refuse_gone
from modelyard.parts.variants.naming import VariantName, found_variant, named
from modelyard.parts.variants.records import Variant, VariantAlias, VariantMove, VariantVersion
from modelyard.platform.checkpoints.aliases import found_alias, promote, roll_back
from modelyard.platform.checkpoints.lookup import found_checkpoint, named_model
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.protocols import Snapshot, Tx

VARIANTS = "variants/"


@attrs.frozen
class Move:
    """A move of an alias that a rollout makes, with what it was decided by."""

    id: str
    change: Change
    at: datetime
    verdict: Mapping[str, Any]


class Subject(Protocol):
    """How the steps of one kind are found, and how its aliases move."""

    def pointed(self, snapshot: Snapshot, of: Any, alias: str) -> int:
        """Return the step that an alias of a model or variant points to. Raises `NotFound`."""
        ...

    def exists(self, snapshot: Snapshot, id: str, step: int) -> bool:
        """Return whether the model or variant of an id has a step."""
        ...

    def move(self, tx: Tx, rollout: StagedRollout, made: Move) -> Any:
        """Point the alias of a rollout to its candidate. Returns the change, None where nothing has changed."""
        ...

    def move_back(self, tx: Tx, rollout: StagedRollout, made: Move) -> Any:
        """Point the alias back if it points to the candidate. Returns the change, None where nothing has changed."""
        ...


class Steps:
    """The checkpoints of a model, by their steps."""

    def pointed(self, snapshot: Snapshot, of: Model, alias: str) -> int:
        return found_alias(snapshot, of, alias).step

    def exists(self, snapshot: Snapshot, id: str, step: int) -> bool:
        return snapshot.find(Checkpoint, "step", id, step) is not None

    def move(self, tx: Tx, rollout: StagedRollout, made: Move) -> Promotion | None:
        asked = attrs.evolve(self._asked(rollout, made), step=rollout.step, from_step=rollout.baseline)
        found = promote(tx, asked)
        return found if found.id == made.id else None

    def move_back(self, tx: Tx, rollout: StagedRollout, made: Move) -> Promotion | None:
        alias = get_or_none(tx, Alias, rollout.model_id, rollout.alias)
        if alias is None or alias.step != rollout.step:
            return None
        return roll_back(tx, self._asked(rollout, made), tx.get(Model, rollout.model_id))

    def _asked(self, rollout: StagedRollout, made: Move) -> Promotion:
        place = made.id, rollout.model_id, rollout.entity, rollout.project, rollout.alias
        return Promotion(*place, 0, made.change, None, None, rollout.by, made.at, verdict=made.verdict)


class Versions:
    """The versions of a variant, by their numbers."""

    def pointed(self, snapshot: Snapshot, of: Variant, alias: str) -> int:
        found = get_or_none(snapshot, VariantAlias, of.id, alias)
        if found is None:
            raise NotFound("Alias", f"{VARIANTS}{of.project}/{of.name}@{alias}")
        return found.number

    def exists(self, snapshot: Snapshot, id: str, step: int) -> bool:
        return snapshot.find(VariantVersion, "number", id, step) is not None

    def move(self, tx: Tx, rollout: StagedRollout, made: Move) -> VariantMove | None:
        asked = attrs.evolve(self._asked(rollout, made), number=rollout.step, before=rollout.baseline)
        found = variant_aliases.promote(tx, asked)
        return found if found.id == made.id else None

    def move_back(self, tx: Tx, rollout: StagedRollout, made: Move) -> VariantMove | None:
        alias = get_or_none(tx, VariantAlias, rollout.model_id, rollout.alias)
        if alias is None or alias.number != rollout.step:
            return None
        return variant_aliases.roll_back(tx, self._asked(rollout, made))

    def _asked(self, rollout: StagedRollout, made: Move) -> VariantMove:
        place = made.id, rollout.model_id, rollout.entity, rollout.project, rollout.alias
        return VariantMove(*place, 0, made.change, None, None, rollout.by, made.at, verdict=made.verdict)


_SUBJECTS: Mapping[RolledOut, Subject] = {RolledOut.MODEL: Steps(), RolledOut.VARIANT: Versions()}


def subject_of(rollout: StagedRollout) -> Subject:
    """Return how the steps of a rollout are found."""
    return _SUBJECTS[rollout.kind]


def found_subject(snapshot: Snapshot, principal: Principal, name: Model | str) -> tuple[RolledOut, Any]:
    """Return a model, or the variant of a name like "variants/desk/support". Raises `NotFound`, `Forbidden`,
    `InvalidInput`."""
    try:
        return RolledOut.MODEL, named_model(snapshot, principal, name)
    except (NotFound, Forbidden):
        if not isinstance(name, str) or not name.startswith(VARIANTS):
            raise
        return RolledOut.VARIANT, found_variant(snapshot, principal, named(name, principal.entity))


def found_rolled_out(
    snapshot: Snapshot, principal: Principal, name: Model | str, step: int, alias: str
) -> tuple[RolledOut, Any, int]:
    """Return what has a step to be rolled out, and the step to which its alias points. Raises `NotFound`, `Forbidden`,
    `InvalidInput`, and `Conflict` for a version whose checkpoint was deleted."""
    kind, found = found_subject(snapshot, principal, name)
    subject = _SUBJECTS[kind]
    if kind is RolledOut.MODEL:
        found_checkpoint(snapshot, found, step)
        return kind, found, subject.pointed(snapshot, found, alias)
    version = snapshot.find(VariantVersion, "number", found.id, step)
    if version is None:
        hint = f"the newest is {found.last_number}"
        raise NotFound("Version", f"{VARIANTS}{found.project}/{found.name}@{step}", hint)
    refuse_gone(snapshot, found, version)
    return kind, found, subject.pointed(snapshot, found, alias)


def kept_by_rollouts(snapshot: Snapshot, model: Model) -> Mapping[int, str]:
    """Return why steps of a model stay: running rollouts of variants have a version that asks them."""
    kept = dict[int, str]()
    for running in iter_index(snapshot, RunningRollout, "all"):
        rollout = snapshot.get(StagedRollout, running.rollout_id)
        variant = get_or_none(snapshot, Variant, rollout.model_id)
        if variant is not None:
            for number in (rollout.baseline, rollout.step):
                why = f"rollout {rollout.id} of {called(variant, model)} asks version {number}; stop it first"
                keep(kept, snapshot, variant, number, model, why)
    return kept


def aliased_subject(snapshot: Snapshot, principal: Principal, name: str) -> tuple[str, str] | None:
    """Return the id of the model or the variant of which a name means an alias, with the alias; None for others."""
    model = ModelName.within(principal.entity, name)
    found: Any
    place: Any
    if model is not None:
        found = snapshot.find(Model, "name", model.entity, model.project, model.name)
        place = model
    else:
        place = VariantName.parse(name, principal.entity) if name.startswith(VARIANTS) else None
        found = None if place is None else snapshot.find(Variant, "name", place.entity, place.project, place.name)
    if found is None or place.alias is None or not principal.scope.covers(place.entity, place.project):
        return None
    return found.id, place.alias
