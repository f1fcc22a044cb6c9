"""Training runs that clients drive command by command: sessions, the log of each run, its weights, and its samplers.

The values of training itself are in `domain.training_run`.
"""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

import attrs

from modelyard.domain.record import EMPTY, FOR_EVER, KEPT, Index, Record, digests_of, frozen_mapping, sequence_field

COMMANDS_JOB = "commands"
"""The kind of the jobs of this part."""

SCHEME = "tinker://"
"""How the path of a run's weights begins."""

RUN, SAMPLER = "train", "sample"
"""The second word of the ids of runs and of samplers: `<session>:train:<number>`."""


class CommandKind(StrEnum):
    CREATE = "create_model"
    LOAD = "load_weights"
    FORWARD = "forward"
    FORWARD_BACKWARD = "forward_backward"
    OPTIM_STEP = "optim_step"
    SAVE = "save_weights"
    SAVE_FOR_SAMPLER = "save_weights_for_sampler"
    UNLOAD = "unload_model"
    REFUSED = "refused"


class FutureStatus(StrEnum):
    """The status of the answer to a command or to a request to sample. `lost` means that no process works on it."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"
    LOST = "lost"


class SessionStage(StrEnum):
    """The stages of a session: it may have active runs (`open`), or none any more, with or without their answers."""

    OPEN = "open"
    ENDED = "ended"
    CLEARED = "cleared"


class WeightsKind(StrEnum):
    """The purpose of saved weights: to continue training, with the optimizer's state, or to sample from."""

    STATE = "weights"
    SAMPLER = "sampler_weights"


@attrs.frozen
class RunSession:
    """A client at work: what it starts belongs to its session. `finished` is why it has ended, "" before.

    `seen_at` is when its client was seen last, and from the `ended` stage on, when that stage began.
    """

    id: str
    entity: str
    project: str
    created_at: datetime
    seen_at: datetime
    tags: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    display_name: str = ""
    sdk_version: str = ""
    finished: str = ""
    stage: SessionStage = SessionStage.OPEN
    seq: int = sequence_field()


@attrs.frozen
class TrainingRun:
    """A model in training by commands. `adapter` are the members of its `AdapterConfig`.

    `applied` is the number of the last command that was applied, -1 before the first; `steps` counts optimizer steps.
    `job_id` is the job that applies them. `ended` is why there are no more commands, "" before.
    """

    id: str
    session_id: str
    entity: str
    project: str
    model_id: str
    base_model: str
    adapter: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    job_id: str
    created_at: datetime
    metadata: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    applied: int = -1
    steps: int = 0
    ended: str = ""
    seq: int = sequence_field()


@attrs.frozen
class RunCommand:
    """A command of a run. Commands are applied in the order of their numbers, each once.

    `digest` is the digest of the request. `body` is the command's data besides its `arguments`, and `answer` its answer
    if that is not JSON (`result`): each is empty, `{"base64"}`, or `{"artifact", "size", "digest"}`. `error` is why it
    has failed.
    """

    run_id: str
    number: int
    entity: str
    kind: CommandKind
    created_at: datetime
    digest: str
    arguments: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    body: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    status: FutureStatus = FutureStatus.PENDING
    result: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    answer: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    error: str = ""
    ended_at: datetime | None = None

    @property
    def id(self) -> str:
        """The id of its future."""
        return f"{self.run_id}:{self.number}"


@attrs.frozen
class RunWeights:
    """Weights that a run has saved under a path that never changes: `id` is the path without its scheme.

    They are the weights of a checkpoint of the run's model. `state` names the further files that are needed to continue
    training, each `{"artifact", "size", "digest"}`. From `expires_at` on they are not there any more.
    """

    id: str
    run_id: str
    kind: WeightsKind
    entity: str
    project: str
    checkpoint_id: str
    step: int
    created_at: datetime
    size: int = 0
    expires_at: datetime = FOR_EVER
    state: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    metadata: Mapping[str, str] = attrs.field(converter=frozen_mapping, default=EMPTY)
    seq: int = sequence_field()

    @property
    def path(self) -> str:
        """The path by which clients name them."""
        return SCHEME + self.id


@attrs.frozen
class SamplingSession:
    """The source of a client's samples: `model` is the name of a model as requests of completions have it."""

    id: str
    session_id: str
    entity: str
    project: str
    base_model: str
    model: str
    created_at: datetime
    path: str = ""
    clones: int = 0
    seq: int = sequence_field()


@attrs.frozen
class Sample:
    """A request to sample, which the process of this `ProcessRecord` answers. `answer` is as for a command."""

    id: str
    entity: str
    digest: str
    process: str
    created_at: datetime
    status: FutureStatus = FutureStatus.PENDING
    answer: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    error: str = ""
    seq: int = sequence_field()


def future_topic(future_id: str) -> str:
    """Return the topic that is notified when an answer is ready: the topic of the run, or of the request to sample."""
    return f"future/{run_of(future_id) if is_command(future_id) else future_id}"


def run_topic(run_id: str) -> str:
    """Return the topic that is notified when a command of a run comes."""
    return f"run/{run_id}"


def is_command(future_id: str) -> bool:
    """Return whether the id of an answer belongs to a command of a run, and not to a request to sample."""
    return future_id.count(":") == 3 and future_id.split(":")[1] == RUN


def run_of(future_id: str) -> str:
    """Return the run or the sampler of the answer with this id."""
    return future_id.rpartition(":")[0]


def artifacts_in(*kept: Mapping[str, Any]) -> Mapping[str, str | None]:
    """Return the artifacts that hold bytes of a record (`parts.tinker.payloads`), with their digests."""
    return digests_of(one for one in kept if "artifact" in one)


RECORDS = (
    Record(
        RunSession,
        "run_sessions",
        ("id",),
        indexes={"by_entity": Index(("entity",)), "by_stage": Index(("stage",), ("seen_at",))},
        sequence="seq",
    ),
    Record(
        TrainingRun,
        "training_runs",
        ("id",),
        indexes={"all": Index(()), "by_entity": Index(("entity",)), "by_session": Index(("session_id",))},
        sequence="seq",
    ),
    Record(
        RunCommand,
        "run_commands",
        ("run_id", "number"),
        indexes={
            "all": Index((), ("run_id", "number")),
            "by_run": Index(("run_id",), ("number",)),
            "by_entity": Index(("entity",), ("run_id", "number")),
        },
        artifacts=lambda command: artifacts_in(command.body, command.answer),
        texts=KEPT,
    ),
    Record(
        RunWeights,
        "run_weights",
        ("id",),
        indexes={
            "all": Index(()),
            "by_entity": Index(("entity",)),
            "by_run": Index(("run_id",)),
            "by_expiry": Index(("entity",), ("expires_at",)),
        },
        sequence="seq",
        artifacts=lambda weights: digests_of(weights.state.values()),
    ),
    Record(
        SamplingSession,
        "samplers",
        ("id",),
        indexes={"by_entity": Index(("entity",)), "by_session": Index(("session_id",))},
        sequence="seq",
    ),
    Record(
        Sample,
        "samples",
        ("id",),
        indexes={"all": Index(()), "by_entity": Index(("entity",))},
        sequence="seq",
        artifacts=lambda sample: artifacts_in(sample.answer),
        texts=KEPT,
    ),
)
