"""What went wrong with a server, in the library's own errors, and whether it may be asked again."""

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
    """An attempt that failed with `error`. `again` says that another one may succeed, after `wait` seconds if known."""

    def __init__(self, error: ModelyardError, again: bool = False, wait: float | None = None) -> None:
        self.error, self.again, self.wait = error, again, wait
        super().__init__(str(error))


@attrs.frozen
class Head:
    """The beginning of an answer: its status, and the headers that matter."""

    status: int
    content_type: str = ""
    content_encoding: str = ""
    retry_after: str = ""


@attrs.frozen
class _Told:
    """What a server says of a failure, in whichever of the usual shapes."""

    message: str
    param: str | None = None
    code: Any = None


def refusal(head: Head, raw: bytes, secret: str | None, now: datetime) -> RetryableError:
    """What an answer without success means. The server's words are shortened, and never show the key."""
    return _setback(head.status, _told(_json(raw), raw, secret), retry_after(head.retry_after, now))


def failed_inside(answer: Mapping[str, Any], secret: str | None) -> RetryableError | None:
    """What an error means that stands in the place of an answer, or of a chunk, under a status of success."""
    if not answer.get("error") and answer.get("object") != "error":
        return None
    told = _told(answer, b"", secret)
    known = type(told.code) is int and 400 <= told.code < 600
    return _setback(told.code if known else 500, told, None)


def _setback(status: int, told: _Told, wait: float | None) -> RetryableError:
    words = f": {told.message}" if told.message else ""
    if status in _CALLERS:
        return RetryableError(_invalid(told))
    if status in _KEYS:
        return RetryableError(
            BackendError(f"the upstream server refuses this host's key ({status}); the host must give a valid api_key")
        )
    if status in _BUSY:
        busy = Overloaded(f"the upstream server has no room now ({status}){words}", 1.0 if wait is None else wait)
        return RetryableError(busy, True, wait)
    if status == 404:
        return RetryableError(
            BackendError(f"the upstream server does not know this model, or is not at this address{words}")
        )
    return RetryableError(
        BackendError(f"the upstream server answered with status {status}{words}"), status in _AGAIN, wait
    )


def _invalid(told: _Told) -> InvalidInput:
    place = told.param or "messages"
    message = told.message.removeprefix(f"{place}: ") or "was refused by the upstream server"
    if told.code == ContextLengthExceeded.code or message.startswith(_TOO_LONG):
        return ContextLengthExceeded([Problem((place,), message, ContextLengthExceeded.code)])
    return InvalidInput.at(place, msg=message)


def _json(raw: bytes) -> Any:
    try:
        return loads(raw)
    except InvalidInput:
        return None


def _told(body: Any, raw: bytes, secret: str | None) -> _Told:
    inner = body.get("error", body) if isinstance(body, Mapping) else None
    if not isinstance(inner, Mapping):
        return _Told(_shown(inner if isinstance(inner, str) else raw.decode(errors="replace"), secret))
    message = next((inner[name] for name in ("message", "detail", "error") if inner.get(name)), "")
    param, code = inner.get("param"), inner.get("code")
    return _Told(_shown(str(message), secret), _shown(param, secret) if isinstance(param, str) else None, code)


def _shown(text: str, secret: str | None) -> str:
    """A stranger's words on one line, without the key."""
    safe = text.replace(secret, "***") if secret else text
    return " ".join("".join(letter if letter.isprintable() else " " for letter in safe[:_SHOWN]).split())


def retry_after(header: str, now: datetime) -> float | None:
    """The seconds that a `Retry-After` asks to wait, also where it names a date; None where it says nothing."""
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
