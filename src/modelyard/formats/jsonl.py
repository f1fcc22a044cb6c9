"""Rows of a dataset as JSON Lines: one object a line, read and written a row at a time. Blank lines mean nothing."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO

from modelyard.errors import InvalidInput
from modelyard.formats.json import loads, written
from modelyard.formats.json_stream import CHUNK

MAX_ROW = 16 * 2**20

_NOT_BLANK = re.compile(rb"\S")
_decode = json.JSONDecoder().decode


def lines_of(file: BinaryIO, longest: int = MAX_ROW) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 1; blank ones take no step each. A line that is too
    long is yielded up to one byte more, and is the last."""
    number, chunk, at = 1, b"", 0
    while True:
        found = _NOT_BLANK.search(chunk, at)
        number += chunk.count(b"\n", at, found.start() if found else len(chunk))
        if found is None:
            chunk, at = file.read(CHUNK), 0
            if not chunk:
                return
            continue
        at = max(at, chunk.rfind(b"\n", at, found.start()) + 1)
        parts, size = [chunk[at:]], len(chunk) - at
        while (end := chunk.find(b"\n", at)) < 0 and size <= longest and (chunk := file.read(CHUNK)):
            parts.append(chunk)
            size, at = size + len(chunk), 0
        if end < 0:
            yield number, b"".join(parts)[: longest + 1]
            return
        parts[-1] = chunk[at : end + 1]
        line, at = b"".join(parts), end
        yield number, line[: longest + 1]
        if len(line) > longest:
            return


def check_line(line: bytes, number: int, longest: int = MAX_ROW) -> None:
    if len(line) > longest:
        raise InvalidInput.at("line", number, msg=f"must not be longer than {longest} bytes")


def read_rows(file: BinaryIO) -> Iterator[Mapping[str, Any]]:
    for number, line in lines_of(file):
        check_line(line, number)
        yield _object(loads(line, at=("line", number)), "line", number)


def read_dumped(file: BinaryIO, wanted: Callable[[int], bool]) -> Iterator[tuple[int, dict[str, Any], str]]:
    """Yield the rows at the `wanted` indices, from 0, of a file of lines that `dump_row` has made and checked, each
    with its text. Raises `InvalidInput` for a broken line."""
    for index, line in enumerate(file):
        if wanted(index):
            try:
                row = _decode(text := line.decode())
            except ValueError:
                raise InvalidInput.at("line", index + 1, msg="is not valid JSON: the file was damaged") from None
            yield index, row, text.rstrip()


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
