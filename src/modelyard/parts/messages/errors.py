"""Errors in the messages format."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard import errors
from modelyard.formats.converter import unstructure
from modelyard.http.error_responses import error_sentence, sentence
from modelyard.http.interface import ErrorFormat


@attrs.frozen
class MessagesError:
    """What went wrong with an answer in the messages format. `details` is for programs: of a request with `thread`,
    that clients may go on without it.
    """

    type: str
    message: str
    details: Mapping[str, Any] | None = None


@attrs.frozen
class MessagesErrorBody:
    """The error body of the messages format; its `type` is "error"."""

    error: MessagesError
    type: str


MESSAGES_TYPES: Mapping[int, str] = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}


NO_THREADS: Mapping[str, Any] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def messages_body(failure: Exception, status: int) -> Mapping[str, Any]:
    """Return `{"type": "error", "error": {...}}` as JSON data. Every problem is in the message."""
    type_ = MESSAGES_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    message = sentence(failure.problems) if isinstance(failure, errors.InvalidInput) else error_sentence(failure)
    details = NO_THREADS if type_ == "invalid_request_error" and _asks_for_thread(failure) else None
    data: Mapping[str, Any] = unstructure(MessagesErrorBody(MessagesError(type_, message, details), "error"))
    return data


def _asks_for_thread(failure: Exception) -> bool:
    return isinstance(failure, errors.InvalidInput) and any(one.loc == ("body", "thread") for one in failure.problems)


MESSAGES = ErrorFormat("type", messages_body, MessagesErrorBody, {errors.InvalidInput: 400, errors.Overloaded: 529})
"""`{"type": "error", "error": {...}}`."""
