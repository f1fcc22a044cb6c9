"""Errors as responses: the status by the class of the exception, the body in the error format of the route."""

import logging
import math
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from modelyard import errors
from modelyard.errors import Problem
from modelyard.http import errors as refusal
from modelyard.http.message import Header, Response, json_response
from modelyard.http.route import ErrorFormat

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
    """The error body of chat completions."""

    error: ChatError


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


@attrs.frozen
class DetailBody:
    """The error body of the training interface."""

    detail: str


@attrs.frozen
class ReasonBody:
    """The error body of the evaluation interface. `detail` repeats `reason`; deleted objects have `deleted_at`."""

    reason: str
    detail: str
    error_code: str | None = None
    deleted_at: str | None = None


@attrs.frozen
class GraphQLError:
    """One thing that went wrong."""

    message: str
    extensions: Mapping[str, str]


@attrs.frozen
class GraphQLErrorsBody:
    """The error body of uploads: there are no data."""

    errors: tuple[GraphQLError, ...]
    data: None = None


def graphql_errors(messages: Sequence[str], code: str) -> Mapping[str, Any]:
    """Return `{"errors": [...], "data": null}` with one entry for each message."""
    return {"errors": [{"message": message, "extensions": {"code": code}} for message in messages], "data": None}


def chat_error(message: str, kind: str, code: str, param: str | None = None) -> Mapping[str, Any]:
    """Return `{"error": {...}}` with all four keys."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def problem_list(problems: Sequence[Problem]) -> Mapping[str, Any]:
    """Return `{"detail": [...]}` with one entry for each problem, without the input. Parts of locations are strings."""
    return {"detail": [{"loc": [str(step) for step in p.loc], "msg": p.msg, "type": p.type} for p in problems]}


def place(problem: Problem) -> str:
    """Write where a problem is: `messages[0].role`; "" for the whole body."""
    steps = problem.loc[1:] if problem.loc and problem.loc[0] in _PLACES else problem.loc
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def sentence(problems: Sequence[Problem]) -> str:
    """Write all problems in one line, each after its place."""
    return "; ".join(f"{where}: {p.msg}" if (where := place(p)) else f"the body {p.msg}" for p in problems)


log = logging.getLogger("modelyard.http")


@attrs.frozen
class ErrorStatus:
    """The status of a class of exceptions, and a sentence that replaces messages which callers must not see."""

    status: int
    sentence: str = ""


_INTERNAL = ErrorStatus(500, "something failed here; it was logged under this answer's x-request-id")

KINDS: Mapping[type[BaseException], ErrorStatus] = {
    errors.CallerError: ErrorStatus(400),
    errors.InvalidInput: ErrorStatus(422),
    errors.NotFound: ErrorStatus(404),
    errors.Conflict: ErrorStatus(409),
    errors.RunAlreadyFinished: ErrorStatus(400),
    errors.Unauthenticated: ErrorStatus(401),
    errors.Forbidden: ErrorStatus(403),
    errors.BudgetExceeded: ErrorStatus(402),
    errors.RateLimited: ErrorStatus(429),
    errors.BodyTooLarge: ErrorStatus(413),
    refusal.UnknownRoute: ErrorStatus(404),
    refusal.MethodNotAllowed: ErrorStatus(405),
    refusal.UnsupportedMedia: ErrorStatus(415),
    refusal.BodyTimeout: ErrorStatus(408),
    errors.NoWorker: ErrorStatus(503),
    errors.BackendError: ErrorStatus(502),
    errors.Overloaded: ErrorStatus(503),
    errors.QueueFull: ErrorStatus(429),
    errors.StoreBusy: ErrorStatus(503, "the store is busy; try again"),
    errors.StorageFull: ErrorStatus(507, "there is no room left to store this; nothing was stored"),
    errors.StoreClosed: ErrorStatus(503, "the platform is closing"),
    BaseException: _INTERNAL,
}

EXPECTED = (errors.Overloaded, errors.NoWorker, errors.StoreBusy, errors.StoreClosed)
"""Nothing is broken: the request succeeds later, or on another machine. Logged without a traceback."""

OWN_KINDS: Mapping[ErrorFormat, Mapping[type[BaseException], ErrorStatus]] = {
    ErrorFormat.ERROR: {errors.InvalidInput: ErrorStatus(400)},
    ErrorFormat.DETAIL: {},
    ErrorFormat.REASON: {errors.Conflict: ErrorStatus(400)},
    ErrorFormat.ERRORS: {errors.InvalidInput: ErrorStatus(400)},
}

CHAT_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "insufficient_quota",
    403: "permission_error",
    429: "rate_limit_error",
}


def error_status(failure: BaseException, error_format: ErrorFormat) -> ErrorStatus:
    """Return the status of an exception: that of its class, or of the nearest base class in the tables."""
    own = OWN_KINDS[error_format]
    return next(kind for cls in type(failure).__mro__ if (kind := own.get(cls) or KINDS.get(cls)))


def failed(failure: Exception, error_format: ErrorFormat, request_id: str) -> Response:
    """Return the response to a request that raised `failure`, which is logged unless the caller is at fault."""
    kind = error_status(failure, error_format)
    if kind.status >= 500:
        report(failure, request_id)
    return json_response(_BODIES[error_format](failure, kind), kind.status, _headers(failure))


def report(failure: Exception, request_id: str) -> None:
    """Log a fault with its traceback on one line, so that its text cannot forge another line of the log.

    An `EXPECTED` one is logged without a traceback.
    """
    if isinstance(failure, EXPECTED):
        log.warning("request %s was refused: %s", request_id, _one_line(str(failure)))
    else:
        log.error("request %s failed: %s", request_id, _one_line("".join(traceback.format_exception(failure))))


def _one_line(text: str) -> str:
    return text.encode("unicode_escape").decode("ascii")


def _headers(failure: Exception) -> list[Header]:
    headers = []
    if isinstance(failure, refusal.MethodNotAllowed):
        headers.append(("allow", failure.allow))
    if isinstance(failure, errors.Conflict):
        headers.append(("x-should-retry", "false"))
    wait = 1.0 if isinstance(failure, errors.StoreBusy) else getattr(failure, "retry_after", None)
    if wait is not None:
        headers.append(("retry-after", str(max(1, math.ceil(wait)))))
    return headers


# ---- the error formats -------------------------------------------------------------------------------------------


def _words(failure: Exception, kind: ErrorStatus) -> str:
    return kind.sentence or str(failure) or type(failure).__name__


def _code(failure: Exception) -> str:
    return failure.code if isinstance(failure, errors.ModelyardError) else errors.ModelyardError.code


def chat_body(failure: Exception, kind: ErrorStatus) -> Mapping[str, object]:
    """Return `{"error": {...}}`. Every problem is in the message, because clients show nothing else."""
    type_ = CHAT_TYPES.get(kind.status, "server_error" if kind.status >= 500 else "invalid_request_error")
    if isinstance(failure, errors.InvalidInput) and failure.problems:
        first = failure.problems[0]
        # Clients look for how this one's message begins, so its place is left out.
        whole = first.msg if isinstance(failure, errors.ContextLengthExceeded) else sentence(failure.problems)
        return chat_error(whole, type_, failure.code, place(first) or None)
    param = "model" if isinstance(failure, errors.ModelNotFound) else None
    return chat_error(_words(failure, kind), type_, _code(failure), param)


def _detail_body(failure: Exception, kind: ErrorStatus) -> Mapping[str, object]:
    if isinstance(failure, errors.InvalidInput):
        return problem_list(failure.problems)
    return {"detail": _words(failure, kind)}


def _reason_body(failure: Exception, kind: ErrorStatus) -> Mapping[str, object]:
    if isinstance(failure, errors.InvalidInput):
        return problem_list(failure.problems)
    words = _words(failure, kind)
    gone = {"deleted_at": failure.deleted_at.isoformat()} if isinstance(failure, errors.ObjectDeleted) else {}
    return {"reason": words, "error_code": _code(failure), "detail": words, **gone}


def _errors_body(failure: Exception, kind: ErrorStatus) -> Mapping[str, object]:
    if isinstance(failure, errors.InvalidInput):
        return graphql_errors([str(problem) for problem in failure.problems], failure.code)
    return graphql_errors([_words(failure, kind)], _code(failure))


_BODIES: Mapping[ErrorFormat, Callable[[Exception, ErrorStatus], Mapping[str, object]]] = {
    ErrorFormat.ERROR: chat_body,
    ErrorFormat.DETAIL: _detail_body,
    ErrorFormat.REASON: _reason_body,
    ErrorFormat.ERRORS: _errors_body,
}
