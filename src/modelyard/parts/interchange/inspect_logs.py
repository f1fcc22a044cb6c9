"""Logs of the evaluation framework Inspect: read as runs, and written of runs."""

import json
import os
import re
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib import import_module
from math import isfinite
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import PROMPTS
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput
from modelyard.parts.interchange.given_runs import GivenAnswer, GivenScore, seconds_of, tokens_of
from modelyard.parts.interchange.written_logs import PROMPTS_KEPT, ROW

LARGEST = 2**30
"""The most bytes of a log, or of one sample of an archive."""

LARGEST_ARCHIVE, MOST_SAMPLES = 2**32, 200_000
"""The most bytes of what an archive has, and the most samples."""

_PIECE = 4096
"""How much of a member is read at once, which limits what is decoded beyond the size that it states."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")
_MAY_BE_SURROGATE = re.compile(r"[\ud800-\udfff]|\\u[dD][89a-fA-F]")

_GRADES: Mapping[object, object] = {"C": True, "I": False, "N": False, "P": 0.5}
"""What the grades of its scorers count as: correct, incorrect, no answer, partial."""

_ZSTANDARD = 93

_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTANDARD)


@attrs.frozen
class InspectLog:
    """A log that was read: its `header`, without samples, and its samples."""

    header: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...]

    @property
    def digest(self) -> str:
        """What tells this log from others, and from itself once its scores were changed."""
        try:
            return digest([self.header["eval"], [[_name(one), one.get("scores")] for one in self.samples]])
        except RecursionError:
            raise InvalidInput.at("eval", msg="is nested too deep") from None

    @property
    def model(self) -> str:
        return str(self.header["eval"].get("model") or "model")

    @property
    def task(self) -> str:
        return str(self.header["eval"].get("task") or "task")

    @property
    def scorers(self) -> list[str]:
        """The names of its scorers, the first of its results first."""
        results = _list(_members(self.header.get("results")).get("scores"))
        named = [str(_members(one).get("name")) for one in results]
        found = dict.fromkeys(name for one in self.samples for name in one.get("scores") or ())
        return [*(name for name in dict.fromkeys(named) if name in found), *(n for n in found if n not in named)]

    @property
    def reason(self) -> str:
        """Why it failed; "" for one that succeeded."""
        status = self.header.get("status")
        if status == "success":
            return ""
        error = _members(self.header.get("error"))
        return str(error.get("message") or f"the evaluation's status is {status}")

    @property
    def kept(self) -> Mapping[str, Any]:
        """The metadata, in which a run that was written here has its references."""
        return _members(self.header["eval"].get("metadata"))

    @property
    def prompts(self) -> Mapping[str, str]:
        """The prompts of a run that was written here."""
        kept = _members(self.kept.get(PROMPTS_KEPT))
        return {name: kept[name] for name in PROMPTS if isinstance(kept.get(name), str)}

    def times(self) -> tuple[datetime, datetime]:
        """Return when it began and ended."""
        stats = _members(self.header.get("stats"))
        began = _time(stats.get("started_at")) or _time(self.header["eval"].get("created"))
        began = began or datetime(1970, 1, 1, tzinfo=UTC)
        return began, max(_time(stats.get("completed_at")) or began, began)

    def answers(self) -> Iterator[GivenAnswer]:
        (began, _), names = self.times(), Counter[str]()
        for one in self.samples:
            name = _name(one)
            names[name] += 1
            yield _answer(one, began, name if names[name] == 1 else f"{name}, {names[name]}")


def read_log(path: str | os.PathLike[str]) -> InspectLog:
    """Read a log, an archive (.eval) or JSON. Raises `InvalidInput` naming what is wrong with it, OSError."""
    name = os.fspath(path)
    with open(path, "rb") as file:
        archived = file.read(2) == b"PK"
    return _checked(*(_read_archive(name) if archived else _read_json(name)))


def _read_json(path: str) -> tuple[Any, Any]:
    if os.path.getsize(path) > LARGEST:
        raise InvalidInput.at("log", msg="is larger than 1 GiB; write it as an archive (.eval)")
    with open(path, "rb") as file:
        log = _parsed(file.read(), "log")
    samples = log.pop("samples", None) if isinstance(log, dict) else None
    return log, samples


def _read_archive(path: str) -> tuple[Any, Any]:
    with _decoding("log"):
        archive = zipfile.ZipFile(path)
    with archive:
        names = {entry.filename: entry for entry in archive.infolist()}
        if "header.json" not in names:
            raise InvalidInput.at("header.json", msg="is missing: the evaluation did not end, or this is no log")
        found = {name: one for name, one in names.items() if name.startswith("samples/") and name.endswith(".json")}
        _check_members([names["header.json"], *found.values()])
        if any(entry.compress_type == _ZSTANDARD for entry in names.values()):
            with suppress(ImportError):
                import_module("zipfile_zstd")  # comes with Inspect; Python has it from 3.14 on
        header = _parsed(_member(archive, names["header.json"]), "header.json")
        return header, [_parsed(_member(archive, one), name) for name, one in found.items()]


def _check_members(members: list[zipfile.ZipInfo]) -> None:
    for one in members:
        if one.file_size > LARGEST:
            raise InvalidInput.at(one.filename, msg="is larger than 1 GiB")
        if one.compress_type not in _METHODS:  # bzip2 and LZMA have no limit of what they make of a few bytes
            raise InvalidInput.at(one.filename, msg="is compressed in another way than logs are: deflate or Zstandard")
    if len(members) - 1 > MOST_SAMPLES:
        raise InvalidInput.at("samples", msg=f"are more than {MOST_SAMPLES:,}; split the log")
    if sum(one.file_size for one in members) > LARGEST_ARCHIVE:
        raise InvalidInput.at("samples", msg=f"are larger than {LARGEST_ARCHIVE >> 30} GiB together; split the log")


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    with _decoding(entry.filename, entry.compress_type), archive.open(entry) as file:
        return b"".join(iter(lambda: file.read(_PIECE), b""))


@contextmanager
def _decoding(name: str, method: int = zipfile.ZIP_STORED) -> Iterator[None]:
    """Refuse what an archive, or a member that is compressed by a method, cannot be read for."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as wrong:  # noqa: BLE001 - each decoder raises errors of its own, and some raise any
        msg = f"is not a whole archive: {wrong}" if name == "log" else f"cannot be read: {wrong or 'it is cut'}"
        if method == _ZSTANDARD and isinstance(wrong, NotImplementedError):
            msg = (
                "is compressed with Zstandard, which this Python cannot read; install inspect-ai next to modelyard, "
                "or convert the log: inspect log convert --to json"
            )
        raise InvalidInput.at(name, msg=msg) from None


