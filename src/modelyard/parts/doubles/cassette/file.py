"""The file of a cassette: a header, then in JSON Lines the offered models and the recorded answers. A line is appended
by a single write, under a lock that other processes respect, so that two of them may record into one file and a review
shows the added lines. Windows has no such lock: there one process at a time may record into a file."""

import json
import os
from collections.abc import Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import attrs

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Delta
from modelyard.errors import InvalidInput, StoreCorrupt, StoreTooNew
from modelyard.formats.converter import structure_exactly, unstructure
from modelyard.parts.locks import wait_for_lock
from modelyard.protocols import Capabilities

VERSION = 1
_HEADER = {"modelyard_cassette": VERSION}


@attrs.frozen
class Timed:
    at: float
    delta: Delta


@attrs.frozen
class Offer:
    entry: CatalogueEntry
    capabilities: Capabilities


@attrs.frozen
class Recording:
    """A request (`cassette.request_key`) and its answer. `step` is that of a trained model's checkpoint.
    `left_early` means that the reader disconnected before the answer was complete. `line` is its line in the file, 0 if
    it was just made."""

    asked: Mapping[str, Any]
    prompt_tokens: int | None
    deltas: tuple[Timed, ...]
    step: int | None = None
    left_early: bool = False
    line: int = 0


class CassetteFile:
    """A cassette file. Opening it with `truncate` empties it; recordings that were read are never rewritten. Raises
    FileNotFoundError, `StoreCorrupt` naming the line that cannot be read, or `StoreTooNew`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.offers: dict[str, Offer] = {}
        self.recordings: list[Recording] = []
        for number, line in enumerate(_lines(path), 1):
            if line.strip():
                self._read(number, line)

    @classmethod
    def opened(cls, path: Path, truncate: bool) -> "CassetteFile":
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            if truncate:
                file.truncate(0)
        return cls(path)

    def add(self, recording: Recording) -> None:
        _append(self.path, [_recording_json(recording)])

    def offer(self, offers: Mapping[str, Offer]) -> None:
        new = {model: offer for model, offer in offers.items() if self.offers.get(model) != offer}
        self.offers |= new
        if new:
            _append(self.path, [{"model": model, **unstructure(offer)} for model, offer in new.items()])

    def _read(self, number: int, line: bytes) -> None:
        try:
            data = json.loads(line)
            if number == 1:
                self._check_version(data)
            elif "model" in data:
                model = data.pop("model")
                self.offers[model] = structure_exactly(Offer, data)
            else:
                self.recordings.append(_recording(data, number))
        except (InvalidInput, ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreCorrupt(
                f"{self.path}, line {number}, is not a line of a cassette: {error}; restore it or delete it"
            ) from None

    def _check_version(self, data: Any) -> None:
        if data.keys() != _HEADER.keys():
            raise ValueError("the header is missing")
        if data["modelyard_cassette"] != VERSION:
            raise StoreTooNew(f"{self.path} is a cassette of version {data['modelyard_cassette']}; upgrade modelyard")


def _recording_json(recording: Recording) -> dict[str, Any]:
    data: dict[str, Any] = unstructure(attrs.evolve(recording, deltas=(), line=0))
    return data | {"deltas": [{"at": timed.at, **unstructure(timed.delta)} for timed in recording.deltas]}


def _recording(data: dict[str, Any], number: int) -> Recording:
    deltas = tuple(Timed(delta.pop("at"), structure_exactly(Delta, delta)) for delta in data.pop("deltas"))
    return attrs.evolve(
        structure_exactly(Recording, {"prompt_tokens": None, "deltas": [], **data}), deltas=deltas, line=number
    )


# ---- the bytes ---------------------------------------------------------------------------------------------------


def _lines(path: Path) -> Sequence[bytes]:
    with path.open("rb") as file:
        wait_for_lock(file.fileno(), shared=True)
        raw = file.read()
    *lines, last = raw.split(b"\n")
    if not _is_whole(last):
        raise StoreCorrupt(
            f"{path}, line {len(lines) + 1}, ends in its middle, as a crash leaves it; delete it and record it again"
        )
    return [*lines, last]


def _is_whole(line: bytes) -> bool:
    """Return whether a line without its end, which editors leave out, is all there."""
    try:
        return not line.strip() or isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _append(path: Path, data: Sequence[Mapping[str, Any]]) -> None:
    with path.open("a+b", buffering=0) as file:
        wait_for_lock(file.fileno())
        size = file.seek(0, os.SEEK_END)
        lines = _missing_end(path, file, size) + b"".join(map(_line, data if size else [_HEADER, *data]))
        if file.write(lines) != len(lines):
            file.truncate(size)
            raise OSError(f"{path} could not be written; is the disk full?")


def _missing_end(path: Path, file: FileIO, size: int) -> bytes:
    """Return what the last line needs before another one is added. Raises `StoreCorrupt` if it is torn."""
    file.seek(max(size - 1, 0))
    if not size or file.read(1) == b"\n":
        return b""
    file.seek(0)
    if not _is_whole(file.readall().rpartition(b"\n")[2]):
        raise StoreCorrupt(f"{path} ends in the middle of a line, as a crash leaves it; delete that line")
    return b"\n"


def _line(data: Mapping[str, Any]) -> bytes:
    try:
        return f"{json.dumps(data, ensure_ascii=False)}\n".encode()
    except UnicodeEncodeError:
        return f"{json.dumps(data)}\n".encode()
