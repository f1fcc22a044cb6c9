"""Failures of a server as the library's own errors, and whether another attempt may succeed."""

import math
import re
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, ModelyardError, Overloaded, Problem
from modelyard.formats.chat.request import PARAMETERS
from modelyard.formats.json import loads

_SHOWN = 500
_LONGEST_WAIT = 3600.0
_CALLERS = frozenset({400, 413, 422})
_KEYS = frozenset({401, 403})
_BUSY = frozenset({429, 503})
_AGAIN = frozenset({408, 409, 425, 500, 502, 504})
_TOO_LONG = re.compile(
    r"maximum context length|context_?window_?exceeded|context_length_exceeded|exceed_context_size"
    r"|exceeds the available context|longer than the model's context",
    re.IGNORECASE,
)
"""Words of vLLM and hosted servers, of LiteLLM, of llama.cpp (two), and of SGLang."""
_HOSTS = re.compile(
    r"\b(invalid|unknown) model\b|\bmodel \S+ (does not exist|(is |was )?not found)|\bnot a valid model\b"
    r"|\b(invalid|incorrect|missing|no) (api[ _]key|credentials)\b|authentication ?error|no connected db",
    re.IGNORECASE,
)
"""What the host alone can mend: the model's name and the key are never the caller's."""
_NAMED = re.compile(r"\(parameter=(\w+)")
_LEADING = re.compile(r"[`']?(\w+)[`']?(?::| (?:must|should|is|needs)\b)")


class RetryableError(Exception):
    """A failed attempt, with its `error`. `again` says whether another may succeed, after `wait` seconds if known."""

    def __init__(self, error: ModelyardError, again: bool = False, wait: float | None = None) -> None:
        self.error: ModelyardError = error
        self.again: bool = again
        self.wait: float | None = wait
        super().__init__(str(error))


@attrs.frozen
class Head:
    """The start of an answer: its status, and the headers that are used."""

    status: int
    content_type: str = ""
    content_encoding: str = ""
    retry_after: str = ""


@attrs.frozen
class _Report:
    """The report of a server on a failure, in any of the usual shapes."""

    message: str
    param: str | None = None
    code: Any = None
    kind: str = ""

    @property
    def words(self) -> str:
        """The whole text of the report, to search it for known words."""
        return f"{self.code} {self.kind} {self.message}"


def refusal(head: Head, raw: bytes, secret: str | None, now: datetime) -> RetryableError:
    """Return the error of an answer without success. The server's message is shortened, without the key."""
    return _retryable(head.status, _parse_report(_json(raw), raw, secret), retry_after(head.retry_after, now))


def failed_inside(answer: Mapping[str, Any], secret: str | None) -> RetryableError | None:
    """Return the error of an answer, or of a chunk, that reports one under a status of success."""
    if not answer.get("error") and answer.get("object") != "error":
        return None
    report = _parse_report(answer, b"", secret)
    code = str(report.code)
    return _retryable(int(code) if re.fullmatch("[45][0-9]{2}", code) else 500, report, None)


def _retryable(status: int, report: _Report, wait: float | None) -> RetryableError:
    detail = f": {report.message}" if report.message else ""
    if status in _CALLERS or _TOO_LONG.search(report.words):
        return RetryableError(_caused_by_caller(report))
    if status in _KEYS:
        return RetryableError(
            BackendError(f"the upstream server refuses this host's key ({status}); the host must give a valid api_key")
        )
    if status in _BUSY:
        busy = Overloaded(f"the upstream server has no room now ({status}){detail}", 1.0 if wait is None else wait)
        return RetryableError(busy, True, wait)
    if status == 404:
        return RetryableError(
            BackendError(f"the upstream server does not know this model, or is not at this address{detail}")
        )
    return RetryableError(
        BackendError(f"the upstream server answered with status {status}{detail}"), status in _AGAIN, wait
    )


def _caused_by_caller(report: _Report) -> ModelyardError:
    message = report.message or "the upstream server refused the request without a reason"
    if _TOO_LONG.search(report.words):
        return ContextLengthExceeded([Problem(("messages",), message, ContextLengthExceeded.code)])
    place = _place(report)
    if place == "model" or _HOSTS.search(report.words):
        return BackendError(f"the upstream server refuses what the host has set up for this model: {message}")
    return InvalidInput([Problem((place,) if place else (), message.removeprefix(f"{place}: "))])


def _place(report: _Report) -> str | None:
    """Return the parameter that a refusal is about: as it is reported, else as the message names it."""
    reported = (report.param or "").removeprefix("body").removeprefix(".")
    if reported and reported != "None":
        return reported
    found = _NAMED.search(report.message) or _LEADING.match(report.message)
    return found[1] if found and found[1] in PARAMETERS else None


def _json(raw: bytes) -> Any:
    try:
        return loads(raw)
    except InvalidInput:
        return None


def _parse_report(body: Any, raw: bytes, secret: str | None) -> _Report:
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping):
        return _Report(_shown(inner if isinstance(inner, str) else raw.decode(errors="replace"), secret))
    message = next((inner[name] for name in ("message", "detail", "error") if inner.get(name)), "")
    param, code = inner.get("param"), inner.get("code")
    shown = _shown(param, secret) if isinstance(param, str) else None
    return _Report(_shown(str(message), secret), shown, code, str(inner.get("type")))


def _shown(text: str, secret: str | None) -> str:
    safe = text.replace(secret, "***") if secret else text
    return " ".join("".join(letter if letter.isprintable() else " " for letter in safe[:_SHOWN]).split())


def retry_after(header: str, now: datetime) -> float | None:
    """Return the seconds to wait that a `Retry-After` requests, also as a date; None for anything else."""
    try:
        seconds = float(header)
    except ValueError:
        seconds = _until(header, now)
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None


def _until(header: str, now: datetime) -> float:
    try:
        return (parsedate_to_datetime(header) - now).total_seconds()
    except (ValueError, TypeError):
        return math.nan
