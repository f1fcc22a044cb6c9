"""Lines of training files as fine-tuning services take them, read as the rows of our own methods.

A line of supervised training is `{"messages": [...], "tools": [...]}`. One of preferences is `{"input": {"messages":
[...], "tools": [...]}, "preferred_output": [...], "non_preferred_output": [...]}`, each output one assistant message;
or a row with `chosen` and `rejected`, as we write them. A line is refused if it has a member that is not supported and
would change the training.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

from modelyard.domain.training import Example, Preference
from modelyard.errors import InvalidInput
from modelyard.formats.jsonl import read_rows
from modelyard.formats.training_data import example_of, preference_of

T = TypeVar("T")

_MESSAGE = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "refusal", "weight"})
_EXAMPLE = frozenset({"messages", "tools", "parallel_tool_calls"})
_INPUT = frozenset({"messages", "tools", "parallel_tool_calls"})
_PAIR = frozenset({"input", "preferred_output", "non_preferred_output"})


def read_supervised(file: BinaryIO) -> Iterator[Example]:
    """Yield the examples of a file. Raises `InvalidInput` at ("row", <number from 0>, <field>, ...)."""
    return _read(file, _example)


def read_pairs(file: BinaryIO) -> Iterator[Preference]:
    """Yield the preferences of a file. Raises `InvalidInput` at ("row", <number from 0>, <field>, ...)."""
    return _read(file, _preference)


def _read(file: BinaryIO, parse: Callable[[Mapping[str, Any]], T]) -> Iterator[T]:
    for number, row in enumerate(read_rows(file)):
        try:
            yield parse(row)
        except InvalidInput as wrong:
            raise wrong.below("row", number) from None


def _example(row: Mapping[str, Any]) -> Example:
    _refuse_unknown(row, _EXAMPLE)
    return example_of({**_given(row, "tools"), "messages": _messages(row.get("messages"), "messages")})


def _preference(row: Mapping[str, Any]) -> Preference:
    if "input" not in row:
        return preference_of(row)
    _refuse_unknown(row, _PAIR)
    prompt = row["input"]
    if not isinstance(prompt, dict):
        raise InvalidInput.at("input", msg="must be an object with messages")
    _refuse_unknown(prompt, _INPUT, "input")
    pair = {
        **_given(prompt, "tools"),
        "messages": _messages(prompt.get("messages"), "input", "messages"),
        "chosen": _output(row, "preferred_output"),
        "rejected": _output(row, "non_preferred_output"),
    }
    return preference_of(pair)


def _output(row: Mapping[str, Any], name: str) -> Any:
    found = row.get(name)
    if not isinstance(found, list) or len(found) != 1:
        raise InvalidInput.at(name, msg="must be a list of one assistant message")
    return _messages(found, name)[0]


def _messages(found: Any, *at: str) -> list[Any]:
    """Return messages without their weights, which must be 1: every assistant message is trained on."""
    if not isinstance(found, list):
        raise InvalidInput.at(*at, msg="must be a list of messages")
    plain = []
    for number, message in enumerate(found):
        if not isinstance(message, dict):
            raise InvalidInput.at(*at, number, msg="must be a message, as a JSON object")
        _refuse_unknown(message, _MESSAGE, *at, number)
        if message.get("weight") not in (None, 1):
            msg = "must be 1: every assistant message is trained on; leave the others out, or train on the last turns"
            raise InvalidInput.at(*at, number, "weight", msg=msg)
        plain.append({name: value for name, value in message.items() if name != "weight"})
    return plain


def _given(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) is not None}


def _refuse_unknown(row: Mapping[str, Any], known: frozenset[str], *at: str | int) -> None:
    for name in row:
        if name not in known:
            raise InvalidInput.at(*at, name, msg="is not supported; leave it out")
