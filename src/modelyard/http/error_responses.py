"""Errors as responses: the status of the exception, and the body in the error format of the route."""

import logging
import math
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Self

import attrs

from modelyard import errors
from modelyard.errors import Problem
from modelyard.formats.converter import unstructure
from modelyard.http import errors as http_errors
from modelyard.http.headers import Header
from modelyard.http.interface import ErrorFormat
from modelyard.http.message import PROTOBUF, Response, json_response

_PLACES = ("body", "query", "path", "header")


@attrs.frozen
class ChatError:
    """What went wrong with a chat completion."""

    message: str
    type: str
    param: str | None
    code: str | None


@attrs.frozen
class ChatErrorBody:
    """The error body of chat completions; `detail` repeats the message for a path that has no route."""

    error: ChatError
    detail: str | None = None


@attrs.frozen
class ProblemItem:
    """One problem of an input."""

    loc: tuple[str, ...]
    msg: str
    type: str


@attrs.frozen
class ProblemsBody:
    """The body of status 422."""

    detail: tuple[ProblemItem, ...]

    @classmethod
    def of(cls, problems: Sequence[Problem]) -> Self:
        """Describe problems, without the input. The parts of locations are strings."""
        return cls(tuple(ProblemItem(tuple(map(str, one.loc)), one.msg, one.type) for one in problems))


@attrs.frozen
class DetailBody:
    """The error body of the training interface; `error` repeats it for a path that has no route."""

    detail: str
    error: ChatError | None = None


@attrs.frozen
class ReasonBody:
    """The error body of the evaluation interface. `detail` repeats `reason`; deleted objects have `deleted_at`."""

    reason: str
    error_code: str
    detail: str
    deleted_at: str | None = None


def place(problem: Problem) -> str:
    """Write where a problem is: `messages[0].role`; "" for the whole body."""
    steps = problem.loc[1:] if problem.loc and problem.loc[0] in _PLACES else problem.loc
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def sentence(problems: Sequence[Problem]) -> str:
    """Write all problems in one line, each after its place."""
    return "; ".join(f"{where}: {p.msg}" if (where := place(p)) else f"the body {p.msg}" for p in problems)


log: logging.Logger = logging.getLogger("modelyard.http")


INTERNAL = "internal error; it was logged with the x-request-id of this response"

SENTENCES: Mapping[type[BaseException], str] = {
    errors.StoreBusy: "the store is busy; try again",
    errors.ArtifactsUnavailable: "the store of the artifacts does not answer; try again later",
    errors.OutcomeUnknown: "it is not known whether this was stored; look before you send it again",
    errors.StorageFull: "there is no room left to store this; nothing was stored",
    errors.StoreClosed: "the platform is closing",
}
"""What callers read in the place of messages that they must not see. Those of status 500 are `INTERNAL`."""

EXPECTED = (errors.ArtifactsUnavailable, errors.Overloaded, errors.NoWorker, errors.StoreBusy, errors.StoreClosed)
"""Nothing is broken: the request succeeds later, or on another machine. Logged without a traceback."""

CHAT_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


def error_status(failure: BaseException, error_format: ErrorFormat) -> int:
    """Return the status of an exception: its own, unless the interface has another one for its class or a base."""
    for cls in type(failure).__mro__:
        if cls in error_format.statuses:
            return error_format.statuses[cls]
        if "status" in vars(cls):
            break
    return _status(failure)


def _status(failure: BaseException) -> int:
    return failure.status if isinstance(failure, errors.ModelyardError) else errors.ModelyardError.status


def failed(failure: Exception, error_format: ErrorFormat, request_id: str, media: str | None = None) -> Response:
    """Return the response to a request that raised `failure`, which is logged unless the caller is at fault.

    `media` is the declared type of the request, which that of the response follows where an interface says so.
    """
    status = error_status(failure, error_format)
    if status >= 500:
        report(failure, request_id)
    elif log.isEnabledFor(logging.INFO) and not isinstance(failure, http_errors.ClientDisconnected):
        _log_refusal(failure, status, request_id)
    body = error_format.body(failure, status)
    if error_format.coded is not None and media is not None and media.lower().startswith(PROTOBUF):
        return Response(status, [("content-type", PROTOBUF), *error_headers(failure)], error_format.coded(body))
    return json_response(body, status, error_headers(failure))


