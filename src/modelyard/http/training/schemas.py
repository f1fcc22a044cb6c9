"""Training jobs, their events and training data as the clients of the training interface know them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, cast

import attrs

from modelyard.domain.job import JobKind, JobStatus
from modelyard.domain.training import Dataset, TrainingEvent, TrainingJob
from modelyard.domain.training_config import AssistantTurns, DPOConfig, ImportanceSamplingLevel, RLConfig, SFTConfig
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import ID, Length
from modelyard.formats.converter import structure
from modelyard.http.listing import PageObject, in_page_order, problems_at

T = TypeVar("T")
EventType = Literal["training_started", "gradient_step", "training_ended", "training_failed"]

# ---- requests


@attrs.frozen
class RLOptionsBody:
    """How an RL job trains; every option may be null. Other options are accepted where they change nothing."""

    learning_rate: float | None = None
    ppo: bool | None = None
    loss_fn: Literal["cispo", "ppo"] | None = None
    epsilon: float | None = None
    epsilon_high: float | None = None
    importance_sampling_level: ImportanceSamplingLevel | None = None
    max_negative_advantage_importance_sampling_weight: float | None = None
    mask_prob_ratio: bool | None = None
    kimi_k2_tau: float | None = None
    advantage_balance: float | None = None
    scale_rewards: bool | None = None
    normalize_advantages: bool | None = None
    precalculate_logprobs: bool | None = None
    truncated_importance_sampling: float | None = None
    kl_penalty_coef: float | None = None
    kl_penalty_reference_step: int | None = None
    packed_sequence_length: int | None = None
    allow_training_without_logprobs: bool | None = None


@attrs.frozen
class RLJobCreate:
    """The body that creates an RL job."""

    model_id: str = attrs.field(validator=ID)
    trajectory_groups: tuple[Mapping[str, Any], ...]
    experimental_config: RLOptionsBody | None = None


@attrs.frozen
class SFTOptions:
    """How an SFT job trains: one learning rate for all batches, or one for each."""

    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int | Literal["auto"] | None = None
    assistant_turns: AssistantTurns | None = None


@attrs.frozen
class SFTJobCreate:
    """The body that creates an SFT job on a dataset, named by its URL."""

    model_id: str = attrs.field(validator=ID)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: SFTOptions | None = None
    experimental_config: Mapping[str, Any] | None = None


@attrs.frozen
class DPOOptions:
    """How a DPO job trains: `beta` keeps it near its first checkpoint, `label_smoothing` allows for wrong labels."""

    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int | Literal["auto"] | None = None
    beta: float | None = None
    label_smoothing: float | None = None


@attrs.frozen
class DPOJobCreate:
    """The body that creates a DPO job on a dataset of preferences, named by its URL."""

    model_id: str = attrs.field(validator=ID)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: DPOOptions | None = None


_WITHOUT_EFFECT = frozenset({"plot_tensors", "metric_logging", "logprob_calculation_chunk_size"})
_NEUTRAL_VALUES = {"kl_penalty_source": "current_learner"}


def rl_request(body: Any) -> tuple[RLJobCreate, RLConfig]:
    """Read the body of an RL job, and resolve its configuration.

    Raises `InvalidInput` naming every problem and unsupported option.
    """
    problems = _unsupported(body, "experimental_config", RLOptionsBody)
    request = _structured(RLJobCreate, body, problems)
    with problems_at("body", "experimental_config"):
        return request, RLConfig.resolve(options_of(request.experimental_config))


def sft_request(body: Any) -> tuple[SFTJobCreate, SFTConfig]:
    """Read the body of an SFT job, and resolve its configuration.

    Raises `InvalidInput` naming every problem and unsupported option.
    """
    problems = [*_unsupported(body, "config", SFTOptions), *_unsupported(body, "experimental_config")]
    request = _structured(SFTJobCreate, body, problems)
    with problems_at("body", "config"):
        return request, SFTConfig.resolve(options_of(request.config))


def dpo_request(body: Any) -> tuple[DPOJobCreate, DPOConfig]:
    """Read the body of a DPO job, and resolve its configuration.

    Raises `InvalidInput` naming every problem.
    """
    request = _structured(DPOJobCreate, body, _unsupported(body, "config", DPOOptions))
    with problems_at("body", "config"):
        return request, DPOConfig.resolve(options_of(request.config))


def options_of(options: RLOptionsBody | SFTOptions | DPOOptions | None) -> dict[str, Any]:
    """Return the options that were given, by name."""
    given = attrs.asdict(options, recurse=False) if options is not None else {}
    return {name: value for name, value in given.items() if value is not None}


def _structured(cls: type[T], body: Any, problems: list[Problem]) -> T:
    try:
        request = structure(cls, body, "body")
    except InvalidInput as wrong:
        raise InvalidInput([*wrong.problems, *problems]) from None
    if problems:
        raise InvalidInput(problems)
    return request


def _unsupported(body: Any, name: str, supported: type | None = None) -> list[Problem]:
    """Find the options that are not supported and would change the training."""
    options = body.get(name) if isinstance(body, dict) else None
    if not isinstance(options, dict):
        return []
    known = {field.name for field in attrs.fields(supported)} if supported is not None else set()
    message = "is not supported; leave it out to train without it"
    return [
        Problem(("body", name, option), message, "unsupported_option")
        for option, value in options.items()
        if option not in known and not _is_neutral(option, value)
    ]


def _is_neutral(option: str, value: Any) -> bool:
    if option == "kl_ref_adapter_path":
        return value is None
    return option in _WITHOUT_EFFECT or value in (None, 0) or value == _NEUTRAL_VALUES.get(option)


# ---- responses


@attrs.frozen
class TrainingJobObject:
    """A training job. `step` is that of the checkpoint that it made, `config` the configuration in force.

    `queue_position` is how many jobs wait ahead of one that waits, up to 100; `waiting_for` what else it waits for.
    """

    id: str
    object: Literal["training_job"]
    kind: JobKind
    model_id: str
    status: JobStatus
    created_at: datetime
    training_start: datetime | None
    training_end: datetime | None
    error_message: str | None
    step: int | None
    metrics: Mapping[str, float]
    attempts: int
    config: Mapping[str, Any]
    progress: int
    total: int | None
    queue_position: int | None
    last_heartbeat: datetime | None
    estimated_end: datetime | None
    waiting_for: str | None

    @classmethod
    def of(cls, job: TrainingJob) -> Self:
        """Describe a training job."""
        shown = {field.name: getattr(job, field.name) for field in attrs.fields(cls) if field.name != "object"}
        return cls(object="training_job", **shown)


@attrs.frozen
class TrainingEventObject:
    """An event of a training job. The data of a `gradient_step` are finite numbers."""

    id: str
    type: EventType
    data: Mapping[str, Any]
    created_at: datetime

    @classmethod
    def of(cls, event: TrainingEvent) -> Self:
        """Describe an event."""
        return cls(event.id, cast(EventType, event.type), event.data, event.created_at)


@attrs.frozen
class DatasetObject:
    """Uploaded training data: the URL by which a job names them, and the SHA-256 of the rows."""

    url: str
    rows: int
    digest: str

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """Describe a dataset."""
        return cls(dataset.url, dataset.rows, dataset.digest)


@attrs.frozen(field_transformer=in_page_order)
class TrainingJobPage(PageObject):
    """Some training jobs, in the order of their creation."""

    data: tuple[TrainingJobObject, ...]


@attrs.frozen(field_transformer=in_page_order)
class TrainingEventPage(PageObject):
    """Some events of a job, in order."""

    data: tuple[TrainingEventObject, ...]
