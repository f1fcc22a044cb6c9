"""The targets of aliases and how they change, as functions of a transaction."""

import attrs

from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.promotion import MAX_ALIASES, Alias, Promotion
from modelyard.errors import Conflict, NotFound
from modelyard.platform.catalogue.offered_models import refuse_offered
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx


def aliases_of(snapshot: Snapshot, model_id: str) -> list[Alias]:
    return snapshot.page(Alias, "by_model", model_id, limit=MAX_ALIASES)


def found_alias(snapshot: Snapshot, model: Model, name: str) -> Alias:
    alias = get_or_none(snapshot, Alias, model.id, name)
    if alias is None:
        raise NotFound("Alias", f"{model.name}:{name}")
    return alias


def promote(tx: Tx, requested: Promotion) -> Promotion:
    """Point an alias at a checkpoint. If it points there already, nothing changes and the change in force is returned.
    `requested` has the step, and as `from_step` the one against which its requirement was checked; `number` and `below`
    are set here. Raises `Conflict` if the alias has moved since, `NotFound`."""
    if tx.find(Checkpoint, "step", requested.model_id, requested.step) is None:
        raise NotFound("Checkpoint", f"step{requested.step}")
    now = get_or_none(tx, Alias, requested.model_id, requested.alias)
    if now is not None and now.step == requested.step:
        return _numbered(tx, now, now.number)
    if requested.verdict and requested.from_step != (None if now is None else now.step):
        raise Conflict(f"{requested.alias!r} was moved while the promotion was being checked; promote again")
    below = None if now is None else now.number
    return _change(tx, attrs.evolve(requested, below=below), now)


def roll_back(tx: Tx, requested: Promotion, model: Model) -> Promotion:
    now = found_alias(tx, model, requested.alias)
    below = _numbered(tx, now, now.number).below
    if below is None:
        raise Conflict(
            f"{requested.alias!r} has pointed to step {now.step} from the beginning; there is nothing before it"
        )
    target = _numbered(tx, now, below)
    if tx.find(Checkpoint, "step", model.id, target.step) is None:
        raise Conflict(f"step {target.step}, to which the rollback would lead, was deleted; promote another step")
    return _change(tx, attrs.evolve(requested, step=target.step, below=target.below), now)


def remove_alias(tx: Tx, requested: Promotion, model: Model) -> Promotion:
    now = found_alias(tx, model, requested.alias)
    refuse_offered(tx, model, lambda named: named.alias == requested.alias)
    return _change(tx, requested, now)


def _change(tx: Tx, requested: Promotion, now: Alias | None) -> Promotion:
    last = tx.page(Promotion, "by_alias", requested.model_id, requested.alias, limit=1, descending=True)
    number = last[0].number + 1 if last else 1
    at = max([requested.created_at, *(one.created_at for one in last)])
    made = attrs.evolve(requested, number=number, from_step=None if now is None else now.step, created_at=at)
    tx.add(made)
    _point(tx, made, now)
    return made


def _point(tx: Tx, made: Promotion, now: Alias | None) -> None:
    if made.step is None:
        tx.remove(Alias, made.model_id, made.alias)
        return
    previous = None if made.below is None else tx.find(Promotion, "number", made.model_id, made.alias, made.below)
    place = (made.model_id, made.alias, made.entity, made.project)
    alias = Alias(*place, made.step, made.number, previous.step if previous else None, made.created_at)
    if now is not None:
        tx.replace(alias)
    elif tx.count(Alias, "by_model", made.model_id) >= MAX_ALIASES:
        raise Conflict(f"the model has {MAX_ALIASES} aliases already; remove one first")
    else:
        tx.add(alias)


def _numbered(snapshot: Snapshot, alias: Alias, number: int) -> Promotion:
    found = snapshot.find(Promotion, "number", alias.model_id, alias.name, number)
    assert found is not None, "a promotion goes only with its model"
    return found


# ---- the checkpoints that aliases keep ---------------------------------------------------------------------------


def steps_kept(snapshot: Snapshot, model_id: str) -> set[int | None]:
    """Return the steps that retention keeps for aliases: their targets, and those of rollbacks."""
    return {step for alias in aliases_of(snapshot, model_id) for step in (alias.step, alias.previous_step)}


def refuse_aliased(snapshot: Snapshot, model: Model) -> None:
    found = snapshot.page(Alias, "by_model", model.id, limit=1)
    if found:
        raise Conflict(f"{found[0].name!r} points to step {found[0].step} of the model; remove its aliases first")
