"""The data of training: datasets, rows, jobs and their events (specification 4.3)."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.completion import Choice, FinishReason, Message, Role, TokenLogprob, Tool
from modelyard.domain.job import Job, JobProgress, JobStatus
from modelyard.domain.models import ARTIFACT_NAME
from modelyard.domain.record import EMPTY, KEPT, Index, Record, brief, frozen_mapping, in_notebook
from modelyard.errors import InvalidInput


@attrs.frozen
class Dataset:
    """Training data that was uploaded: rows of JSON Lines in an artifact. Versions of a name count from 0. `rows` is 0
    when the artifact cannot be read as examples; a job on it is refused with the reason."""

    id: str
    entity: str
    project: str
    name: str
    version: int
    artifact: str
    rows: int
    size: int
    digest: str
    created_at: datetime
    _repr_html_ = in_notebook

    @property
    def url(self) -> str:
        """The URL by which a job names it."""
        return f"modelyard:///{self.entity}/{self.project}/{self.name}:v{self.version}"


# ---- what training reads -----------------------------------------------------------------------------------------


@attrs.frozen
class Example:
    """A conversation to imitate: the loss is on assistant tokens. `sources` name what the row was made from, for its
    lineage; training does not read them. `untrained` are the indices of assistant messages that are read, and not
    trained; `weights` are the factors, between 0 and 1, of the losses of others, by index, where they are not 1.
    `template` are variables of the model's chat template. Raises `InvalidInput` for the index of any other message."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    sources: tuple[str, ...] = ()
    untrained: tuple[int, ...] = ()
    weights: Mapping[int, float] = attrs.field(converter=frozen_mapping, default=EMPTY, hash=False)
    template: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY, hash=False)

    def __attrs_post_init__(self) -> None:
        for number, place in enumerate(self.untrained):
            if place not in self._answers:
                raise InvalidInput.at("untrained", number, msg="must be the index of an assistant message")
        for place, weight in self.weights.items():
            if place not in self._answers or not 0 < weight < 1:
                msg = "must be the index of an assistant message, and a number between 0 and 1"
                raise InvalidInput.at("weights", place, msg=msg)

    @property
    def _answers(self) -> list[int]:
        return [place for place, message in enumerate(self.messages) if message.role is Role.ASSISTANT]

    def trained(self, which: str) -> list[int]:
        """Return the indices of the messages to train: of all assistant messages, or of the "last"."""
        found = self._answers[-1:] if which == "last" else self._answers
        return [place for place in found if place not in self.untrained]


@attrs.frozen
class Preference:
    """A prompt, and two answers to it of which the first is preferred. `sources` are as in `Example`. Raises
    `InvalidInput` if there is nothing to learn: without a prompt, or if the answers are equal. `template` is as in
    `Example`."""

    messages: tuple[Message, ...]
    chosen: Message
    rejected: Message
    tools: tuple[Tool, ...] = ()
    sources: tuple[str, ...] = ()
    template: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY, hash=False)

    def __attrs_post_init__(self) -> None:
        if not self.messages:
            raise InvalidInput.at("messages", msg="must have the prompt, at least one message")
        if self.messages[-1].role is Role.ASSISTANT:
            msg = "must not be an assistant message: the prompt ends where the answers begin"
            raise InvalidInput.at("messages", len(self.messages) - 1, msg=msg)
        if self.chosen == self.rejected:
            raise InvalidInput.at("rejected", msg="must differ from chosen; equal answers show no preference")

    def answered(self, answer: Message) -> Example:
        """Return the conversation that ends with one of the answers."""
        return Example((*self.messages, answer), self.tools, template=self.template)


@attrs.frozen
class SampledChoice:
    """An assistant turn that the model itself sampled. Trained on when it has logprobs; without them it is context.
    `token_ids`, if the client carried them back, are exactly the sampled ids (one per logprob). `teacher` has the
    log-probability of each token under another model, with what that model finds likeliest there as `top`."""

    message: Message
    finish_reason: FinishReason = FinishReason.STOP
    logprobs: tuple[TokenLogprob, ...] | None = None
    token_ids: tuple[int, ...] = ()
    prompt_token_ids: tuple[int, ...] = ()
    teacher: tuple[TokenLogprob, ...] | None = None

    @classmethod
    def of(cls, choice: Choice) -> "SampledChoice":
        return cls(choice.message, choice.finish_reason, choice.logprobs, choice.token_ids, choice.prompt_token_ids)


@attrs.frozen
class History:
    """Messages and sampled choices in order."""

    items: tuple[Message | SampledChoice, ...]
    tools: tuple[Tool, ...] = ()


@attrs.frozen
class Trajectory:
    """One rollout and its reward. `histories` is the main one and any additional ones, which share the reward."""

    histories: tuple[History, ...]
    reward: float = 0.0
    metrics: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    logs: tuple[str, ...] = ()
    initial_policy_version: int | None = None
    final_policy_version: int | None = None

    @classmethod
    def of(
        cls, messages: Sequence[Message], choice: Choice, reward: float, tools: tuple[Tool, ...] = ()
    ) -> "Trajectory":
        """Make the trajectory of one sampled answer to a conversation."""
        return cls((History((*messages, SampledChoice.of(choice)), tools),), reward)