def _parsed(raw: bytes, name: str) -> Any:
    """Parse JSON; what is no number is None, and half of a surrogate pair, which cannot be kept, is U+FFFD."""
    try:
        text = raw.decode(json.detect_encoding(raw), "surrogatepass")
        found = json.loads(text, parse_constant=lambda word: None, parse_float=_finite)
        return _whole(found) if _MAY_BE_SURROGATE.search(text) else found
    except (ValueError, RecursionError) as wrong:
        raise InvalidInput.at(name, msg=f"is not JSON: {wrong}") from None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if isfinite(number) else None


def _whole(value: Any) -> Any:
    if isinstance(value, dict):
        return {_SURROGATE.sub("\ufffd", name): _whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return [*map(_whole, value)]
    return _SURROGATE.sub("\ufffd", value) if isinstance(value, str) else value


def _checked(header: Any, samples: Any) -> InspectLog:
    if not isinstance(header, Mapping) or not isinstance(header.get("eval"), Mapping):
        raise InvalidInput.at("eval", msg="is missing; the file must be a log of Inspect, JSON or .eval")
    if not isinstance(samples, list) or not samples:
        raise InvalidInput.at("samples", msg="there are none; keep them in the log (log_samples)")
    for at, one in enumerate(samples):
        if not isinstance(one, Mapping) or "input" not in one:
            raise InvalidInput.at("samples", at, msg="must be a sample with its input")
        asked, scores = one["input"], one.get("scores")
        if not isinstance(asked, str) and not (isinstance(asked, list) and all(map(_is_object, asked))):
            raise InvalidInput.at("samples", at, "input", msg="must be a string or messages")
        if scores is not None and not (isinstance(scores, Mapping) and all(map(_is_object, scores.values()))):
            raise InvalidInput.at("samples", at, "scores", msg="must be scores by the names of their scorers")
    return InspectLog(header, tuple(samples))


def _is_object(value: object) -> bool:
    return isinstance(value, Mapping)


def _members(value: Any) -> Mapping[str, Any]:
    """Return an object, or an empty one for anything else."""
    return value if isinstance(value, Mapping) else EMPTY


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# ---- a sample


def _name(sample: Mapping[str, Any]) -> str:
    return f"{sample.get('id')}, epoch {sample.get('epoch', 1)}"


def _answer(sample: Mapping[str, Any], began: datetime, key: str) -> GivenAnswer:
    usage = [*map(_members, _members(sample.get("model_usage")).values())]
    error = sample.get("error")
    return GivenAnswer(
        key,
        _inputs(sample),
        _output(sample),
        _time(sample.get("started_at")) or began,
        seconds_of(sample.get("working_time", sample.get("total_time"))),
        "" if error is None else str(_members(error).get("message") or "failed"),
        {name: _score(score) for name, score in (sample.get("scores") or {}).items()},
        tokens_of(one.get("input_tokens") for one in usage),
        tokens_of(one.get("output_tokens") for one in usage),
    )


def _inputs(sample: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row: what was asked, as evaluations here have it, and the sample's other fields."""
    written = _members(_members(sample.get("metadata")).get(ROW))
    if written:
        return dict(written)
    asked = sample["input"]
    row: dict[str, Any] = {"prompt": asked} if isinstance(asked, str) else {"messages": [*map(_turn, asked)]}
    row["expected"] = sample.get("target")
    fields = {name: sample.get(name) for name in ("id", "choices", "metadata")}
    return {**row, **{name: value for name, value in fields.items() if value not in (None, {}, [])}}


def _turn(turn: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a message without the ids that differ from one log to another."""
    kept = ("role", "content", "tool_calls", "tool_call_id")
    return {name: turn[name] for name in kept if turn.get(name) is not None}


def _output(sample: Mapping[str, Any]) -> Any:
    output = _members(sample.get("output"))
    message = _members(next((_members(one).get("message") for one in _list(output.get("choices"))), None))
    text, calls = output.get("completion", message.get("content")), message.get("tool_calls")
    return {"content": text, "tool_calls": calls} if calls else text


def _score(score: Mapping[str, Any]) -> GivenScore:
    value = score.get("value")
    graded = _GRADES.get(value, value) if isinstance(value, str) else value
    return GivenScore(graded, str(score.get("explanation") or ""))


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        return found and (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC))
    except (ValueError, OverflowError):
        return None
