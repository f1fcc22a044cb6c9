"""Failures of a server as the library's own errors, and whether another attempt may succeed."""

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from types import UnionType
from typing import Any
from urllib.parse import urlsplit

import attrs

from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, ModelyardError, Overloaded, Problem
from modelyard.formats.chat.request import PARAMETERS
from modelyard.parts.upstream.answers.envelopes import enclosed
from modelyard.parts.upstream.answers.values import objects_of, read_json

_SHOWN = 500
_LONGEST_WAIT = 3600.0
_CALLERS = frozenset({400, 413, 422})
_KEYS = frozenset({401, 403})
_BUSY = frozenset({429, 503, 529})
_AGAIN = frozenset({408, 409, 425, *range(500, 600)}) - {501, 505, 511}
"""Faults of a server or of a proxy before it that may pass: 520 to 530 are those of one that is widely used."""
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
_UNPAID = re.compile(
    r"insufficient[_ ]?(balance|quota|funds|credit)|(balance|credits?) (is |are )?(insufficient|too low|not enough)"
    r"|exceeded your current quota|billing|\barrears?\b|payment required",
    re.IGNORECASE,
)
"""What the host alone can mend, and no further attempt: its account has run out."""
_CROWDED = re.compile(
    r"rate.?limit|too many requests|overloaded|server is busy|concurrency|try again later|\bthrottl", re.IGNORECASE
)
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
    location: str = ""

    @property
    def is_success(self) -> bool:
        """Whether an answer follows: some servers answer a request that makes something with 201 or 202."""
        return 200 <= self.status < 300

    @property
    def is_event_stream(self) -> bool:
        return self.content_type.lower().startswith("text/event-stream")

    @property
    def is_redirect(self) -> bool:
        """Whether the same request is to be sent to another place (RFC 9110, 15.4.8 and 15.4.9)."""
        return self.status in (307, 308) and bool(self.location)


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
    if 300 <= head.status < 400 and head.location:
        return moved(head, secret)
    return _retryable(head.status, _parse_report(_json(raw), raw, secret), retry_after(head.retry_after, now))


def moved(head: Head, secret: str | None) -> RetryableError:
    """Return the error of a redirect that is not followed. It names the place without a user and a query."""
    try:
        place = urlsplit(head.location)
        host = place.netloc.rpartition("@")[2]
        shown = f"{place.scheme}://{host}{place.path}" if host else place.path
    except ValueError:
        shown = "another place"
    return RetryableError(
        BackendError(
            f"the upstream server answered with status {head.status} and redirects to {_shown(shown, secret)}; "
            "give the address of its chat-completion format as the url"
        )
    )


def failed_inside(answer: Mapping[str, Any], secret: str | None) -> RetryableError | None:
    """Return the error of an answer, or of a chunk, that reports one under a status of success, perhaps enclosed."""
    choices = [one for one in objects_of(answer.get("choices")) if one.get("error")]
    for inner in choices if "choices" in answer else enclosed(answer, _FAILED):
        if (failed := failed_inside(inner, secret)) is not None:
            return failed
    marked = answer.get("error") or "error" in (answer.get("object"), answer.get("type"))
    return reported(answer, secret) if marked or _refuses(answer) else None


def reported(answer: Any, secret: str | None) -> RetryableError | None:
    """Return the error that an answer without a result reports; None if it says nothing."""
    report = _parse_report(answer, b"", secret)
    if not report.message:
        return None
    code = re.fullmatch("[45][0-9]{2}", str(report.code))
    return _retryable(int(code[0]) if code else 500, report, None)


_FAILED, _ANSWERED = frozenset({"error"}), frozenset({"choices"})
_WELL = frozenset({"0", "200", "ok", "success", "none", ""})


def _refuses(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer without choices or data says that it failed, in an envelope of a gateway or a host."""
    if answer.get("choices") or answer.get("data") or answer.get("usage") or enclosed(answer, _ANSWERED):
        return False
    inner = answer.get("base_resp")
    code = inner.get("status_code") if isinstance(inner, Mapping) else answer.get("code", answer.get("error_code"))
    failed = answer.get("success") is False or str(code).lower() not in _WELL
    named = any(answer.get(name) for name in ("errors", "fault", "error_msg", "error_message", "detail"))
    return named or (failed and bool(_parse_report(answer, b"", None).message))


def _retryable(status: int, report: _Report, wait: float | None) -> RetryableError:
    detail = f": {report.message}" if report.message else ""
    if status in _CALLERS or _TOO_LONG.search(report.words):
        return RetryableError(_caused_by_caller(report))
    if status == 402 or _UNPAID.search(report.words):
        return RetryableError(
            BackendError(f"the upstream server's account of this host has run out{detail}; the host must top it up")
        )
    if status in _KEYS:
        return RetryableError(
            BackendError(f"the upstream server refuses this host's key ({status}); the host must give a valid api_key")
        )
    if status in _BUSY or (status >= 500 and _CROWDED.search(report.words)):
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
        return read_json(raw)
    except InvalidInput:
        return None


_INNER = ("error", "errors", "fault", "base_resp", "detail")
_MESSAGES = (
    *("message", "Message", "msg", "detail", "error", "error_msg", "error_message", "errorMessage", "faultstring"),
    *("status_msg", "error_description", "title", "reason", "description"),
)
_CODES = ("code", "status_code", "error_code", "statusCode", "status")
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)


def _parse_report(body: Any, raw: bytes, secret: str | None) -> _Report:
    """Read what a server says of a failure: in the format's envelope, in another one, as text, or as a page."""
    inner: Any = body
    above: Mapping[str, Any] = {}
    while isinstance(inner, list | Mapping):
        if isinstance(inner, list):
            inner = inner[0] if inner else None
            continue
        nested = next((inner[name] for name in _INNER if isinstance(inner.get(name), list | Mapping)), None)
        if not nested:
            break
        above, inner = inner, nested
    if not isinstance(inner, Mapping):
        text = inner if isinstance(inner, str) else raw.decode(errors="replace")
        page = _TITLE.search(text) if text.lstrip().startswith("<") else None
        return _Report(_shown(page[1] if page else text, secret), code=_first(above, _CODES))
    message = _first(inner, _MESSAGES, str) or _first(above, _MESSAGES, str) or _first(inner, _MESSAGES)
    place = inner.get("loc") if isinstance(inner.get("loc"), list) else None
    param = place[-1] if place else inner.get("param")
    shown = _shown(param, secret) if isinstance(param, str) else None
    code = _first(inner, _CODES) or _first(above, _CODES)
    return _Report(_shown(str(message or ""), secret), shown, code, str(inner.get("type") or inner.get("__type")))


def _first(owner: Mapping[str, Any], names: Iterable[str], kind: type | UnionType = str | int) -> Any:
    """Return the first of these members that says something: that an `error` is true does not."""
    given = (owner.get(name) for name in names)
    return next((one for one in given if one and one is not True and isinstance(one, kind)), None)


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
