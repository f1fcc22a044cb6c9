"""Trainable models and their checkpoints as a principal may see them."""

from modelyard.domain.identity import Principal
from modelyard.domain.training import Checkpoint, Model
from modelyard.errors import NotFound
from modelyard.protocols import Snapshot
from modelyard.service.listing import maybe
from modelyard.service.ports import Ports


class ModelView:
    """What every use case of models begins with: looking one up in the principal's scope."""

    def __init__(self, ports: Ports, principal: Principal) -> None:
        self.ports, self.principal = ports, principal

    def _sees(self, model: Model) -> bool:
        return self.principal.scope.covers(model.entity, model.project)

    def _found(self, snapshot: Snapshot, model_id: str) -> Model:
        """Raises `NotFound`."""
        model = maybe(snapshot, Model, model_id)
        if model is None or not self._sees(model):
            raise NotFound("Model", model_id)
        return model

    def _step(self, snapshot: Snapshot, model: Model, step: int) -> Checkpoint:
        """Raises `NotFound`."""
        checkpoint = snapshot.find(Checkpoint, "step", model.id, step)
        if checkpoint is None:
            raise NotFound("Checkpoint", f"{model.name}:step{step}")
        return checkpoint


def id_of(model: Model | str) -> str:
    """The id of a model that is given by value or by id."""
    return model.id if isinstance(model, Model) else model
