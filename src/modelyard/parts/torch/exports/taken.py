"""A checkpoint that is taken elsewhere: its files, its base model, and where it comes from."""

from collections.abc import Mapping
from typing import Any, BinaryIO

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.promotion import CheckpointLineage
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.torch.model_folder import check_unchanged
from modelyard.parts.torch.records import BaseModel
from modelyard.parts.torch.service import base_models_of
from modelyard.platform.models.service import Models
from modelyard.platform.runtime import Runtime


@attrs.frozen
class TakenCheckpoint:
    """A checkpoint of a model, whose base model is in a folder."""

    runtime: Runtime = attrs.field(repr=False)
    principal: Principal
    lineage: CheckpointLineage
    base: BaseModel

    @property
    def model(self) -> Model:
        return self.lineage.model

    @property
    def checkpoint(self) -> Checkpoint:
        return self.lineage.checkpoint

    @property
    def files(self) -> Mapping[str, Any]:
        """The files of the checkpoint: none of the untouched base."""
        return self.checkpoint.files

    def open_file(self, name: str) -> BinaryIO:
        return Models(self.runtime, self.principal).open_file(self.model, self.checkpoint.step, name)


def take(
    runtime: Runtime, principal: Principal, named: Model | str, step: int | None, alias: str | None
) -> TakenCheckpoint:
    """Find the checkpoint of a step or of an alias, by default the latest one, and check the folder of its base model.

    Raises `NotFound`, `InvalidInput`, `BackendError` for a folder that has changed.
    """
    models = Models(runtime, principal)
    model = models.get(named)
    if alias is not None:
        step = _step_of(models, model, step, alias)
    if step is None:
        (latest,) = models.checkpoints(model, order="desc").page(1).items
        step = latest.step
    base = next((one for one in base_models_of(runtime) or () if one.id == model.base_model), None)
    if base is None:
        raise InvalidInput.at(
            "model",
            msg=f"is trained from {model.base_model!r}, which is not a base model in a local folder of this store: "
            "its checkpoints are for this platform alone",
        )
    check_unchanged(base)
    return TakenCheckpoint(runtime, principal, models.lineage(model, step), base)


def _step_of(models: Models, model: Model, step: int | None, alias: str) -> int:
    if step is not None:
        raise InvalidInput.at("alias", msg="names a checkpoint, and step another one; give one of the two")
    for one in models.aliases(model):
        if one.name == alias:
            return one.step
    raise NotFound("Alias", alias)
