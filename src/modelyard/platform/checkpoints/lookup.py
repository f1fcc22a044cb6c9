"""Trainable models and their checkpoints as a principal may see them."""

from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model, ModelName
from modelyard.errors import NotFound
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot


def found_model(snapshot: Snapshot, principal: Principal, model_id: str) -> Model:
    model = get_or_none(snapshot, Model, model_id)
    if model is None or not principal.scope.covers(model.entity, model.project):
        raise NotFound("Model", model_id)
    return model


def named_model(snapshot: Snapshot, principal: Principal, model: Model | str) -> Model:
    """Find a model by value, id or name: "project/name", "entity/project/name". Raises `NotFound`, `Forbidden`."""
    if isinstance(model, Model) or "/" not in model:
        return found_model(snapshot, principal, id_of(model))
    named = ModelName.parse(model if model.count("/") > 1 else f"{principal.entity}/{model}")
    if named is None:
        raise NotFound("Model", model)
    principal.require(named.entity, named.project)
    found = snapshot.find(Model, "name", named.entity, named.project, named.name)
    if found is None:
        raise NotFound("Model", model)
    return found


def found_checkpoint(snapshot: Snapshot, model: Model, step: int) -> Checkpoint:
    checkpoint = snapshot.find(Checkpoint, "step", model.id, step)
    if checkpoint is None:
        raise NotFound("Checkpoint", f"{model.name}:step{step}")
    return checkpoint


def id_of(model: Model | str) -> str:
    return model.id if isinstance(model, Model) else model
