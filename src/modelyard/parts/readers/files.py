"""Files of rows in any public form, as they come: JSON Lines, a JSON array, or a table that ends in .csv. One row is
held at a time."""

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO, TypeVar

import attrs

from modelyard.domain.training import Example, Preference, Trajectory
from modelyard.errors import InvalidInput
from modelyard.formats.json import loads
from modelyard.formats.json_stream import CHUNK, JsonReader, file_chunks
from modelyard.formats.jsonl import check_line, lines_of
from modelyard.formats.training_data import RowFormat
from modelyard.parts.readers.begins import SAVE_LINES, check_begin
from modelyard.parts.readers.forms import KNOWN, RowForm, form_of, members_of, nearest_form
from modelyard.platform.evaluations.input_rows import csv_rows

T = TypeVar("T")

_BOM = b"\xef\xbb\xbf"
_READ = (Example, Preference, Example | Preference | Trajectory)


def reading_any_form(rows: RowFormat[T]) -> RowFormat[T]:
    """Return a format of examples or preferences that also reads the public forms; another format as it is."""
    if rows.value not in _READ:
        return rows
    return attrs.evolve(rows, of=lambda row: _row_of(rows, row, None)[0], read=lambda file: _read(rows, file))


def _row_of(rows: RowFormat[T], row: Any, before: RowForm | None) -> tuple[T, RowForm | None]:
    """Return the value of a row, and its form, which must be the form `before`, if there is one."""
    if not isinstance(row, Mapping):
        try:
            return rows.of(row), before
        except InvalidInput as wrong:
            raise _told(wrong, _AS_OBJECT) from None
    form = form_of(row)
    if form is None:
        return _unknown(rows, row), before
    if before is not None and form is not before:
        for name in sorted(before.needs - members_of(row) if before.ours else ()):
            raise InvalidInput.at(name, msg="is required, as in the rows before it")
        raise InvalidInput.at(msg=f"is {form.name}, and the rows before it are {before.name}; give each a file")
    plain = form.read(row)
    try:
        return rows.of(plain), form
    except InvalidInput as wrong:
        raise wrong if plain == row else _told(wrong, f" (read as {form.name})") from None


_AS_OBJECT = """, such as {"prompt": ..., "completion": ...}; a data frame is given as df.to_dict("records")"""


def _unknown(rows: RowFormat[T], row: Mapping[str, Any]) -> T:
    if near := nearest_form(row):
        raise InvalidInput.at(msg=near)
    try:
        return rows.of(row)
    except InvalidInput as wrong:
        raise _told(wrong, f"; the forms that are read are: {KNOWN}") from None


def _told(wrong: InvalidInput, more: str) -> InvalidInput:
    first, *others = wrong.problems
    return InvalidInput([attrs.evolve(first, msg=first.msg + more), *others])


# ---- files -------------------------------------------------------------------------------------------------------


def _read(rows: RowFormat[T], file: BinaryIO) -> Iterator[T]:
    return (value for _, value in read_with_source(rows, file))


def read_with_source(rows: RowFormat[T], file: BinaryIO) -> Iterator[tuple[Any, T]]:
    """Yield the rows of a file in any form: each as it is there, and its value."""
    path = getattr(file, "name", "")
    name = os.path.basename(path) if isinstance(path, str) else ""
    form: RowForm | None = None
    line = None
    try:
        for line, row in _container(file, name)(file):
            try:
                value, form = _row_of(rows, row, form)
            except InvalidInput as wrong:
                raise wrong.below("line", line()) from None
            yield row, value
        if line is None and name:
            raise InvalidInput.at(msg="has no rows; give at least one example")
    except InvalidInput as wrong:
        headed = name.lower().endswith(".csv") and wrong.problems[0].loc[:2] == ("line", 2)
        named = "; the first line of a table names its columns" if headed else ""
        raise _told(wrong, f"{named}; in {name}") if name else wrong from None


Rows = Iterator[tuple[Callable[[], int], Any]]
"""Rows, each with what finds the number of its line."""


def _container(file: BinaryIO, name: str) -> Callable[[BinaryIO], Rows]:
    begin = check_begin(file)
    if name.lower().endswith(".csv"):
        return _table
    if name.lower().endswith((".parquet", ".feather", ".arrow")):
        raise InvalidInput.at(msg=f"is not read in this form; {SAVE_LINES}")
    if name.lower().endswith(".tsv"):
        raise InvalidInput.at(msg="is a table with tabs; separate its columns by commas, and let it end in .csv")
    return _array if begin.removeprefix(_BOM).lstrip()[:1] == b"[" else _lines


def _lines(file: BinaryIO) -> Rows:
    for number, line in lines_of(file):
        check_line(line, number)
        yield lambda number=number: number, _parsed(line, number)  # type: ignore[misc]


def _parsed(line: bytes, number: int) -> object:
    try:
        return loads(line, at=("line", number))
    except InvalidInput as wrong:
        if line.strip() == b"{":
            raise _told(wrong, "; an object over several lines is read in an array alone: [{...}, {...}]") from None
        if number == 1 and not line.lstrip().startswith(b"{"):
            raise _told(wrong, "; what does not end in .csv is read as JSON Lines, or as a JSON array") from None
        raise


def _array(file: BinaryIO) -> Rows:
    if file.read(len(_BOM)) != _BOM:
        file.seek(0)
    start = file.tell()
    reader = JsonReader(file_chunks(file))
    at = 0

    def line() -> int:
        file.seek(0)
        return 1 + sum(chunk.count(b"\n") for chunk in _first(file, start + at))

    try:
        for _ in reader.elements():
            reader.is_null()  # it moves on to where the value begins
            at = reader.offset
            row = reader.take()
            yield line, row
            reader.is_null()
            at = reader.offset
        reader.is_null()
        at = reader.offset
        reader.end()
    except InvalidInput as wrong:
        raise wrong if wrong.problems[0].loc[:1] == ("line",) else wrong.below("line", line()) from None


def _first(file: BinaryIO, size: int) -> Iterator[bytes]:
    while size > 0 and (chunk := file.read(min(size, CHUNK))):
        size -= len(chunk)
        yield chunk


def _table(file: BinaryIO) -> Rows:
    for number, cells in csv_rows(file.name):
        if cells.get(""):
            msg = "has a column without a name, as an index has none; save the table without it"
            raise InvalidInput.at("line", 1, msg=f"{msg} (df.to_csv(path, index=False))")
        for name in sorted(name for name in _NEEDED & cells.keys() if not cells[name]):
            msg = (
                'is an empty cell, and so mostly a missing value; leave out the row, or mean it as JSON Lines, with ""'
            )
            raise InvalidInput.at("line", number, name, msg=msg)
        yield lambda number=number: number, {name: cell for name, cell in cells.items() if cell}  # type: ignore[misc]


_NEEDED = frozenset(("prompt", "completion", "chosen", "rejected", "instruction", "output"))
"""Columns of which no cell may be empty: an empty answer teaches to say nothing."""
