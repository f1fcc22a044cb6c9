"""Training data as JSON Lines, in the shapes that clients send, read and written a row at a time. Examples are one line
each: `{"messages": [...], "tools": [...]}`. A trajectory group is one line too: `{"trajectories": [...], "exceptions":
[...], ...}`; so that no line need hold a large group, trajectories may stand before it on lines of their own, and are
then not repeated in it. A preference is one line: `{"messages": [...], "chosen": ..., "rejected": ..., "tools":
[...]}`; `messages` is the prompt, each of the answers a string or an assistant message. Examples and preferences may
have `"sources": [...]`, strings that say what a row was made from. Blank lines mean nothing."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, Generic, TypeVar

import attrs

from modelyard.domain.completion import Message, Role
from modelyard.domain.training import Example, Preference, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_object, message_of, tool_of
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.converter import structure
from modelyard.formats.json import checked_dumps, loads, without_nulls
from modelyard.formats.trajectories import dump_group, group_of, read_answer, trajectory_of

T = TypeVar("T")

MAX_LINE = 256 * 2**20


@attrs.frozen
class RowFormat(Generic[T]):
    """How rows of one kind are read and written: as a value, from plain data, from and to lines of a file. `of` raises
    `InvalidInput` located below the row; `read` at ("line", <number from 1>, <field>, ...)."""

    value: type[T]
    of: Callable[[Mapping[str, Any]], T]
    read: Callable[[BinaryIO], Iterator[T]]
    dump: Callable[[T], bytes]


# ---- files -------------------------------------------------------------------------------------------------------


def read_examples(file: BinaryIO) -> Iterator[Example]:
    return (_at_line(place, example_of, row) for place, row in _rows(file))


def read_preferences(file: BinaryIO) -> Iterator[Preference]:
    return (_at_line(place, preference_of, row) for place, row in _rows(file))


def read_dataset(file: BinaryIO) -> Iterator[Example | Preference]:
    parse: Callable[[Any], Example | Preference] | None = None
    for place, row in _rows(file):
        parse = parse or _parser_of(row)
        yield _at_line(place, parse, row)


def read_groups(file: BinaryIO) -> Iterator[TrajectoryGroup]:
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
    row: dict[str, Any] = {"messages": [message_object(message) for message in example.messages]}
    if example.tools:
        row["tools"] = [tool_object(tool) for tool in example.tools]
    if example.sources:
        row["sources"] = list(example.sources)
    return checked_dumps(row) + b"\n"


def dump_preference(preference: Preference) -> bytes:
    row: dict[str, Any] = {
        "messages": [message_object(message) for message in preference.messages],
        "chosen": message_object(preference.chosen),
        "rejected": message_object(preference.rejected),
    }
    if preference.tools:
        row["tools"] = [tool_object(tool) for tool in preference.tools]
    if preference.sources:
        row["sources"] = list(preference.sources)
    return checked_dumps(row) + b"\n"


# ---- examples ----------------------------------------------------------------------------------------------------


@attrs.frozen
class _Example:
    messages: tuple[RecordedMessage, ...]
    tools: tuple[RecordedTool, ...] = ()


def example_of(value: Mapping[str, Any]) -> Example:
    read = structure(_Example, without_nulls(value))
    messages = tuple(map(message_of, read.messages))
    if not any(message.role is Role.ASSISTANT for message in messages):
        raise InvalidInput.at("messages", msg="has no assistant message, so there is nothing to learn from it")
    return Example(messages, tuple(map(tool_of, read.tools)), sources_of(value))


def sources_of(row: Any) -> tuple[str, ...]:
    sources = row.get("sources") if isinstance(row, Mapping) else None
    strings = isinstance(sources, Sequence) and all(isinstance(one, str) for one in sources)
    return tuple(sources) if strings and not isinstance(sources, str) and sources is not None else ()


# ---- preferences -------------------------------------------------------------------------------------------------


def _read_answer(value: Any) -> Message:
    if type(value) not in (str, dict):
        raise InvalidInput.at(msg="must be a string or an assistant message", type="string_type")
    return read_answer({"content": value} if isinstance(value, str) else value)


@attrs.frozen
class _Preference:
    messages: tuple[RecordedMessage, ...]
    chosen: Message = attrs.field(metadata={"parser": _read_answer})
    rejected: Message = attrs.field(metadata={"parser": _read_answer})
    tools: tuple[RecordedTool, ...] = ()


def preference_of(value: Mapping[str, Any]) -> Preference:
    read = structure(_Preference, without_nulls(value))
    messages, tools = tuple(map(message_of, read.messages)), tuple(map(tool_of, read.tools))
    return Preference(messages, read.chosen, read.rejected, tools, sources_of(value))


def _parser_of(row: Any) -> Callable[[Any], Example | Preference]:
    return preference_of if isinstance(row, Mapping) and row.keys() & {"chosen", "rejected"} else example_of


EXAMPLES = RowFormat(Example, example_of, read_examples, dump_example)
PREFERENCES = RowFormat(Preference, preference_of, read_preferences, dump_preference)
GROUPS = RowFormat(TrajectoryGroup, group_of, read_groups, dump_group)
DATASETS: RowFormat[Any] = RowFormat(
    Example | Preference,  # type: ignore[arg-type]  # isinstance takes it
    lambda row: _parser_of(row)(row),
    read_dataset,
    lambda row: dump_preference(row) if isinstance(row, Preference) else dump_example(row),
)
