"""Training jobs, their events and training data as the clients of the training interface know them."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_type_hints

import attrs

from modelyard.domain.job import JobStatus
from modelyard.domain.training_config import DistillOptions, DPOOptions, RLOptions, SFTOptions, TrainingConfig
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import ID, Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.body_schemas import NeedsBody
from modelyard.http.listing import PageObject, page_class
from modelyard.http.message import answering, constant

T = TypeVar("T")
Config = type[TrainingConfig]
EventType = Literal["training_started", "gradient_step", "training_round", "training_ended", "training_failed"]

# ---- requests


_AMOUNT, RATE, _COUNT = {"minimum": 0}, {"exclusiveMinimum": 0}, {"minimum": 1}
_Rate = Annotated[float, Within(0)]
_SHARE = {"schema": {"minimum": 0, "maximum": 1}}
_RATES = {"described_as": _Rate | Sequence[_Rate] | None, "schema": {"minItems": 1}}
_BOUNDS: Mapping[str, Mapping[str, Any]] = {
    "epsilon": _AMOUNT,
    "epsilon_high": _AMOUNT,
    "max_negative_advantage_importance_sampling_weight": _AMOUNT,
    "kimi_k2_tau": _AMOUNT,
    "advantage_balance": {"minimum": -1, "maximum": 1},
    "truncated_importance_sampling": _AMOUNT,
    "kl_penalty_coef": _AMOUNT,
    "kl_penalty_reference_step": _AMOUNT,
    "packed_sequence_length": _COUNT,
    "batch_size": _COUNT,
    "epochs": {"minimum": 1, "maximum": 100},
    "beta": RATE,
    "label_smoothing": {"minimum": 0, "exclusiveMaximum": 0.5},
}

_WITHOUT_EFFECT = frozenset({"plot_tensors", "metric_logging", "logprob_calculation_chunk_size"})
_NEUTRAL_VALUES = {"kl_penalty_source": "current_learner"}
_NOTHING = [{"type": "null"}, {"type": "integer", "enum": [0]}, {"type": "boolean", "enum": [False]}]


OTHER_OPTIONS: Mapping[str, Any] = {
    "additionalProperties": {"anyOf": _NOTHING},
    "patternProperties": {
        f"^(?:{'|'.join(sorted(_WITHOUT_EFFECT))})$": {"description": "Changes nothing."},
        **{f"^{name}$": {"anyOf": [*_NOTHING, {"enum": [value]}]} for name, value in _NEUTRAL_VALUES.items()},
    },
}

_OWN = {**OTHER_OPTIONS, "additionalProperties": {"description": "An option of the base model's trainer, or nothing."}}


def fields_of(options: type, **described: Mapping[str, Any]) -> Callable[[type, list[Any]], list[Any]]:
    """Give a class a field for each keyword of a training method; None, the default, means the method's default."""
    fields = {
        name: attrs.field(default=None, type=kind, metadata=described.get(name) or {"schema": _BOUNDS.get(name, {})})
        for name, kind in get_type_hints(options).items()
    }
    made = attrs.make_class(options.__name__, fields, frozen=True)
    return lambda cls, own: [*attrs.fields(made)]


@attrs.frozen
class OptionsBody:
    SCHEMA: ClassVar[Mapping[str, Any]] = _OWN
    IGNORED: ClassVar[Any] = ...  # `unsupported` judges them


@attrs.frozen(field_transformer=fields_of(RLOptions, learning_rate={"schema": RATE}))
class RLOptionsBody(OptionsBody):
    """How an RL job trains; every option may be null. Other options are accepted where they change nothing."""


@attrs.frozen
class RLJobCreate:
    """The body that creates an RL job."""

    model_id: str = attrs.field(validator=ID)
    trajectory_groups: tuple[Mapping[str, Any], ...]
    experimental_config: RLOptionsBody | None = None
    needs: NeedsBody | None = None


@attrs.frozen(field_transformer=fields_of(SFTOptions, learning_rate=_RATES))
class SFTOptionsBody(OptionsBody):
    """How an SFT job trains: one learning rate for all batches, or one for each."""


@attrs.frozen
class SFTJobCreate:
    """The body that creates an SFT job on a dataset, named by its URL."""

    model_id: str = attrs.field(validator=ID)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: SFTOptionsBody | None = None
    experimental_config: Mapping[str, Any] | None = attrs.field(default=None, metadata={"schema": OTHER_OPTIONS})
    needs: NeedsBody | None = None


