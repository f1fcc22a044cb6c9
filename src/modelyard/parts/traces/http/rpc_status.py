"""Errors of exports of spans: `google.rpc.Status`."""

from collections.abc import Mapping

import attrs

from modelyard import errors
from modelyard.http.error_responses import error_sentence, sentence
from modelyard.http.interface import ErrorFormat
from modelyard.parts.traces.otlp import numbered


@attrs.frozen
class RpcStatus:
    """The error body of exports of spans: `google.rpc.Status`, whose codes are those of gRPC."""

    code: int
    message: str


RPC_CODES: Mapping[int, int] = {401: 16, 402: 8, 403: 7, 404: 5, 408: 4, 409: 10, 429: 8, 503: 14}
"""The codes of gRPC by status, where they are not 3 (invalid) or 13 (internal)."""


def _status_body(failure: Exception, status: int) -> RpcStatus:
    message = sentence(failure.problems) if isinstance(failure, errors.InvalidInput) else error_sentence(failure)
    return RpcStatus(RPC_CODES.get(status, 13 if status >= 500 else 3), message)


STATUS = ErrorFormat(
    "code", _status_body, RpcStatus, {errors.InvalidInput: 400}, lambda status: numbered(status.code, status.message)
)
"""`google.rpc.Status`, in JSON or protobuf."""
