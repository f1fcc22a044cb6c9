"""Where a run, a checkpoint or a completion comes from (specification 4.5)."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal

import attrs

from modelyard.domain.evaluation.references import ObjectRef, RefKind
from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.record import EMPTY


@attrs.frozen
class TrainedStep:
    """How one checkpoint came to be. `digest` is that of its weights. `data_digest` is the SHA-256 of the data that its
    job trained on, `data_url` their name if they were a dataset. Without a job it is the untouched base. Of a deleted
    checkpoint only the step is known."""

    step: int
    digest: str | None = None
    job_id: str | None = None
    kind: str | None = None
    data_digest: str | None = None
    data_url: str | None = None
    deleted: bool = False


@attrs.frozen
class CheckpointLineage:
    """The sources of a checkpoint, and what was made of it. `steps` begins with the checkpoint itself and continues
    with what it was trained from, the nearest first. `runs` are the evaluation runs on it, the newest first. `entries`
    are the catalogue entries that it answers. `more` tells that there are further steps or runs."""

    model: Model
    checkpoint: Checkpoint
    steps: tuple[TrainedStep, ...]
    aliases: tuple[str, ...] = ()
    runs: tuple[EvaluationRun, ...] = ()
    more: bool = False
    entries: tuple[str, ...] = ()

    @property
    def job_id(self) -> str | None:
        """The job that made it; None for the untouched base."""
        return self.steps[0].job_id

    @property
    def data_digest(self) -> str | None:
        """The digest of the data that it was trained on."""
        return self.steps[0].data_digest

    @property
    def parent_step(self) -> int | None:
        """The step that its training began at."""
        return self.steps[1].step if len(self.steps) > 1 else None


@attrs.frozen
class RunLineage:
    """The sources of an evaluation run, and what was made of it.

    `sources` are the runs that it was rescored from, its own source first; if the last one's source is not here,
    `missing_source` is its id. `derived` are the runs that were rescored from it, directly or not, the nearest first.
    `checkpoint` is the one that it evaluated, if that is known. `more` tells that there are further runs.
    """

    run: EvaluationRun
    sources: tuple[EvaluationRun, ...]
    missing_source: str | None
    derived: tuple[EvaluationRun, ...]
    checkpoint: CheckpointLineage | None = None
    more: bool = False


@attrs.frozen
class CompletionLineage:
    """The model that answered a completion, and the price. `model` is the catalogue id, or `entity/project/name` of a
    trained model.

    If a trained model answered, also under a catalogue id, it did so with the checkpoint of `checkpoint_step`;
    `checkpoint` is its lineage, if it is still here and the caller may see its model. `price` holds the prices in USD
    that are not 0, as decimal text; `cost` is in USD.
    """

    id: str
    model: str
    base_model: str
    checkpoint_step: int | None
    checkpoint: CheckpointLineage | None
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    created_at: datetime
    price: Mapping[str, str] = EMPTY


def checkpoint_ref(model: Model, step: int) -> ObjectRef:
    return ObjectRef(model.entity, model.project, RefKind.OBJECT, model.name, f"step{step}")
