"""Rows of a dataset as JSON Lines: one object a line, read and written a row at a time. Blank lines mean nothing."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from modelyard.errors import InvalidInput
from modelyard.formats.json import loads, written
from modelyard.formats.json_stream import CHUNK

MAX_ROW = 16 * 2**20

_decode = json.JSONDecoder().decode


def read_rows(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(iter(lambda: file.readline(MAX_ROW + 1), b""), start=1):
        if len(line) > MAX_ROW:
            raise InvalidInput.at("line", number, msg=f"must not be longer than {MAX_ROW} bytes")
        if not line.isspace():
            yield _object(loads(line, at=("line", number)), "line", number)


def read_dumped(file: BinaryIO, wanted: Callable[[int], bool]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows at the `wanted` indices, from 0, of a file of lines that `dump_row` has made and checked. Raises
    `InvalidInput` for a broken line."""
    for index, line in enumerate(file):
        if wanted(index):
            try:
                row = _decode(line.decode())
            except ValueError:
                raise InvalidInput.at("line", index + 1, msg="is not valid JSON: the file was damaged") from None
            yield index, row


def dump_row(row: Any, number: int) -> bytes:
    """Return the line of a row. Raises `InvalidInput` at ("rows", `number`) unless it is a JSON object that fits."""
    return written_row(row, number)[0]


def written_row(row: Any, number: int) -> tuple[bytes, Mapping[str, Any]]:
    """Return the line that `dump_row` does, and the JSON data in it."""
    line, data = written(_object(row, "rows", number), at=("rows", number))
    if len(line) >= MAX_ROW:
        raise InvalidInput.at("rows", number, msg=f"must not be longer than {MAX_ROW} bytes as JSON")
    return line + b"\n", data


def in_chunks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines to pieces of `CHUNK` bytes and at most a line more: a store writes each piece by itself."""
    chunk = bytearray()
    for line in lines:
        chunk += line
        if len(chunk) >= CHUNK:
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


def _object(value: Any, *loc: str | int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidInput.at(*loc, msg="must be a JSON object", type="dict_type")
    return value
