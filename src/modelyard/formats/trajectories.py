"""Trajectory groups as JSON, in the shape that clients send: read strictly, and written as lines of a file. A choice is
the recorded answer of a server. It keeps its message, finish reason, logprobs (without the alternatives), `token_ids`
and `prompt_token_ids`, and `teacher_logprobs` with their alternatives; what servers add of their own is dropped."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType
from typing import Any, ClassVar

import attrs

from modelyard.domain.completion import FinishReason, Message, Role, TokenLogprob
from modelyard.domain.training import History, RolloutError, SampledChoice, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput, located_at, nearest
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_object, message_of, tool_of
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import checked_dumps, without_nulls

TEACHER = "teacher_logprobs"
TOKEN_ID = "token_id:"  # noqa: S105 - how some servers spell a token by its id
_REASONS = {reason.value: reason for reason in FinishReason} | {"function_call": FinishReason.TOOL_CALLS}


# ---- the shape ---------------------------------------------------------------------------------------------------


@attrs.frozen
class _OfServers:
    """The members of answers that servers add as they like: any, unless it is one of ours, misspelt, or says what to
    train."""

    ours: Collection[str]
    known: Collection[str] = ()

    def __contains__(self, name: str) -> bool:
        return name in self.known or not (nearest(name, self.ours) or nearest(name, _WISHES, 0.8))


_WISHES = ("weight", "loss_weight", "loss_mask", "train", "trainable")


def _check_finite(instance: object, attribute: Any, value: float) -> None:
    if not math.isfinite(value):
        raise InvalidInput.at(msg="must be a finite number", type="finite_number")


MAX_REWARD = 1e100
"""Far above it, the squares of rewards are beyond a float."""


def _read_reward(value: Any) -> float:
    """Read a number, or true or false as 1 or 0; null is the default, 0."""
    if type(value) not in (int, float, bool, NoneType):
        raise InvalidInput.at(msg="must be a number, or true or false", type="float_type")
    if not abs(value or 0) <= MAX_REWARD:
        raise InvalidInput.at(msg=f"must be a number from {-MAX_REWARD:g} to {MAX_REWARD:g}", type="finite_number")
    return float(value or 0)


def _check_logprob(instance: object, attribute: Any, value: float) -> None:
    if not -math.inf < value <= 0:
        _check_finite(instance, attribute, value)
        raise InvalidInput.at(msg="must be 0 or less", type="less_than_equal")


def _check_bytes(instance: object, attribute: Any, value: tuple[int, ...] | None) -> None:
    try:
        bytes(value or ())
    except ValueError:
        raise ValueError("must be numbers from 0 to 255") from None


def _check_ids(instance: object, attribute: Any, value: tuple[int, ...]) -> None:
    if value and min(value) < 0:
        at = next(at for at, token in enumerate(value) if token < 0)
        raise InvalidInput.at(at, msg="must be 0 or more", type="greater_than_equal")


def _check_id(instance: object, attribute: Any, value: int) -> None:
    if value < 0:
        raise InvalidInput.at(msg="must be 0 or more", type="greater_than_equal")


def _check_top_ids(instance: object, attribute: Any, value: Mapping[str, float]) -> None:
    for token, logprob in value.items():
        if not (token.isascii() and token.isdigit() and len(token) < 16):
            raise InvalidInput.at(token, msg="must be the id of a token")
        with located_at(token):
            _check_logprob(instance, attribute, logprob)


def _read_reason(value: Any) -> FinishReason:
    if type(value) is not str:
        raise InvalidInput.at(msg="must be a string", type="string_type")
    if value not in _REASONS:
        raise InvalidInput.at(msg=f"must be one of {', '.join(_REASONS)}", type="literal_error")
    return _REASONS[value]


@attrs.frozen
class _AnswerMessage(RecordedMessage):
    """The message of a choice."""

    IGNORED: ClassVar[Any] = _OfServers([field.name for field in attrs.fields(RecordedMessage)], ("audio",))


def _read_answer(value: Any) -> Message:
    if value is None:
        raise InvalidInput.at(msg="is required", type="missing")
    plain = {"role": "assistant", **value} if isinstance(value, dict) else value
    return check_answer(message_of(structure_exactly(_AnswerMessage, plain)))


def check_answer(message: Message) -> Message:
    if message.role is not Role.ASSISTANT:
        raise InvalidInput.at("role", msg="must be 'assistant' in a choice", type="literal_error")
    return message


@attrs.define(on_setattr=None)
class _Token:
    IGNORED: ClassVar[Any] = ...

    token: str
    logprob: float = attrs.field(validator=_check_logprob)
    bytes: tuple[int, ...] | None = attrs.field(default=None, validator=_check_bytes)


@attrs.frozen
class _Logprobs:
    IGNORED: ClassVar[Any] = _OfServers(("content",), ("refusal",))

    content: tuple[_Token, ...] | None = None


@attrs.define(on_setattr=None)
class _Named(_Token):
    IGNORED: ClassVar[Any] = ...

    id: int | None = attrs.field(default=None, validator=attrs.validators.optional(_check_id))

    @property
    def entry(self) -> TokenLogprob:
        known = self.id if self.id is not None else next(iter(_spelled_ids((self,))), None)
        return TokenLogprob(self.token, self.logprob, self.bytes, id=known)


@attrs.define(on_setattr=None)
class _Scored(_Named):
    """A token with its alternatives. `top_ids` are those of which the ids are known, in a form that is a tenth as long:
    a line has many."""

    top_logprobs: tuple[_Named, ...] = ()
    top_ids: Mapping[str, float] = attrs.field(factory=dict, validator=_check_top_ids)

    @property
    def entry(self) -> TokenLogprob:
        by_id = [TokenLogprob("", logprob, id=int(token)) for token, logprob in self.top_ids.items()]
        return attrs.evolve(super().entry, top=(*(one.entry for one in self.top_logprobs), *by_id))


@attrs.frozen
class _Teacher:
    """The log-probabilities of a teacher, in the form of those of an answer, where a token may have its `id`."""

    IGNORED: ClassVar[Any] = ("refusal",)

    content: tuple[_Scored, ...] | None = None


_OF_CLIENTS = ("art_completion_tokens", "art_completion_logprobs")
"""What the RL client keeps in a choice for itself, besides the same under their usual names."""


@attrs.frozen
class _Choice:
    IGNORED: ClassVar[Any] = _OfServers(
        ("message", "finish_reason", "logprobs", "token_ids", "prompt_token_ids", TEACHER),
        ("index", "stop_reason", "native_finish_reason", "prompt_logprobs", *_OF_CLIENTS),
    )

    message: Message = attrs.field(metadata={"parser": _read_answer})
    finish_reason: FinishReason = attrs.field(default=FinishReason.STOP, metadata={"parser": _read_reason})
    logprobs: _Logprobs = _Logprobs()
    token_ids: tuple[int, ...] = attrs.field(default=(), validator=_check_ids)
    prompt_token_ids: tuple[int, ...] = attrs.field(default=(), validator=_check_ids)
    teacher_logprobs: _Teacher = _Teacher()

    @property
    def ids(self) -> tuple[int, ...]:
        return self.token_ids or _spelled_ids(self.logprobs.content or ())

    def __attrs_post_init__(self) -> None:
        entries = self.logprobs.content
        if entries is not None and self.ids and len(self.ids) != len(entries):
            msg = f"must have one id for each of the {len(entries)} logprobs, not {len(self.ids)}"
            raise InvalidInput.at("token_ids", msg=msg)
        scored = self.teacher_logprobs.content
        if scored is not None and self.ids and len(self.ids) != len(scored):
            msg = f"has {len(scored)} tokens for {len(self.ids)} token_ids; one each is due"
            raise InvalidInput.at(TEACHER, msg=msg)


@attrs.frozen
class _History:
    IGNORED: ClassVar[Mapping[str, str]] = {"start_time": "when the rollout began", "end_time": "when it ended"}

    messages_and_choices: tuple[_Choice | RecordedMessage, ...]
    tools: tuple[RecordedTool, ...] = ()


@attrs.frozen
class _Trajectory(_History):
    additional_histories: tuple[_History, ...] = ()
    reward: float = attrs.field(default=0.0, metadata={"parser": _read_reward})
    metrics: Mapping[str, Any] = attrs.field(factory=dict)
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    logs: tuple[str, ...] = ()
    initial_policy_version: int | None = None
    final_policy_version: int | None = None


@attrs.frozen
class _RolloutError:
    type: str = ""
    message: str = ""
    traceback: str = ""


@attrs.frozen
class _GroupEnd:
    exceptions: tuple[_RolloutError, ...] = ()
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    metrics: Mapping[str, Any] = attrs.field(factory=dict)
    logs: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class _Group(_GroupEnd):
    trajectories: tuple[Any, ...]


# ---- read --------------------------------------------------------------------------------------------------------


def trajectory_of(value: Any) -> Trajectory:
    return _trajectory(structure_exactly(_Trajectory, without_nulls(value)))


def group_of(value: Mapping[str, Any], read: Callable[[Any], Trajectory] = trajectory_of) -> TrajectoryGroup:
    given, trajectories = structure_exactly(_Group, without_nulls(value)), list[Trajectory]()
    for number, one in enumerate(given.trajectories):
        with located_at("trajectories", number):
            trajectories.append(read(one))
    return _group(tuple(trajectories), given)


def group_around(trajectories: tuple[Trajectory, ...], data: Mapping[str, Any]) -> TrajectoryGroup:
    return _group(trajectories, structure_exactly(_GroupEnd, data))


def _group(trajectories: tuple[Trajectory, ...], read: _GroupEnd) -> TrajectoryGroup:
    exceptions = tuple(RolloutError(one.type, one.message, one.traceback) for one in read.exceptions)
    return TrajectoryGroup(trajectories, exceptions, read.metadata, read.metrics, read.logs)


def _trajectory(read: _Trajectory) -> Trajectory:
    return Trajectory(
        histories=tuple(map(_history, (read, *read.additional_histories))),
        reward=read.reward,
        metrics=read.metrics,
        metadata=read.metadata,
        logs=read.logs,
        initial_policy_version=read.initial_policy_version,
        final_policy_version=read.final_policy_version,
    )


def _history(read: _History) -> History:
    return History(tuple(map(_item, read.messages_and_choices)), tuple(map(tool_of, read.tools)))


def _item(read: _Choice | RecordedMessage) -> Message | SampledChoice:
    if isinstance(read, RecordedMessage):
        return message_of(read)
    entries = read.logprobs.content
    logprobs = None if entries is None else tuple(TokenLogprob(one.token, one.logprob, one.bytes) for one in entries)
    scored = read.teacher_logprobs.content
    teacher = None if scored is None else tuple([one.entry for one in scored])
    return SampledChoice(read.message, read.finish_reason, logprobs, read.ids, read.prompt_token_ids, teacher)


def choice_of(value: Any) -> SampledChoice:
    """Read the choice of a recorded answer. Raises `InvalidInput`."""
    read = _item(structure_exactly(_Choice, value))
    assert isinstance(read, SampledChoice)
    return read


def _spelled_ids(entries: Sequence[_Token]) -> tuple[int, ...]:
    numbers = [entry.token.removeprefix(TOKEN_ID) for entry in entries if entry.token.startswith(TOKEN_ID)]
    known = numbers and len(numbers) == len(entries) and all(n.isascii() and n.isdigit() for n in numbers)
    return tuple(map(int, numbers)) if known else ()


# ---- written -----------------------------------------------------------------------------------------------------


def dump_group(group: TrajectoryGroup) -> bytes:
    lines = []
    for number, trajectory in enumerate(group.trajectories):
        with located_at("trajectories", number):
            lines.append(dump_trajectory(trajectory))
    return b"".join(lines) + dump_group_end(group)


def dump_trajectory(trajectory: Trajectory) -> bytes:
    return _line(_plain_trajectory(trajectory))


def dump_group_end(group: TrajectoryGroup) -> bytes:
    return _line(
        {
            "trajectories": [],
            "exceptions": [attrs.asdict(error) for error in group.exceptions],
            "metadata": group.metadata,
            "metrics": group.metrics,
            "logs": group.logs,
        }
    )


def _line(row: dict[str, Any]) -> bytes:
    return checked_dumps(row) + b"\n"


def _plain_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    first, *further = trajectory.histories or (History(()),)
    return {
        **_plain_history(first),
        "additional_histories": [_plain_history(history) for history in further],
        "reward": _plain_reward(trajectory.reward),
        "initial_policy_version": trajectory.initial_policy_version,
        "final_policy_version": trajectory.final_policy_version,
        "metrics": trajectory.metrics,
        "metadata": trajectory.metadata,
        "logs": trajectory.logs,
    }


def _plain_reward(reward: Any) -> Any:
    """Return the number of whatever is a number to Python; anything else as it is, to be refused."""
    try:
        return float(reward) if hasattr(type(reward), "__float__") else reward
    except (TypeError, ValueError, ArithmeticError):
        return str(reward)


def _plain_history(history: History) -> dict[str, Any]:
    items = [message_object(item) if isinstance(item, Message) else _plain_choice(item) for item in history.items]
    return {"messages_and_choices": items, "tools": [tool_object(tool) for tool in history.tools]}


def _plain_choice(choice: SampledChoice) -> dict[str, Any]:
    return {
        "index": 0,
        "finish_reason": choice.finish_reason.value,
        "message": message_object(choice.message),
        "logprobs": None if choice.logprobs is None else {"content": [_plain_token(one) for one in choice.logprobs]},
        "token_ids": choice.token_ids or _known_ids(choice.logprobs or ()),
        "prompt_token_ids": choice.prompt_token_ids,
        **({} if choice.teacher is None else {TEACHER: {"content": [_plain_scored(one) for one in choice.teacher]}}),
    }


def _plain_scored(entry: TokenLogprob) -> dict[str, Any]:
    plain = {**_plain_token(entry), "id": entry.id}
    if not entry.top:
        return plain
    by_id = {str(one.id): one.logprob for one in entry.top}
    if len(by_id) == len(entry.top) and "None" not in by_id:
        return {**plain, "top_ids": by_id}
    return {**plain, "top_logprobs": [_plain_scored(one) for one in entry.top]}


def _plain_token(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes}


def _known_ids(logprobs: tuple[TokenLogprob, ...]) -> tuple[int, ...]:
    ids = [entry.id for entry in logprobs if entry.id is not None]
    return tuple(ids) if len(ids) == len(logprobs) else ()
