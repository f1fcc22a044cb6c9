"""The bodies of errors in the dialects of the interfaces (specification 7), and in that of uploads."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.errors import Problem

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
    """The error body of the evaluation interface. `detail` repeats `reason`; `deleted_at` is a deleted object's."""

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
    """`{"errors": [...], "data": null}`, one entry per message."""
    return {"errors": [{"message": message, "extensions": {"code": code}} for message in messages], "data": None}


def chat_error(message: str, kind: str, code: str, param: str | None = None) -> Mapping[str, Any]:
    """`{"error": {...}}` with all four keys."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def problem_list(problems: Sequence[Problem]) -> Mapping[str, Any]:
    """`{"detail": [...]}`, one entry per problem, every part of a location a string, without the input."""
    return {"detail": [{"loc": [str(step) for step in p.loc], "msg": p.msg, "type": p.type} for p in problems]}


def place(problem: Problem) -> str:
    """Where a problem is, as a person writes it: `messages[0].role`; "" for the whole body."""
    steps = problem.loc[1:] if problem.loc and problem.loc[0] in _PLACES else problem.loc
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def sentence(problems: Sequence[Problem]) -> str:
    """All problems in one line, each behind its place."""
    return "; ".join(f"{where}: {p.msg}" if (where := place(p)) else f"the body {p.msg}" for p in problems)
