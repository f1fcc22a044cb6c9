"""The selection of the stored answers to collect, and their scores."""

import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.evaluation.filters import value_at
from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.domain.record import EMPTY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import Forbidden, NotFound
from modelyard.parts.traffic.traffic_row import TrafficRow
from modelyard.parts.variants.naming import VariantName, found_variant, found_version
from modelyard.platform.checkpoints.aliases import found_alias
from modelyard.platform.checkpoints.lookup import found_checkpoint, named_model
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

Score = str | Mapping[str, Any] | Callable[[TrafficRow], float | bool | None]
"""A path in the payload of feedback ("up", "output.correct"), a judge as data (`{"type": "llm_judge", ...}`), or a
function of the row. Bools count as 1 and 0; of several values in feedback the mean counts.
"""

VARIANTS = "variants/"


@attrs.frozen
class AnsweredBy:
    """The model that must have answered: a name as it was requested, or a trained model, or one checkpoint of it; or a
    variant, with `version` one version of it ("" for any)."""

    name: str
    model: Model | None = None
    checkpoint: Checkpoint | None = None
    variant: str = ""
    version: str = ""

    @classmethod
    def of(cls, snapshot: Snapshot, principal: Principal, name: str) -> "AnsweredBy":
        """Find the model: a trained model, or with `:step3` or `:prod` the checkpoint that has this name now; or a
        variant, or with `@3` or `@prod` the version that has this name now."""
        plain, _, version = name.partition(":")
        try:
            model = named_model(snapshot, principal, plain)
        except (NotFound, Forbidden):
            return cls._variant(snapshot, principal, name) or cls(name)
        named = ModelName.parse(f"{model.entity}/{model.project}/{model.name}:{version}") if version else None
        if named is None or (named.step is None and named.alias is None):
            return cls(name, model)
        step = named.step if named.step is not None else found_alias(snapshot, model, named.alias or "").step
        return cls(name, model, found_checkpoint(snapshot, model, step))

    @classmethod
    def _variant(cls, snapshot: Snapshot, principal: Principal, name: str) -> "AnsweredBy | None":
        named = VariantName.parse(name, principal.entity) if name.startswith(VARIANTS) else None
        if named is None:
            return None
        try:
            variant = found_variant(snapshot, principal, named)
        except (NotFound, Forbidden):
            return None
        whole = f"{VARIANTS}{variant.entity}/{variant.project}/{variant.name}"
        if "@" not in name:
            return cls(name, variant=whole)
        return cls(name, variant=whole, version=variant.served_as(found_version(snapshot, variant, named).number))

    @property
    def pinned(self) -> str:
        if self.variant:
            return self.version or self.variant
        if self.model is None or self.checkpoint is None:
            return self.name
        return f"{self.model.entity}/{self.model.project}/{self.model.name}:step{self.checkpoint.step}"

    def meant(self, row: TrafficRow, snapshot: Snapshot) -> bool:
        """Return whether this model answered. For a traced call, the ledger knows the checkpoint."""
        if self.variant:
            return row.variant == self.version if self.version else row.variant.startswith(f"{self.variant}@")
        if self.model is None or (self.checkpoint is None and row.model == self.name):
            return row.model == self.name
        if row.checkpoint_id is not None:
            found = get_or_none(snapshot, Checkpoint, row.checkpoint_id)
            wanted = found is not None and found.model_id == self.model.id
            return wanted and self.checkpoint in (None, found)
        booked, place = get_or_none(snapshot, LedgerEntry, row.completion_id), f"{self.model.project}/{self.model.name}"
        if booked is None or booked.entity != row.entity:
            return False
        named = {booked.model, row.model.partition(":")[0]} & {place, f"{self.model.entity}/{place}"}
        return bool(named) and (self.checkpoint is None or booked.checkpoint_step == self.checkpoint.step)


@attrs.frozen
class Selection:
    """The conditions of a collection. `missed` says of a row why it is left out."""

    runtime: Runtime
    answered: AnsweredBy | None = None
    metadata: Mapping[str, Any] = EMPTY
    since: datetime | None = None
    until: datetime | None = None
    where: Callable[[TrafficRow], bool] | None = None
    score: Score | None = None

    @property
    def reads_feedback(self) -> bool:
        return self.where is not None or isinstance(self.score, str) or callable(self.score)

    def missed(self, row: TrafficRow) -> str | None:
        """Return the first condition, except `where`, that a row does not fulfil."""
        answered = self.answered
        if answered is not None and not self.runtime.store.read(lambda snapshot: answered.meant(row, snapshot)):
            return "another model"
        if (self.since and row.created_at < self.since) or (self.until and row.created_at >= self.until):
            return "another time"
        if not self.metadata.items() <= dict(row.metadata).items():
            return "other metadata"
        return None

    def value_of(self, row: TrafficRow) -> float | None:
        """Return the score of the row by feedback or a function; None if neither gives one."""
        if isinstance(self.score, str):
            found = [number_of(value_at(said.payload, self.score)) for said in row.feedback]
            values = [value for value in found if value is not None]
            return sum(values) / len(values) if values else None
        return number_of(self.score(row)) if callable(self.score) else None


def number_of(value: object) -> float | None:
    """Return a finite number, 1 and 0 for a bool; None for anything else."""
    return float(value) if isinstance(value, bool | int | float) and math.isfinite(value) else None
