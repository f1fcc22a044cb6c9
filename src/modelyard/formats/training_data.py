"""Training data as JSON Lines, in the shapes that clients send, read and written a row at a time. Examples are one line
each: `{"messages": [...], "tools": [...]}`. A trajectory group is one line too: `{"trajectories": [...], "exceptions":
[...], ...}`; so that no line need hold a large group, trajectories may stand before it on lines of their own, and are
then not repeated in it. A preference is one line: `{"messages": [...], "chosen": ..., "rejected": ..., "tools":
[...]}`; `messages` is the prompt, each of the answers a string or an assistant message. What a teacher has scored is a
trajectory a line (`taught`). Examples and preferences may
have `"sources": [...]`, strings that say what a row was made from, and `"chat_template_kwargs": {...}`, variables of
the model's chat template. An assistant's message of an example may have a `"weight"` from 0 to 1: its loss times that;
with 0 it is not trained. Members that change nothing are in an `IGNORED`, with the reason; any other
unknown one is refused. Blank lines mean nothing."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Generic, TypeVar

import attrs

from modelyard.domain.completion import TEMPLATE, Message, Role
from modelyard.domain.record import EMPTY
from modelyard.domain.training import Example, Preference, Trajectory, TrajectoryGroup
from modelyard.errors import InvalidInput, Problem, located_at
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_object, message_of, tool_of
from modelyard.formats.chat.tools import tool_object
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure_exactly
from modelyard.formats.converter_errors import UNKNOWN
from modelyard.formats.json import checked_dumps, loads, without_nulls
from modelyard.formats.jsonl import check_line, lines_of
from modelyard.formats.taught import dump_taught, taught_of, trajectories_in
from modelyard.formats.trajectories import check_answer, dump_group, group_of, trajectory_of

T = TypeVar("T")


@attrs.frozen
class RowFormat(Generic[T]):
    """How rows of one kind are read and written: as a value, from plain data, from and to lines of a file. `of` raises
    `InvalidInput` located below the row; `read` at ("line", <number from 1>, <field>, ...)."""

    value: type[T]
    of: Callable[[Mapping[str, Any]], T]
    read: Callable[[BinaryIO], Iterator[T]]
    dump: Callable[[T], bytes]

    def checked(self, check: Callable[[T], T], marks: Sequence[bytes] = ()) -> "RowFormat[T]":
        """Return the same format with a check of each row. With `marks`, `read` reads only lines with one of them."""

        def of(row: Mapping[str, Any]) -> T:
            return check(self.of(row))

        return attrs.evolve(
            self, of=of, read=lambda file: (_at_line(place, of, row) for place, row in _rows(file, marks))
        )


# ---- files -------------------------------------------------------------------------------------------------------


def read_examples(file: BinaryIO) -> Iterator[Example]:
    return (_at_line(place, example_of, row) for place, row in _rows(file))


def read_preferences(file: BinaryIO) -> Iterator[Preference]:
    return (_at_line(place, preference_of, row) for place, row in _rows(file))


def read_taught(file: BinaryIO) -> Iterator[Trajectory]:
    """Read what a teacher has scored: trajectories, alone or in groups."""
    for place, row in _rows(file):
        for one in trajectories_in(row):
            yield _at_line(place, taught_of, one)


def read_dataset(file: BinaryIO) -> Iterator[Example | Preference | Trajectory]:
    parse: Callable[[Any], Example | Preference | Trajectory] | None = None
    for place, row in _rows(file):
        parse = parse or _parser_of(row)
        yield _at_line(place, parse, row)


def read_groups(file: BinaryIO, read: Callable[[Any], Trajectory] = trajectory_of) -> Iterator[TrajectoryGroup]:
    waiting: list[Trajectory] = []
    place = 0
    for place, row in _rows(file):
        if isinstance(row, Mapping) and row.keys() & {"messages_and_choices", "exchanges"}:
            waiting.append(_at_line(place, read, row))
        else:
            group = _at_line(place, lambda row: group_of(row, read), row)
            yield attrs.evolve(group, trajectories=(*waiting, *group.trajectories)) if waiting else group
            waiting = []
    if waiting:
        raise InvalidInput.at("line", place, msg="the file ends before the group of this trajectory; it was cut off")


def _rows(file: BinaryIO, marks: Sequence[bytes] = ()) -> Iterator[tuple[int, Any]]:
    for place, line in lines_of(file):
        check_line(line, place)
        if not marks or any(mark in line for mark in marks):
            yield place, loads(line, at=("line", place))


def _at_line(place: int, parse: Callable[[Any], T], row: Any) -> T:
    with located_at("line", place):
        return parse(row)


def dump_example(example: Example) -> bytes:
    row: dict[str, Any] = {"messages": [message_object(message) for message in example.messages]}
    for place, weight in (*dict.fromkeys(example.untrained, 0).items(), *example.weights.items()):
        row["messages"][place]["weight"] = weight
    return _with_members(row, example)


def dump_preference(preference: Preference) -> bytes:
    row: dict[str, Any] = {
        "messages": [message_object(message) for message in preference.messages],
        "chosen": message_object(preference.chosen),
        "rejected": message_object(preference.rejected),
    }
    return _with_members(row, preference)


def _with_members(row: dict[str, Any], of: Example | Preference) -> bytes:
    if of.tools:
        row["tools"] = [tool_object(tool) for tool in of.tools]
    if of.sources:
        row["sources"] = list(of.sources)
    if of.template:
        row[TEMPLATE] = dict(of.template)
    return checked_dumps(row) + b"\n"


# ---- examples ----------------------------------------------------------------------------------------------------


def _check_weight(instance: object, attribute: Any, weight: float | None) -> None:
    if weight is not None and not 0 <= weight <= 1:
        raise ValueError("must be a number from 0 to 1")


@attrs.frozen
class _Weighed(RecordedMessage):
    weight: float | None = attrs.field(default=None, validator=_check_weight)


_NAMES = "a name of the row"
_ORIGIN = "where the row comes from"
_TOPIC = "what the row is about"
_QUALITY = "how the row was judged; leave out rows that should not be trained"


@attrs.frozen
class _Row:
    IGNORED: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("id", "uuid", "index", "idx", "row_id", "prompt_id", "conversation_id", "session_id"), _NAMES),
        **dict.fromkeys(("source", "dataset", "split", "url", "license", "author", "model", "generator"), _ORIGIN),
        **dict.fromkeys(("created_at", "timestamp", "date", "version"), _ORIGIN),
        **dict.fromkeys(("category", "subcategory", "topic", "domain", "task", "tags", "language", "lang"), _TOPIC),
        **dict.fromkeys(("difficulty", "num_turns", "num_tokens"), _TOPIC),
        **dict.fromkeys(
            ("score", "score_chosen", "score_rejected", "rating", "quality", "toxic", "redacted"), _QUALITY
        ),
        **dict.fromkeys(("metadata", "meta"), "whatever else there is to say about the row"),
        "sources": "kept as the lineage of the row, if they are strings",
        "parallel_tool_calls": "calls are trained as they stand in the row",
    }

    tools: tuple[RecordedTool, ...] = attrs.field(default=(), kw_only=True)
    chat_template_kwargs: Mapping[str, Any] = attrs.field(default=EMPTY, kw_only=True, validator=Length(0, 64))


@attrs.frozen
class _Example(_Row):
    messages: tuple[_Weighed, ...]


def example_of(value: Mapping[str, Any]) -> Example:
    read = structure_exactly(_Example, _of_kind(_without_repeated_prompt(without_nulls(value)), judged=False))
    messages = tuple(map(message_of, read.messages))
    answers = [place for place, message in enumerate(messages) if message.role is Role.ASSISTANT]
    if not answers:
        raise InvalidInput.at("messages", msg="has no assistant message, so there is nothing to learn from it")
    _refuse_weights(read.messages, [place for place in range(len(messages)) if place not in answers])
    untrained = tuple(place for place in answers if read.messages[place].weight == 0)
    if len(untrained) == len(answers):
        msg = "is that of every assistant message, so there is nothing to learn from this row; leave it out"
        raise InvalidInput.at("messages", answers[-1], "weight", msg=msg)
    for place in answers:
        if place not in untrained and says_nothing(messages[place]):
            raise InvalidInput.at("messages", place, "content", msg=f"{_NOTHING}; leave it out, or give it weight 0")
    weights = {place: one.weight for place, one in enumerate(read.messages) if one.weight and one.weight < 1}
    tools, template = tuple(map(tool_of, read.tools)), read.chat_template_kwargs
    return Example(messages, tools, sources_of(value), untrained, weights, template)


_NOTHING = "is required of an answer that is trained, unless it has tool_calls"


def says_nothing(answer: Message) -> bool:
    """Return whether an answer has neither text, which may be empty, nor calls nor reasoning."""
    return answer.content in (None, ()) and not (answer.tool_calls or answer.reasoning)


def _without_repeated_prompt(row: Any) -> Any:
    """Leave out a `prompt` that says what a message says: public data sets have it, for their search."""
    if not isinstance(row, dict) or "prompt" not in row or not isinstance(row.get("messages"), list):
        return row
    said = [message.get("content") for message in row["messages"] if isinstance(message, dict)]
    return {name: one for name, one in row.items() if name != "prompt" or one not in said}


def _refuse_weights(messages: Sequence[_Weighed], untrained: Iterable[int]) -> None:
    for place in untrained:
        if messages[place].weight:
            msg = "must be 0 or left out: this message is read, and not trained"
            raise InvalidInput.at("messages", place, "weight", msg=msg)


def sources_of(row: Any) -> tuple[str, ...]:
    sources = row.get("sources") if isinstance(row, Mapping) else None
    strings = isinstance(sources, Sequence) and all(isinstance(one, str) for one in sources)
    return tuple(sources) if strings and not isinstance(sources, str) and sources is not None else ()


# ---- preferences -------------------------------------------------------------------------------------------------


def _read_answer(value: Any) -> Message:
    if type(value) not in (str, dict):
        raise InvalidInput.at(msg="must be a string or an assistant message", type="string_type")
    plain = {"content": value} if isinstance(value, str) else without_nulls(value)
    read = structure_exactly(_Weighed, {"role": "assistant", **plain})
    if read.weight not in (None, 1):
        raise InvalidInput.at("weight", msg="must be 1 or left out: both answers are trained")
    answer = check_answer(message_of(read))
    if says_nothing(answer):
        raise InvalidInput.at("content", msg=_NOTHING)
    return answer


@attrs.frozen
class _Preference(_Row):
    messages: tuple[_Weighed, ...]
    chosen: Message = attrs.field(metadata={"parser": _read_answer})
    rejected: Message = attrs.field(metadata={"parser": _read_answer})


def preference_of(value: Mapping[str, Any]) -> Preference:
    read = structure_exactly(_Preference, _of_kind(without_nulls(value), judged=True))
    _refuse_weights(read.messages, range(len(read.messages)))
    messages, tools = tuple(map(message_of, read.messages)), tuple(map(tool_of, read.tools))
    return Preference(messages, read.chosen, read.rejected, tools, sources_of(value), read.chat_template_kwargs)


def _of_kind(row: Any, judged: bool) -> Any:
    """Return a row. Raises `InvalidInput`, naming the other method, if it is a preference and should not be, or not."""
    if isinstance(row, Mapping) and "messages" in row and bool(row.keys() & {"chosen", "rejected"}) is not judged:
        says = "is required; training.sft takes examples" if judged else "is not known; training.dpo takes preferences"
        type_ = "missing" if judged else UNKNOWN
        raise InvalidInput([Problem((name,), says, type_) for name in ("chosen", "rejected") if judged or name in row])
    return row


def _parser_of(row: Any) -> Callable[[Any], Example | Preference | Trajectory]:
    if isinstance(row, Mapping) and "messages_and_choices" in row:
        return taught_of
    return preference_of if isinstance(row, Mapping) and row.keys() & {"chosen", "rejected"} else example_of


EXAMPLES = RowFormat(Example, example_of, read_examples, dump_example)
TAUGHT = RowFormat(Trajectory, taught_of, read_taught, dump_taught)
PREFERENCES = RowFormat(Preference, preference_of, read_preferences, dump_preference)


def group_rows(read: Callable[[Any], Trajectory] = trajectory_of) -> RowFormat[TrajectoryGroup]:
    """Return how groups are read by a reader of trajectories."""
    return RowFormat(TrajectoryGroup, lambda row: group_of(row, read), lambda file: read_groups(file, read), dump_group)


GROUPS = group_rows()
DATASETS: RowFormat[Any] = RowFormat(
    Example | Preference | Trajectory,  # type: ignore[arg-type]  # isinstance takes it
    lambda row: _parser_of(row)(row),
    read_dataset,
    lambda row: _DUMPS[type(row)](row),
)
_DUMPS: Mapping[type, Callable[[Any], bytes]] = {
    Example: dump_example,
    Preference: dump_preference,
    Trajectory: dump_taught,
}
