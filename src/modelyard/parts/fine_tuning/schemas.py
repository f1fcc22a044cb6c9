"""Fine-tuning jobs, their events and checkpoints as the clients of the chat format know them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.job import JobEvent, JobKind
from modelyard.domain.models import Checkpoint
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED, TRAINING_STARTED
from modelyard.errors import InvalidInput
from modelyard.formats.chat.request import check_metadata
from modelyard.formats.constraints import Length
from modelyard.http.listing import PageObject, page_class
from modelyard.parts.fine_tuning.records import METHOD_KINDS, FineTuningJob, FineTuningRequest

_METHOD_OF = {kind: name for name, kind in METHOD_KINDS.items()}

# ---- requests


@attrs.frozen
class FineTuningMethod:
    """How a job trains; the member that its type names has `hyperparameters`, and with reinforcement a `grader`."""

    type: Literal["supervised", "dpo", "reinforcement"]
    supervised: Mapping[str, Any] | None = None
    dpo: Mapping[str, Any] | None = None
    reinforcement: Mapping[str, Any] | None = None

    def chosen(self) -> Mapping[str, Any]:
        known = {"hyperparameters", "grader"} if self.type == "reinforcement" else {"hyperparameters"}
        members = {"supervised": self.supervised, "dpo": self.dpo, "reinforcement": self.reinforcement}
        for name, value in members.items():
            if value is not None and name != self.type:
                raise InvalidInput.at(name, msg=f"is not the method {self.type!r}; leave it out")
        chosen = members[self.type] or {}
        for name, value in chosen.items():
            if name not in known and value is not None:
                raise InvalidInput.at(self.type, name, msg="is not supported; leave it out")
        return chosen


def _no_integrations(instance: object, attribute: Any, value: tuple[object, ...] | None) -> None:
    if value:
        raise ValueError("must be empty, as it is in the record of a job: jobs report to this platform only")


@attrs.frozen
class FineTuningCreate:
    """The body that creates a fine-tuning job on an uploaded file, by `hyperparameters` or the newer `method`."""

    model: str = attrs.field(validator=Length(1, 512))
    training_file: str = attrs.field(validator=Length(1, 128))
    method: FineTuningMethod | None = None
    hyperparameters: Mapping[str, Any] | None = None
    validation_file: str | None = attrs.field(default=None, validator=Length(1, 128))
    suffix: str | None = attrs.field(default=None, validator=Length(1, 64))
    seed: int | None = None
    metadata: Mapping[str, str] | None = attrs.field(default=None, validator=check_metadata)
    integrations: tuple[object, ...] | None = attrs.field(default=None, validator=_no_integrations)


def requested(body: FineTuningCreate) -> FineTuningRequest:
    chosen: Mapping[str, Any] = {} if body.method is None else body.method.chosen()
    given = chosen.get("hyperparameters")
    if body.hyperparameters is not None:
        if body.method is not None:
            raise InvalidInput.at("hyperparameters", msg="belongs into method; send it there only")
        given = body.hyperparameters
    if given is not None and not isinstance(given, Mapping):
        raise InvalidInput.at("method", "hyperparameters", msg="must be an object")
    return FineTuningRequest(
        body.model,
        body.training_file,
        method="supervised" if body.method is None else body.method.type,
        hyperparameters=given or {},
        grader=chosen.get("grader"),
        validation_file=body.validation_file,
        suffix=body.suffix,
        seed=body.seed,
        metadata=body.metadata or {},
    )


# ---- responses


@attrs.frozen
class FineTuningFault:
    """Why a job has failed."""

    code: str
    message: str
    param: str | None


@attrs.frozen
class FineTuningJobObject:
    """A fine-tuning job: a training job with the same id. `fine_tuned_model` is the name to chat with, once it is
    there. `hyperparameters` and `method` are those in force. Times are in Unix seconds.
    """

    id: str
    object: Literal["fine_tuning.job"]
    model: str
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    fine_tuned_model: str | None
    organization_id: str
    status: Literal["queued", "running", "pausing", "paused", "succeeded", "failed", "cancelled"]
    error: FineTuningFault | None
    training_file: str
    validation_file: str | None
    result_files: tuple[str, ...]
    trained_tokens: int | None
    hyperparameters: Mapping[str, Any]
    method: Mapping[str, Any]
    seed: int
    integrations: tuple[str, ...]
    metadata: Mapping[str, str]
    user_provided_suffix: str | None


@attrs.frozen
class FineTuningEventObject:
    """An event of a job, in words; the `data` of metrics are numbers."""

    id: str
    object: Literal["fine_tuning.job.event"]
    created_at: int
    level: Literal["info", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: Mapping[str, Any]


@attrs.frozen
class FineTuningCheckpointObject:
    """A checkpoint of a job. `step_number` is that with which the name of the checkpoint ends."""

    id: str
    object: Literal["fine_tuning.job.checkpoint"]
    created_at: int
    fine_tuned_model_checkpoint: str
    fine_tuning_job_id: str
    step_number: int
    metrics: Mapping[str, float]


@attrs.frozen
class TunedModelDeleted:
    """A trained model, or a checkpoint of one, that was deleted."""

    id: str
    object: Literal["model"]
    deleted: bool


def _seconds(time: datetime | None) -> int | None:
    return None if time is None else int(time.timestamp())


def job_object(found: FineTuningJob) -> FineTuningJobObject:
    job, asked = found.job, found.requested
    method: str = asked.get("method") or _METHOD_OF.get(job.kind, JobKind.RL)
    given = dict(asked.get("hyperparameters", {}))
    grader = {"grader": asked["grader"]} if asked.get("grader") is not None else {}
    fault = FineTuningFault("training_failed", job.error_message or "", None) if job.status == "failed" else None
    known: Any = found.pausing or job.status.value
    return FineTuningJobObject(
        id=job.id,
        object="fine_tuning.job",
        model=found.base_model,
        created_at=int(job.created_at.timestamp()),
        finished_at=_seconds(job.training_end),
        estimated_finish=_seconds(job.estimated_end),
        fine_tuned_model=found.fine_tuned_model,
        organization_id=job.entity,
        status=known,
        error=fault,
        training_file=asked.get("training_file", ""),
        validation_file=asked.get("validation_file"),
        result_files=found.result_files,
        trained_tokens=found.trained_tokens,
        hyperparameters=given if method == "supervised" else {},
        method={"type": method, method: {"hyperparameters": given, **grader}},
        seed=asked.get("seed", 0),
        integrations=(),
        metadata=asked.get("metadata", {}),
        user_provided_suffix=asked.get("suffix"),
    )


_SHOWN = ("loss", "reward", "held_out", "valid_loss", "full_valid_loss")
_SENTENCES: Mapping[str, str] = {
    TRAINING_STARTED: "Fine-tuning job started",
    TRAINING_ENDED: "The job has successfully completed",
}


def event_object(event: JobEvent) -> FineTuningEventObject:
    data, failed = dict(event.data), event.type == TRAINING_FAILED
    if event.step:
        data["step"] = event.step
        if "loss" in data:
            data["train_loss"] = data["loss"]
        shown = ", ".join(f"{name}={data[name]:.4g}" for name in _SHOWN if name in data)
        message = f"Step {event.step}{': ' if shown else ''}{shown}"
    else:
        message = str(data.get("error_message")) if failed else _SENTENCES.get(event.type, event.type)
    return FineTuningEventObject(
        event.id,
        "fine_tuning.job.event",
        int(event.created_at.timestamp()),
        "error" if failed else "info",
        message,
        "metrics" if event.step else "message",
        data,
    )


def checkpoint_object(checkpoint: Checkpoint, job_id: str, model: str) -> FineTuningCheckpointObject:
    metrics = {"step": float(checkpoint.step), **checkpoint.metrics}
    if "loss" in metrics:
        metrics["train_loss"] = metrics["loss"]
    return FineTuningCheckpointObject(
        checkpoint.id,
        "fine_tuning.job.checkpoint",
        int(checkpoint.created_at.timestamp()),
        f"{model}:step{checkpoint.step}",
        job_id,
        checkpoint.step,
        metrics,
    )


def _as_it_is(item: Any) -> Any:
    return item


FineTuningJobPage: type[PageObject] = page_class(
    "FineTuningJobPage", FineTuningJobObject, job_object, "Some fine-tuning jobs, the newest first."
)
FineTuningEventPage: type[PageObject] = page_class(
    "FineTuningEventPage", FineTuningEventObject, event_object, "Some events of a job, the newest first."
)
FineTuningCheckpointPage: type[PageObject] = page_class(
    "FineTuningCheckpointPage", FineTuningCheckpointObject, _as_it_is, "Some checkpoints of a job, the newest first."
)