@attrs.frozen
class RolloutError:
    """A rollout that failed, as its client reported it."""

    type: str
    message: str
    traceback: str = ""


@attrs.frozen
class TrajectoryGroup:
    """Rollouts of one scenario: advantages are measured within it. May be empty."""

    trajectories: tuple[Trajectory, ...]
    exceptions: tuple[RolloutError, ...] = ()
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    metrics: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    logs: tuple[str, ...] = ()


# ---- what training writes ------------------------------------------------------------------------------------------

TRAINING_STARTED = "training_started"
GRADIENT_STEP = "gradient_step"
TRAINING_ROUND = "training_round"
TRAINING_ENDED = "training_ended"
TRAINING_FAILED = "training_failed"

STEPS = frozenset({GRADIENT_STEP, TRAINING_ROUND})
"""The types of events that are steps of a job, with metrics: optimizer steps, or the rounds of a loop."""


@attrs.frozen
class TrainingEvent:
    """An event of a training job. `data` of a step (`STEPS`) holds finite numbers only."""

    id: str
    seq: int
    type: str
    data: Mapping[str, Any]
    created_at: datetime


@attrs.frozen
class TrainingJob:
    """A training job as it stood, or a loop of them; `training.job(id)` is its handle. `step` is the checkpoint that it
    made, of a loop the best. `queue_position` is how many queued jobs are ahead of it, by priority and age; 100 is the
    most. `last_heartbeat` is its worker's last sign of life, while one runs it; `estimated_end` is known from its first
    step on, while it runs. `waiting_for` is a reason to wait other than the queue, in words, None for nothing.
    `loop_id` is the loop that it trains for. `stop_reason` is, in words, the rule or number of rounds that ended it, or
    the error."""

    id: str
    kind: str
    model_id: str
    entity: str
    project: str
    status: JobStatus
    created_at: datetime
    training_start: datetime | None
    training_end: datetime | None
    error_message: str | None
    step: int | None
    metrics: Mapping[str, float]
    config: Mapping[str, Any]
    attempts: int
    progress: int
    total: int | None
    queue_position: int | None = attrs.field(default=None, repr=False)
    last_heartbeat: datetime | None = attrs.field(default=None, repr=False)
    estimated_end: datetime | None = attrs.field(default=None, repr=False)
    waiting_for: str | None = attrs.field(default=None, repr=False)
    loop_id: str | None = attrs.field(default=None, repr=False)
    stop_reason: str | None = None
    __repr__ = brief

    @classmethod
    def of(
        cls, job: Job, progress: JobProgress, now: datetime, queue_position: int | None, waiting_for: str | None = None
    ) -> "TrainingJob":
        return cls(
            id=job.id,
            kind=job.kind,
            model_id=job.subject,
            entity=job.entity,
            project=job.project,
            status=job.status,
            created_at=job.created_at,
            training_start=job.started_at,
            training_end=job.ended_at,
            error_message=job.error_message,
            step=job.result.get("step"),
            metrics=job.result.get("metrics", {}),
            config=job.spec.get("config", {}),
            attempts=job.attempts,
            progress=progress.step,
            total=progress.total,
            queue_position=queue_position,
            last_heartbeat=progress.updated_at if progress.held else None,
            estimated_end=estimated_end(job, progress, now),
            waiting_for=waiting_for,
            loop_id=job.spec.get("loop_id"),
            stop_reason=job.error_message or job.result.get("stop_reason"),
        )


def estimated_end(job: Job, progress: JobProgress, now: datetime) -> datetime | None:
    if job.status is not JobStatus.RUNNING or not (progress.step and progress.total and job.started_at):
        return None
    now = progress.time(now)
    left = max(progress.total - progress.step, 0) / progress.step
    try:
        return now + (now - job.started_at) * left
    except OverflowError:
        return None


_DATASET_VERSION = re.compile(r"v(0|[1-9][0-9]{0,17})")


@attrs.frozen
class DatasetName:
    """`modelyard:///<entity>/<project>/<name>:v<N>` (or `wandb-artifact:///...`) in parts; `version` None = latest."""

    entity: str
    project: str
    name: str
    version: int | None = None

    @classmethod
    def parse(cls, url: str) -> "DatasetName | None":
        found = ARTIFACT_NAME.fullmatch(url)
        if found is None or "://" not in url:
            return None
        word = found["version"]
        number = _DATASET_VERSION.fullmatch(word) if word else None
        if word not in (None, "latest") and number is None:
            return None
        return cls(found["entity"], found["project"], found["name"], int(number[1]) if number else None)


RECORDS = (
    Record(
        Dataset,
        "datasets",
        ("id",),
        unique={"version": ("entity", "project", "name", "version")},
        indexes={
            "all": Index(()),
            "by_name": Index(("entity", "project", "name"), ("version",)),
            "by_digest": Index(("entity", "project", "name", "digest"), ("version",)),
            "by_entity": Index(("entity",), ("created_at",)),
        },
        artifacts=lambda dataset: {dataset.artifact: dataset.digest},
        texts=KEPT,
    ),
)
