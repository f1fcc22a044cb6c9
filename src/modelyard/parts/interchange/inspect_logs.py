"""Logs of the evaluation framework Inspect: read as runs, and written of runs."""

import json
import os
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.run import PROMPTS
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput
from modelyard.formats.json import as_json
from modelyard.parts.interchange.given_runs import GivenAnswer, GivenScore, seconds_of, tokens_of
from modelyard.parts.interchange.written_logs import PROMPTS_KEPT, ROW

LARGEST = 2**30
"""The most bytes of a log, or of one sample of an archive."""

_GRADES: Mapping[object, object] = {"C": True, "I": False, "N": False, "P": 0.5}
"""What the grades of its scorers count as: correct, incorrect, no answer, partial."""

_ZSTANDARD = 93


@attrs.frozen
class InspectLog:
    """A log that was read: its `header`, without samples, and its samples."""

    header: Mapping[str, Any]
    samples: tuple[Mapping[str, Any], ...]

    @property
    def digest(self) -> str:
        """What tells this log from others, and from itself once its scores were changed."""
        return digest([self.header["eval"], [[_name(one), one.get("scores")] for one in self.samples]])

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
    def prompts(self) -> Mapping[str, str]:
        """The prompts of a run that was written here."""
        kept = _members(_members(self.header["eval"].get("metadata")).get(PROMPTS_KEPT))
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
    """Read a log, an archive (.eval) or JSON. Raises `InvalidInput` naming the file and what is wrong with it."""
    name = os.fspath(path)
    try:
        with open(path, "rb") as file:
            archived = file.read(2) == b"PK"
        return _checked(*(_read_archive(name) if archived else _read_json(name)))
    except InvalidInput as wrong:
        raise wrong.below(name) from None


def _read_json(path: str) -> tuple[Any, Any]:
    if os.path.getsize(path) > LARGEST:
        raise InvalidInput.at("log", msg="is larger than 1 GiB; write it as an archive (.eval)")
    with open(path, "rb") as file:
        log = _parsed(file.read(), "log")
    samples = log.pop("samples", None) if isinstance(log, dict) else None
    return log, samples


def _read_archive(path: str) -> tuple[Any, Any]:
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type == _ZSTANDARD for entry in archive.infolist()):
                with suppress(ImportError):
                    import_module("zipfile_zstd")  # comes with Inspect; Python has it from 3.14 on
            names = {entry.filename: entry for entry in archive.infolist()}
            if "header.json" not in names:
                raise InvalidInput.at("header.json", msg="is missing: the evaluation did not end, or this is no log")
            header = _parsed(_member(archive, names["header.json"]), "header.json")
            found = [one for one in names if one.startswith("samples/") and one.endswith(".json")]
            return header, [_parsed(_member(archive, names[one]), one) for one in found]
    except zipfile.BadZipFile as wrong:
        raise InvalidInput.at("log", msg=f"is not a whole archive: {wrong}") from None


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    if entry.file_size > LARGEST:
        raise InvalidInput.at(entry.filename, msg="is larger than 1 GiB")
    try:
        with archive.open(entry) as file:
            return file.read(LARGEST)
    except NotImplementedError:
        msg = (
            "is compressed with Zstandard, which this Python cannot read; install inspect-ai next to modelyard, "
            "or convert the log: inspect log convert --to json"
        )
        raise InvalidInput.at(entry.filename, msg=msg) from None


def _parsed(raw: bytes, name: str) -> Any:
    try:
        return json.loads(raw, parse_constant=lambda word: None)
    except (ValueError, RecursionError) as wrong:
        raise InvalidInput.at(name, msg=f"is not JSON: {wrong}") from None


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
    return GivenScore(as_json(graded), str(score.get("explanation") or ""))


def _time(text: object) -> datetime | None:
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
        return found and (found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC))
    except (ValueError, OverflowError):
        return None
