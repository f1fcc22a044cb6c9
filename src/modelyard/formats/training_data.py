"""Training data as JSON Lines, in the shapes that clients send, read and written a row at a time.

Examples are one line each: `{"messages": [...], "tools": [...]}`. A trajectory group is one line too:
`{"trajectories": [...], "exceptions": [...], ...}`; so that no line need hold a large group, trajectories may stand
before it on lines of their own, and are then not repeated in it. A preference is one line:
`{"messages": [...], "chosen": ..., "rejected": ..., "tools": [...]}`; `messages` is the prompt, each of the answers a
string or an assistant message. Blank lines mean nothing.

Kept of a choice are its message, finish reason, logprobs (without the alternatives), `token_ids` and
`prompt_token_ids`; other extras are dropped.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, Generic, TypeVar

import attrs

from modelyard.domain.completion import FinishReason, Message, Role
from modelyard.domain.logprobs import TokenLogprob
from modelyard.domain.training import (
    Example,
    History,
    Preference,
    RolloutError,
    SampledChoice,
    Trajectory,
    TrajectoryGroup,
)
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import message_object
from modelyard.formats.chat.recorded import recorded_message, recorded_tool
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.fields import each, mapping, natural, number, optional, refused, required, text, whole
from modelyard.formats.json import checked_dumps, loads

T = TypeVar("T")

MAX_LINE = 256 * 2**20
TOKEN_ID = "token_id:"  # noqa: S105 - how some servers spell a token by its id
_REASONS = {reason.value: reason for reason in FinishReason} | {"function_call": FinishReason.TOOL_CALLS}


@attrs.frozen
class RowFormat(Generic[T]):
    """How rows of one kind are read and written: as a value, from plain data, from and to lines of a file.

    `of` raises `InvalidInput` located below the row; `read` at ("line", <number from 1>, <field>, ...).
    """

    value: type[T]
    of: Callable[[Mapping[str, Any]], T]
    read: Callable[[BinaryIO], Iterator[T]]
    dump: Callable[[T], bytes]


# ---- files -------------------------------------------------------------------------------------------------------


def read_examples(file: BinaryIO) -> Iterator[Example]:
    """The examples of a file. Raises `InvalidInput` at ("line", <number from 1>, <field>, ...)."""
    return (_at_line(place, example_of, row) for place, row in _rows(file))


def read_preferences(file: BinaryIO) -> Iterator[Preference]:
    """Read the preferences of a file. Raises `InvalidInput` at ("line", <number from 1>, <field>, ...)."""
    return (_at_line(place, preference_of, row) for place, row in _rows(file))


def read_dataset(file: BinaryIO) -> Iterator[Example | Preference]:
    """Read rows of the format that the first one has. Raises `InvalidInput` as the readers of the formats do."""
    parse: Callable[[Any], Example | Preference] | None = None
    for place, row in _rows(file):
        parse = parse or _parser_of(row)
        yield _at_line(place, parse, row)


def read_groups(file: BinaryIO) -> Iterator[TrajectoryGroup]:
    """The trajectory groups of a file. Raises `InvalidInput` at ("line", <number from 1>, <field>, ...)."""
    waiting: list[Trajectory] = []
    place = 0
    for place, row in _rows(file):
        if isinstance(row, Mapping) and "messages_and_choices" in row:
            waiting.append(_at_line(place, trajectory_of, row))
        else:
            group = _at_line(place, group_of, row)
            yield attrs.evolve(group, trajectories=(*waiting, *group.trajectories)) if waiting else group
            waiting = []
    if waiting:
        raise InvalidInput.at("line", place, msg="the file ends before the group of this trajectory; it was cut off")


def _rows(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    for place, line in enumerate(iter(lambda: file.readline(MAX_LINE + 1), b""), start=1):
        if len(line) > MAX_LINE:
            raise InvalidInput.at("line", place, msg=f"must not be longer than {MAX_LINE} bytes")
        if not line.isspace():
            yield place, loads(line, at=("line", place))


def _at_line(place: int, parse: Callable[[Any], T], row: Any) -> T:
    try:
        return parse(row)
    except InvalidInput as wrong:
        raise wrong.below("line", place) from None


def dump_example(example: Example) -> bytes:
    """The line of an example. Raises `InvalidInput` when it holds what JSON cannot say."""
    row: dict[str, Any] = {"messages": [message_object(message) for message in example.messages]}
    if example.tools:
        row["tools"] = [tool_object(tool) for tool in example.tools]
    return _line(row)


def dump_preference(preference: Preference) -> bytes:
    """Write the line of a preference. Raises `InvalidInput` when it holds what JSON cannot say."""
    row: dict[str, Any] = {
        "messages": [message_object(message) for message in preference.messages],
        "chosen": message_object(preference.chosen),
        "rejected": message_object(preference.rejected),
    }
    if preference.tools:
        row["tools"] = [tool_object(tool) for tool in preference.tools]
    return _line(row)


def dump_group(group: TrajectoryGroup) -> bytes:
    """The lines of a group: one for each trajectory, and its own. Raises `InvalidInput` as `dump_example` does."""
    return b"".join(map(dump_trajectory, group.trajectories)) + dump_group_end(group)


def dump_trajectory(trajectory: Trajectory) -> bytes:
    """The line of a trajectory, which must be followed by those of its group."""
    return _line(_plain_trajectory(trajectory))


def dump_group_end(group: TrajectoryGroup) -> bytes:
    """The line of a group whose trajectories stand on lines before it."""
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


# ---- examples ----------------------------------------------------------------------------------------------------


def example_of(value: Mapping[str, Any]) -> Example:
    """The example in plain data. Raises `InvalidInput`, located below it."""
    data = mapping(value)
    messages = required(lambda found: each(recorded_message, found), data, "messages")
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise InvalidInput.at("messages", msg="has no assistant message, so there is nothing to learn from it")
    return Example(messages, optional(_tools, data, "tools", ()))


def _tools(value: Any) -> tuple[Any, ...]:
    return each(recorded_tool, value)


# ---- preferences -------------------------------------------------------------------------------------------------


def preference_of(value: Mapping[str, Any]) -> Preference:
    """Read a preference from plain data. Raises `InvalidInput`, located below it."""
    data = mapping(value)
    return Preference(
        messages=required(lambda found: each(recorded_message, found), data, "messages"),
        chosen=required(_answer, data, "chosen"),
        rejected=required(_answer, data, "rejected"),
        tools=optional(_tools, data, "tools", ()),
    )


def _answer(value: Any) -> Message:
    if not isinstance(value, str | Mapping):
        raise refused("must be a string or an assistant message", "string_type")
    return _assistant_message({"content": value} if isinstance(value, str) else value)


def _parser_of(row: Any) -> Callable[[Any], Example | Preference]:
    return preference_of if isinstance(row, Mapping) and row.keys() & {"chosen", "rejected"} else example_of


# ---- trajectory groups -------------------------------------------------------------------------------------------


def group_of(value: Mapping[str, Any]) -> TrajectoryGroup:
    """The trajectory group in plain data. Raises `InvalidInput`, located below it."""
    data = mapping(value)
    return group_around(required(lambda found: each(trajectory_of, found), data, "trajectories"), data)


def group_around(trajectories: tuple[Trajectory, ...], data: Mapping[str, Any]) -> TrajectoryGroup:
    """The group of these trajectories, with the other members that are found in `data`. Raises `InvalidInput`."""
    return TrajectoryGroup(
        trajectories=trajectories,
        exceptions=optional(lambda found: each(_rollout_error, found), data, "exceptions", ()),
        metadata=optional(mapping, data, "metadata", {}),
        metrics=optional(mapping, data, "metrics", {}),
        logs=optional(lambda found: each(text, found), data, "logs", ()),
    )


def trajectory_of(value: Any) -> Trajectory:
    """The trajectory in plain data. Raises `InvalidInput`, located below it."""
    data = mapping(value)
    further = optional(lambda found: each(_history, found), data, "additional_histories", ())
    return Trajectory(
        histories=(_history(data), *further),
        reward=optional(number, data, "reward", 0.0),
        metrics=optional(mapping, data, "metrics", {}),
        metadata=optional(mapping, data, "metadata", {}),
        logs=optional(lambda found: each(text, found), data, "logs", ()),
        initial_policy_version=optional(whole, data, "initial_policy_version", None),
        final_policy_version=optional(whole, data, "final_policy_version", None),
    )


def _rollout_error(value: Any) -> RolloutError:
    data = mapping(value)
    return RolloutError(*(optional(text, data, name, "") for name in ("type", "message", "traceback")))


def _history(value: Any) -> History:
    data = mapping(value)
    items = required(lambda found: each(_item, found), data, "messages_and_choices")
    return History(items, optional(_tools, data, "tools", ()))


def _item(value: Any) -> Message | SampledChoice:
    """A choice has a `message`, a message has a `role`."""
    data = mapping(value)
    return _choice(data) if "message" in data else recorded_message(data)


def _choice(data: Mapping[str, Any]) -> SampledChoice:
    logprobs = optional(_logprobs, data, "logprobs", None)
    ids = optional(_ids, data, "token_ids", ()) or _spelled_ids(logprobs or ())
    if logprobs is not None and ids and len(ids) != len(logprobs):
        msg = f"must have one id for each of the {len(logprobs)} logprobs, not {len(ids)}"
        raise InvalidInput.at("token_ids", msg=msg)
    return SampledChoice(
        message=required(_assistant_message, data, "message"),
        finish_reason=optional(_reason, data, "finish_reason", FinishReason.STOP),
        logprobs=logprobs,
        token_ids=ids,
        prompt_token_ids=optional(_ids, data, "prompt_token_ids", ()),
    )


def _assistant_message(value: Any) -> Message:
    message = recorded_message({"role": "assistant", **mapping(value)})
    if message.role is not Role.ASSISTANT:
        raise InvalidInput.at("role", msg="must be 'assistant' in a choice", type="literal_error")
    return message


def _reason(value: Any) -> FinishReason:
    reason = _REASONS.get(text(value))
    if reason is None:
        raise refused(f"must be one of {', '.join(_REASONS)}", "literal_error")
    return reason


def _ids(value: Any) -> tuple[int, ...]:
    return each(natural, value)


def _logprobs(value: Any) -> tuple[TokenLogprob, ...] | None:
    return optional(lambda found: each(_token, found), mapping(value), "content", None)


def _token(value: Any) -> TokenLogprob:
    data = mapping(value)
    logprob = required(number, data, "logprob")
    if logprob > 0:
        raise InvalidInput.at("logprob", msg="must be 0 or less", type="less_than_equal")
    return TokenLogprob(required(text, data, "token"), logprob, optional(_bytes, data, "bytes", None))


def _bytes(value: Any) -> tuple[int, ...]:
    try:
        return tuple(bytes(each(whole, value)))
    except ValueError:
        raise refused("must be numbers from 0 to 255", "value_error") from None


def _spelled_ids(logprobs: tuple[TokenLogprob, ...]) -> tuple[int, ...]:
    """The ids in tokens of the form `token_id:NNN`, if all have it."""
    numbers = [entry.token.removeprefix(TOKEN_ID) for entry in logprobs if entry.token.startswith(TOKEN_ID)]
    known = numbers and len(numbers) == len(logprobs) and all(n.isascii() and n.isdigit() for n in numbers)
    return tuple(map(int, numbers)) if known else ()


def _plain_trajectory(trajectory: Trajectory) -> dict[str, Any]:
    first, *further = trajectory.histories or (History(()),)
    return {
        **_plain_history(first),
        "additional_histories": [_plain_history(history) for history in further],
        "reward": trajectory.reward,
        "initial_policy_version": trajectory.initial_policy_version,
        "final_policy_version": trajectory.final_policy_version,
        "metrics": trajectory.metrics,
        "metadata": trajectory.metadata,
        "logs": trajectory.logs,
    }


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
    }


def _plain_token(entry: TokenLogprob) -> dict[str, Any]:
    return {"token": entry.token, "logprob": entry.logprob, "bytes": entry.bytes}


def _known_ids(logprobs: tuple[TokenLogprob, ...]) -> tuple[int, ...]:
    """The ids that a backend of this process gave with its logprobs, if it gave all."""
    ids = [entry.id for entry in logprobs if entry.id is not None]
    return tuple(ids) if len(ids) == len(logprobs) else ()


EXAMPLES = RowFormat(Example, example_of, read_examples, dump_example)
PREFERENCES = RowFormat(Preference, preference_of, read_preferences, dump_preference)
GROUPS = RowFormat(TrajectoryGroup, group_of, read_groups, dump_group)
DATASETS: RowFormat[Any] = RowFormat(
    Example | Preference,  # type: ignore[arg-type]  # isinstance takes it
    lambda row: _parser_of(row)(row),
    read_dataset,
    lambda row: dump_preference(row) if isinstance(row, Preference) else dump_example(row),
)
"""What a dataset may hold: rows of any method that takes them in batches."""