def report(failure: Exception, request_id: str) -> None:
    """Log a fault: one line, and below it the traceback of what is not an error of our own.

    A failure is reported once for a request. No text of it can forge a line of the log, whichever formatter writes it.
    What is `EXPECTED` is a warning. Of it, and of a store that is full, the traceback is there at level DEBUG alone."""
    expected, ours = isinstance(failure, EXPECTED), isinstance(failure, errors.ModelyardError)
    told = isinstance(failure, (*EXPECTED, errors.StorageFull, errors.OutcomeUnknown))  # the line says it all
    level, verb = (logging.WARNING, "was refused") if expected else (logging.ERROR, "failed")
    heard = log.isEnabledFor(level) and (log.hasHandlers() or not expected)  # nothing is said raw but what is broken
    if not heard or getattr(failure, "reported", None) == request_id:
        return
    with suppress(AttributeError):  # an exception with slots is reported as often as it comes
        failure.reported = request_id  # type: ignore[attr-defined]
    arguments = (request_id, verb, _escaped(str(failure)) if ours else type(failure).__name__)
    record = log.makeRecord(log.name, level, __file__, 0, "request %s %s: %s", arguments, exc_info=None)
    cause = failure.__cause__ if ours and _status(failure) != errors.ModelyardError.status else failure
    if cause is not None and (not told or log.isEnabledFor(logging.DEBUG)):
        lines = "".join(traceback.format_exception(cause)).splitlines()
        record.exc_text = "\n".join(f"  {_escaped(line)}" for line in lines)
    log.handle(record)


def _log_refusal(failure: Exception, status: int, request_id: str) -> None:
    """Log what was wrong and where, which may name fields of the caller's. The words may quote the request: they are
    there at level DEBUG only."""
    where = " ".join(place(one) for one in getattr(failure, "problems", ())[:5])
    words = f": {failure}" if log.isEnabledFor(logging.DEBUG) else ""
    told = _escaped(f"{error_code(failure)} {where[:200]}".strip() + words)
    log.info("request %s was refused with %d: %s", request_id, status, told)


def _escaped(text: str) -> str:
    """Escape line breaks and control characters."""
    return text.encode("unicode_escape").decode("ascii")


_LATER = (429, 503, 529)
"""The statuses that always come with `Retry-After`."""


def error_headers(failure: Exception) -> list[Header]:
    headers = []
    if isinstance(failure, http_errors.MethodNotAllowed):
        headers.append(("allow", failure.allow))
    if isinstance(failure, errors.Conflict | errors.NoAnswerPrepared | errors.OutcomeUnknown):
        headers.append(("x-should-retry", "false"))
    wait = getattr(failure, "retry_after", None)
    if wait is not None or _status(failure) in _LATER:
        headers.append(("retry-after", str(max(1, math.ceil(wait or 1)))))
    return headers


# ---- the error formats -------------------------------------------------------------------------------------------


def error_sentence(failure: Exception) -> str:
    """Return what a caller may read of a failure."""
    if _status(failure) == errors.ModelyardError.status:
        return INTERNAL
    sentence = next((SENTENCES[cls] for cls in type(failure).__mro__ if cls in SENTENCES), "")
    return sentence or str(failure) or type(failure).__name__


def error_code(failure: Exception) -> str:
    """Return the code by which programs know a failure."""
    return failure.code if isinstance(failure, errors.ModelyardError) else errors.ModelyardError.code


def chat_body(failure: Exception, status: int) -> Mapping[str, Any]:
    """Return `{"error": {...}}` as JSON data. Every problem is in the message, because clients show nothing else."""
    type_ = CHAT_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    message, param = error_sentence(failure), getattr(failure, "param", None)
    if isinstance(failure, errors.ModelNotFound):
        param = "model"
    if isinstance(failure, errors.InvalidInput) and failure.problems:
        first = failure.problems[0]
        # Clients look for how this one's message begins, so its place is left out.
        whole = isinstance(failure, errors.ContextLengthExceeded)
        message, param = first.msg if whole else sentence(failure.problems), place(first) or None
        if whole and failure.code not in message:
            message += f" ({failure.code})"  # one client looks for the code in the message
    both = message if isinstance(failure, http_errors.UnknownRoute) else None  # a client of either format may ask
    data: Mapping[str, Any] = unstructure(ChatErrorBody(ChatError(message, type_, param, error_code(failure)), both))
    return data


def _detail_body(failure: Exception, status: int) -> object:
    if isinstance(failure, errors.InvalidInput):
        return ProblemsBody.of(failure.problems)
    if isinstance(failure, http_errors.UnknownRoute):
        return chat_body(failure, status)
    return DetailBody(error_sentence(failure))


def _reason_body(failure: Exception, status: int) -> ProblemsBody | ReasonBody:
    if isinstance(failure, errors.InvalidInput):
        return ProblemsBody.of(failure.problems)
    words = error_sentence(failure)
    deleted_at = failure.deleted_at.isoformat() if isinstance(failure, errors.ObjectDeleted) else None
    return ReasonBody(words, error_code(failure), words, deleted_at)


ERROR = ErrorFormat("error", chat_body, ChatErrorBody, {errors.InvalidInput: 400})
"""`{"error": {...}}`, as the chat-completion format has it."""

DETAIL = ErrorFormat("detail", _detail_body, DetailBody | ProblemsBody)
"""`{"detail": ...}`, as the training interface has it."""

REASON = ErrorFormat("reason", _reason_body, ReasonBody | ProblemsBody, {errors.Conflict: 400})
"""`{"reason": ...}`, as the evaluation interface has it."""
