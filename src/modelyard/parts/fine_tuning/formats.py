"""Lines of training files as fine-tuning services take them, read as the rows of our own methods.

A line of supervised training is `{"messages": [...], "tools": [...]}`. One of preferences is `{"input": {"messages":
[...], "tools": [...]}, "preferred_output": [...], "non_preferred_output": [...]}`, each output one assistant message;
or a row with `chosen` and `rejected`, as we write them. Members are honoured or refused as in those rows.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO, TypeVar

import attrs

from modelyard.domain.training import Example, Preference
from modelyard.errors import InvalidInput, nearest
from modelyard.formats.jsonl import read_rows
from modelyard.formats.training_data import example_of, preference_of
from modelyard.parts.readers.forms import form_of
from modelyard.platform.training.data import BaseModelCheck

T = TypeVar("T")

_PLACES: Mapping[str, tuple[str | int, ...]] = {
    "messages": ("input", "messages"),
    "tools": ("input", "tools"),
    "chosen": ("preferred_output", 0),
    "rejected": ("non_preferred_output", 0),
}
_EXAMPLES = ("messages",)
_PAIRS = ("a preference for fine-tuning services", "messages with chosen and rejected answers")
"""Forms of rows that a method takes."""
_INPUT = frozenset({"messages", "tools", "parallel_tool_calls"})
_PAIR = frozenset({"input", "preferred_output", "non_preferred_output"})


def read_supervised(file: BinaryIO, check: BaseModelCheck | None = None) -> Iterator[Example]:
    """Yield the examples of a file. Raises `InvalidInput` at ("row", <number from 0>, <field>, ...)."""
    return _read(file, example_of, check, _EXAMPLES)


def read_pairs(file: BinaryIO, check: BaseModelCheck | None = None) -> Iterator[Preference]:
    """Yield the preferences of a file. Raises `InvalidInput` at ("row", <number from 0>, <field>, ...)."""
    return _read(file, _preference, check, _PAIRS)


def _read(
    file: BinaryIO, parse: Callable[[Mapping[str, Any]], T], check: BaseModelCheck | None, forms: tuple[str, ...]
) -> Iterator[T]:
    for number, row in enumerate(read_rows(file)):
        try:
            with _in_their_words(row):
                read: Any = parse(row)
                yield read if check is None else check(read)
        except InvalidInput as wrong:
            raise _with_form(wrong, row, forms).below("row", number) from None


def _with_form(wrong: InvalidInput, row: Mapping[str, Any], forms: tuple[str, ...]) -> InvalidInput:
    """Add in which other public form than these a row is, if it is in one."""
    try:
        form = form_of(row)
    except InvalidInput:
        return wrong
    if form is None or form.name in forms:
        return wrong
    first, *others = wrong.problems
    said = f"{first.msg}; the row is in the form {form.name!r}, and this method takes rows in the form {forms[0]!r}"
    return InvalidInput([attrs.evolve(first, msg=said), *others])


def _preference(row: Mapping[str, Any]) -> Preference:
    if "input" not in row:
        return preference_of(row)
    _refuse_unknown(row, _PAIR)
    prompt = row["input"]
    if not isinstance(prompt, dict):
        raise InvalidInput.at("input", msg="must be an object with messages")
    _refuse_unknown(prompt, _INPUT, "input")
    pair = {"chosen": _output(row, "preferred_output"), "rejected": _output(row, "non_preferred_output")}
    return preference_of({**prompt, **pair})


@contextmanager
def _in_their_words(row: Mapping[str, Any]) -> Iterator[None]:
    """Locate the problems of a pair where its members have other names."""
    try:
        yield
    except InvalidInput as wrong:
        if "input" not in row:
            raise
        places = [(*_PLACES.get(str(one.loc[0]), one.loc[:1]), *one.loc[1:]) for one in wrong.problems]
        raise InvalidInput(
            [attrs.evolve(one, loc=at) for one, at in zip(wrong.problems, places, strict=True)]
        ) from None


def _output(row: Mapping[str, Any], name: str) -> Any:
    found = row.get(name)
    if not isinstance(found, list) or len(found) != 1:
        raise InvalidInput.at(name, msg="must be a list of one assistant message")
    return found[0]


def _refuse_unknown(row: Mapping[str, Any], known: frozenset[str], *at: str | int) -> None:
    for name, value in row.items():
        if name not in known and value is not None:
            raise InvalidInput.at(*at, name, msg=f"is not supported{nearest(name, known) or '; leave it out'}")
