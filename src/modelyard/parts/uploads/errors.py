"""Errors as GraphQL has them."""

from collections.abc import Mapping

import attrs

from modelyard import errors
from modelyard.http.error_responses import error_code, error_sentence
from modelyard.http.interface import ErrorFormat


@attrs.frozen
class GraphQLError:
    """One thing that went wrong."""

    message: str
    extensions: Mapping[str, str]


@attrs.frozen
class GraphQLErrorsBody:
    """The error body of uploads: there are no data."""

    errors: tuple[GraphQLError, ...]
    data: None


def _errors_body(failure: Exception, status: int) -> GraphQLErrorsBody:
    if isinstance(failure, errors.InvalidInput):
        messages = [str(problem) for problem in failure.problems]
    else:
        messages = [error_sentence(failure)]
    extensions = {"code": error_code(failure)}
    return GraphQLErrorsBody(tuple(GraphQLError(message, extensions) for message in messages), None)


ERRORS = ErrorFormat("errors", _errors_body, GraphQLErrorsBody, {errors.InvalidInput: 400})
"""`{"errors": [...], "data": null}`."""
