"""What the clients of the training interface send: models, checkpoints, training jobs and training data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, TypeVar

import attrs

from modelyard.domain.training_config import AssistantTurns, ImportanceSamplingLevel, RLConfig, SFTConfig
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length, Matching
from modelyard.formats.converter import structure
from modelyard.formats.fields import below
from modelyard.formats.json_stream import JsonReader
from modelyard.formats.training_data import dump_group_end, dump_trajectory, group_around, trajectory_of

T = TypeVar("T")

_name = Matching(r"(?!\.+$)[A-Za-z0-9._-]{1,128}", "must be 1 to 128 characters of A-Z a-z 0-9 . _ - and not dots only")
_id = Matching(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", "must be an id, as the creation answered it")


@attrs.frozen
class ModelCreate:
    """The body that creates a model. Without `entity` it is the key's default one."""

    project: str = attrs.field(validator=_name)
    name: str = attrs.field(validator=_name)
    base_model: str = attrs.field(validator=Length(1, 512))
    entity: str | None = attrs.field(default=None, validator=_name)
    return_existing: bool = False


@attrs.frozen
class CheckpointsDelete:
    """The body that deletes checkpoints, all or none of them."""

    steps: tuple[int, ...] = attrs.field(validator=Length(0, 1000))


@attrs.frozen
class LogCreate:
    """The body that logs trajectory groups. `model_id`, if there, is that of the path."""

    trajectory_groups: tuple[Mapping[str, Any], ...]
    split: str = attrs.field(default="train", validator=_name)
    model_id: str | None = attrs.field(default=None, validator=_id)


@attrs.frozen
class RLOptions:
    """How an RL job trains; every option may be null. Options beside these are accepted where they change nothing."""

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

    model_id: str = attrs.field(validator=_id)
    trajectory_groups: tuple[Mapping[str, Any], ...]
    experimental_config: RLOptions | None = None


@attrs.frozen
class SFTOptions:
    """How an SFT job trains: one learning rate for all batches, or one for each."""

    learning_rate: float | tuple[float, ...] | None = None
    batch_size: int | Literal["auto"] | None = None
    assistant_turns: AssistantTurns | None = None


@attrs.frozen
class SFTJobCreate:
    """The body that creates an SFT job on a dataset, named by its URL."""

    model_id: str = attrs.field(validator=_id)
    training_data_url: str = attrs.field(validator=Length(1, 1024))
    config: SFTOptions | None = None
    experimental_config: Mapping[str, Any] | None = None


# ---- requests that are more than their class ------------------------------------------------------------------------

_WITHOUT_EFFECT = frozenset({"plot_tensors", "metric_logging", "logprob_calculation_chunk_size"})
_NEUTRAL_WORDS = {"kl_penalty_source": "current_learner"}


def rl_request(body: Any) -> RLJobCreate:
    """The RL job that is asked for. Raises `InvalidInput` naming every problem, options that we lack among them."""
    problems = _unhonoured(body, "experimental_config", RLOptions)
    request = _structured(RLJobCreate, body, problems)
    with places("body", "experimental_config"):
        RLConfig.resolve(options_of(request.experimental_config))
    return request


def sft_request(body: Any) -> SFTJobCreate:
    """The SFT job that is asked for. Raises `InvalidInput` naming every problem, options that we lack among them."""
    problems = [*_unhonoured(body, "config", SFTOptions), *_unhonoured(body, "experimental_config")]
    request = _structured(SFTJobCreate, body, problems)
    with places("body", "config"):
        SFTConfig.resolve(options_of(request.config))
    return request


def options_of(options: RLOptions | SFTOptions | None) -> dict[str, Any]:
    """The options that were given, by name."""
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


def _unhonoured(body: Any, name: str, honoured: type | None = None) -> list[Problem]:
    """The options that would have to change something, but cannot."""
    options = body.get(name) if isinstance(body, dict) else None
    if not isinstance(options, dict):
        return []
    known = {field.name for field in attrs.fields(honoured)} if honoured is not None else set()
    message = "is not supported here; leave it out, because without it something else would be trained than was asked"
    return [
        Problem(("body", name, option), message, "unsupported_option")
        for option, value in options.items()
        if option not in known and not _is_neutral(option, value)
    ]


def _is_neutral(option: str, value: Any) -> bool:
    if option == "kl_ref_adapter_path":
        return value is None
    return option in _WITHOUT_EFFECT or value in (None, 0) or value == _NEUTRAL_WORDS.get(option)


@contextmanager
def places(*prefix: str, **moved: str) -> Iterator[None]:
    """Give the problems of a use case the places where the client put the values.

    Everything goes below `prefix`, except that a problem of the argument named in `moved` is one of that body member.
    """
    try:
        yield
    except InvalidInput as wrong:
        raise type(wrong)([attrs.evolve(one, loc=_moved(one.loc, prefix, moved)) for one in wrong.problems]) from None


def _moved(loc: tuple[str | int, ...], prefix: tuple[str, ...], moved: Mapping[str, str]) -> tuple[str | int, ...]:
    if loc and loc[0] in moved:
        return ("body", moved[str(loc[0])], *loc[1:])
    return loc if loc[:1] in (("body",), ("query",)) else (*prefix, *loc)


# ---- large bodies --------------------------------------------------------------------------------------------------

_GROUPS, _TRAJECTORIES = "trajectory_groups", "trajectories"


class GroupsBody:
    """A JSON body with trajectory groups, read once, a trajectory at a time."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._reader = JsonReader(chunks, at=("body",))
        self.rest: dict[str, Any] = {}
        """The other members, once all lines are read; the groups are an empty list in it."""

    def lines(self) -> Iterator[bytes]:
        """The groups as lines of `formats.training`. Raises `InvalidInput`, naming group, trajectory and field."""
        for name in self._reader.members():
            if name == _GROUPS and not self._reader.is_null():
                self.rest[name] = []
                for group in self._reader.elements(name):
                    yield from self._group(group)
            else:
                self.rest[name] = self._reader.take(name)
        self._reader.end()

    def _group(self, group: int) -> Iterator[bytes]:
        place = (_GROUPS, group)
        rest: dict[str, Any] = {}
        found = False
        for name in self._reader.members(*place):
            if name == _TRAJECTORIES and not self._reader.is_null():
                found = True
                for member in self._reader.elements(*place, name):
                    yield self._line(lambda data: dump_trajectory(trajectory_of(data)), *place, name, member)
            else:
                rest[name] = self._reader.take(*place, name)
        if not found:
            raise InvalidInput.at("body", *place, _TRAJECTORIES, msg="is required", type="missing")
        yield _at(lambda: dump_group_end(group_around((), rest)), *place)

    def _line(self, write: Callable[[Any], bytes], *place: str | int) -> bytes:
        data = self._reader.take(*place)
        return _at(lambda: write(data), *place)


def _at(write: Callable[[], bytes], *place: str | int) -> bytes:
    try:
        return write()
    except InvalidInput as wrong:
        raise below(wrong, "body", *place) from None
