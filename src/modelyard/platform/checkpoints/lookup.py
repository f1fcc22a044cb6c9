"""Trainable models and their checkpoints as a principal may see them."""

from typing import Any

from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.errors import InvalidInput, NotFound, nearest
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot

_PAGE = 1000


def found_model(snapshot: Snapshot, principal: Principal, model_id: str) -> Model:
    model = get_or_none(snapshot, Model, model_id)
    if model is None or not principal.scope.covers(model.entity, model.project):
        raise NotFound("Model", model_id)
    return model


def named_model(snapshot: Snapshot, principal: Principal, model: Model | str) -> Model:
    """Find a model by value, id or name. Raises `NotFound`, `Forbidden`, and `InvalidInput` for the name of one of its
    checkpoints."""
    if isinstance(model, Model):
        return found_model(snapshot, principal, model.id)
    named = ModelName.within(principal.entity, model)
    if named is None:
        found = get_or_none(snapshot, Model, model)
        if found is None or not principal.scope.covers(found.entity, found.project):
            raise _absent(snapshot, principal, model)
        return found
    principal.require(named.entity, named.project)
    found = snapshot.find(Model, "name", named.entity, named.project, named.name)
    if found is None:
        raise _absent(snapshot, principal, model)
    if named.step is not None or named.alias is not None:
        msg = f"names one checkpoint; name the whole model, {named.project}/{named.name}"
        raise InvalidInput.at("model", msg=msg)
    return found


def _absent(snapshot: Snapshot, principal: Principal, name: str) -> NotFound:
    own = snapshot.page(Model, "by_entity", principal.entity, limit=_PAGE)
    known = [f"{one.project}/{one.name}" for one in own if principal.scope.covers(one.entity, one.project)]
    same = [one for one in known if one.rpartition("/")[2] == name]
    same = same or elsewhere(snapshot, principal, Model, name)
    return NotFound("Model", name, (nearest(name, same, 0.0) or nearest(name, known)).removeprefix("; "))


def elsewhere(snapshot: Snapshot, principal: Principal, cls: type[Any], name: str) -> list[str]:
    """Return what the host may mean by a name that its own entity lacks: those of any other entity."""
    if principal.scope.entity is not None:
        return []
    found = (f"{one.entity}/{one.project}/{one.name}" for one in snapshot.page(cls, "all", limit=_PAGE))
    return [one for one in found if one.endswith(f"/{name}")]


def found_checkpoint(snapshot: Snapshot, model: Model, step: int) -> Checkpoint:
    checkpoint = snapshot.find(Checkpoint, "step", model.id, step)
    if checkpoint is None:
        raise NotFound("Checkpoint", f"{model.name}:step{step}")
    return checkpoint


def id_of(model: Model | str) -> str:
    return model.id if isinstance(model, Model) else model