@attrs.frozen(field_transformer=fields_of(DPOOptions, learning_rate=_RATES))
class DPOOptionsBody(OptionsBody):
    """How a DPO job trains: `beta` keeps it near its first checkpoint, `label_smoothing` allows for wrong labels."""


@attrs.frozen
class DPOJobCreate:
    """The body that creates a DPO job on a dataset of preferences, named by its URL."""

    model_id: str = attrs.field(validator=ID)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: DPOOptionsBody | None = None
    needs: NeedsBody | None = None


@attrs.frozen(field_transformer=fields_of(DistillOptions, learning_rate=_RATES, beta=_SHARE))
class DistillOptionsBody(OptionsBody):
    """How a model learns from its teacher: `beta` is 0 for KL(teacher || model), 1 for KL(model || teacher)."""


@attrs.frozen
class DistillJobCreate:
    """The body that creates a distillation job on a dataset of answers that a teacher gave or scored."""

    model_id: str = attrs.field(validator=ID)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: DistillOptionsBody | None = None
    needs: NeedsBody | None = None


def rl_request(body: Any, own: Config = TrainingConfig) -> RLJobCreate:
    return structured(RLJobCreate, body, unsupported(body, "experimental_config", RLOptionsBody, own))


def sft_request(body: Any, own: Config = TrainingConfig) -> SFTJobCreate:
    problems = [*unsupported(body, "config", SFTOptionsBody, own), *unsupported(body, "experimental_config")]
    return structured(SFTJobCreate, body, problems)


def dpo_request(body: Any, own: Config = TrainingConfig) -> DPOJobCreate:
    return structured(DPOJobCreate, body, unsupported(body, "config", DPOOptionsBody, own))


def distill_request(body: Any, own: Config = TrainingConfig) -> DistillJobCreate:
    return structured(DistillJobCreate, body, unsupported(body, "config", DistillOptionsBody, own))


def options_of(options: OptionsBody | None, sent: Any = None, own: Config = TrainingConfig) -> dict[str, Any]:
    """Return the options of a body, and those that were sent and only a trainer's configuration `own` has."""
    given = {} if options is None else attrs.asdict(options, recurse=False)
    more = {name: one for name, one in (sent or {}).items() if name in attrs.fields_dict(own)}
    return {name: value for name, value in {**more, **given}.items() if value is not None}


def structured(cls: type[T], body: Any, problems: list[Problem]) -> T:
    try:
        request = structure_exactly(cls, body, "body")
    except InvalidInput as wrong:
        raise InvalidInput([*wrong.problems, *problems]) from None
    if problems:
        raise InvalidInput(problems)
    return request


def unsupported(body: Any, name: str, supported: type | None = None, own: Config = TrainingConfig) -> list[Problem]:
    options = body.get(name) if isinstance(body, dict) else None
    if not isinstance(options, dict):
        return []
    known = {field.name for one in (supported, own) if one is not None for field in attrs.fields(one)}
    return [
        Problem(
            ("body", name, option),
            f"is not supported{own.hint(option, known) or '; leave it out to train without it'}",
            "unsupported_option",
        )
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
    """A training job. `step` is that of the checkpoint that it made, `config` the configuration in force. Of a loop,
    `step` is its best checkpoint; `loop_id` is the loop that a job trains for. `stop_reason` says what ended it.

    `queue_position` is how many jobs wait ahead of one that waits, up to 100; `waiting_for` what else it waits for.
    """

    id: str
    object: Literal["training_job"]
    kind: str
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
    loop_id: str | None
    stop_reason: str | None


@attrs.frozen
class TrainingEventObject:
    """An event of a training job. The data of a `gradient_step`, and of a `training_round`, are finite numbers."""

    id: str
    type: EventType
    data: Mapping[str, Any]
    created_at: datetime


@attrs.frozen
class DatasetObject:
    """Uploaded training data: the URL by which a job names them, and the SHA-256 of the rows."""

    url: str
    rows: int
    digest: str


job_object = answering(TrainingJobObject, object=constant("training_job"))
event_object = answering(TrainingEventObject)
dataset_object = answering(DatasetObject)

TrainingJobPage: type[PageObject] = page_class(
    "TrainingJobPage", TrainingJobObject, job_object, "Some training jobs, in the order of their creation."
)
TrainingEventPage: type[PageObject] = page_class(
    "TrainingEventPage", TrainingEventObject, event_object, "Some events of a job, in order."
)
