"""Failures of a server as the library's own errors, and whether another attempt may succeed."""

import math
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

import attrs

from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, ModelyardError, Overloaded, Problem
from modelyard.formats.json import loads

_SHOWN = 500
_LONGEST_WAIT = 3600.0
_CALLERS = frozenset({400, 413, 422})
_KEYS = frozenset({401, 403})
_BUSY = frozenset({429, 503})
_AGAIN = frozenset({408, 409, 425, 500, 502, 504})
_TOO_LONG = "This model's maximum context length is"


class RetryableError(Exception):
    """A failed attempt, with its `error`. `again` is whether another may succeed, after `wait` seconds if known."""

    def __init__(self, error: ModelyardError, again: bool = False, wait: float | None = None) -> None:
        self.error, self.again, self.wait = error, again, wait
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
    """What a server reports of a failure, in any of the usual shapes."""

    message: str
    param: str | None = None
    code: Any = None


def refusal(head: Head, raw: bytes, secret: str | None, now: datetime) -> RetryableError:
    """Return the error that an answer without success means. The server's message is shortened, without the key."""
    return _retryable(head.status, _parse_report(_json(raw), raw, secret), retry_after(head.retry_after, now))


def failed_inside(answer: Mapping[str, Any], secret: str | None) -> RetryableError | None:
    """Return the error of an answer, or of a chunk, that reports one under a status of success."""
    if not answer.get("error") and answer.get("object") != "error":
        return None
    report = _parse_report(answer, b"", secret)
    known = type(report.code) is int and 400 <= report.code < 600
    return _retryable(report.code if known else 500, report, None)


def _retryable(status: int, report: _Report, wait: float | None) -> RetryableError:
    detail = f": {report.message}" if report.message else ""
    if status in _CALLERS:
        return RetryableError(_invalid(report))
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


def _invalid(report: _Report) -> InvalidInput:
    place = report.param or "messages"
    message = report.message.removeprefix(f"{place}: ") or "was refused by the upstream server"
    if report.code == ContextLengthExceeded.code or message.startswith(_TOO_LONG):
        return ContextLengthExceeded([Problem((place,), message, ContextLengthExceeded.code)])
    return InvalidInput.at(place, msg=message)


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
    return _Report(_shown(str(message), secret), _shown(param, secret) if isinstance(param, str) else None, code)


def _shown(text: str, secret: str | None) -> str:
    """Return a server's text on one line, without the key."""
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
