"""Routes of the evaluation interface: the namespace in the path, references in bodies, lists as JSON Lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypedDict, TypeVar

import attrs

from modelyard.domain.evaluation.references import RefKind, RefMode, reference_problem
from modelyard.domain.identity import check_name
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.converter import structure
from modelyard.http.message import Response, dump
from modelyard.http.route import Auth, Handler, Interface, Parameter, Route, RouteCall, documented_route

T = TypeVar("T")

NAMESPACE = "/v2/{entity}/{project}"
FIRST_LINES = 1000
"""How many lines are read before the status is sent, so that an error among them fails the request."""

TEXTS: Mapping[str, Any] = {"type": "array", "items": {"type": "string"}}
COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0}
WINDOW = (
    Parameter("limit", COUNT, "How many at most; all when absent."),
    Parameter("offset", COUNT, "How many to leave out at the start."),
)


_IN_PATH = {("entity",), ("project",)}


@contextmanager
def problems_in_request() -> Iterator[None]:
    """Locate the problems that a use case raises where the client put the values: in the path or the body."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput([_moved(problem) for problem in error.problems]) from error


def _moved(problem: Problem) -> Problem:
    return attrs.evolve(problem, loc=("path" if problem.loc in _IN_PATH else "body", *problem.loc))


class NamespaceArguments(TypedDict):
    """The arguments that name an entity and a project."""

    entity: str
    project: str


def namespace_of(call: RouteCall) -> NamespaceArguments:
    """Return the entity and project of the path. Raises `Forbidden` before anything else of the request is checked."""
    entity, project = call.params["entity"], call.params["project"]
    call.principal.require(entity, project)
    with problems_in_request():
        return {"entity": check_name(entity, "entity"), "project": check_name(project, "project")}


def optional_body(cls: type[T], call: RouteCall) -> T:
    """Read a body that may be left out. Raises `InvalidInput`."""
    return structure(cls, {} if call.body is None else call.body, "body")


def body_with_references(cls: type[T], call: RouteCall, **kinds: frozenset[RefKind]) -> T:
    """Read a body whose members named in `kinds` are references. Raises `InvalidInput`.

    A body that does not fit is refused with its wrong references too, so that all problems are reported at once.
    """
    try:
        return structure(cls, call.body, "body")
    except InvalidInput as wrong:
        given = call.body if isinstance(call.body, dict) else {}
        mode = RefMode(call.platform.settings.reference_mode)
        raise InvalidInput([*wrong.problems, *_wrong_references(given, mode, kinds)]) from None


def _wrong_references(
    given: Mapping[str, Any], mode: RefMode, kinds: Mapping[str, frozenset[RefKind]]
) -> Iterator[Problem]:
    for field in kinds:
        value = given.get(field)
        many = (
            [((field, at), text) for at, text in enumerate(value)] if isinstance(value, list) else [((field,), value)]
        )
        for loc, text in many:
            problem = reference_problem(field, text, kinds[field], mode) if isinstance(text, str) else None
            if problem is not None:
                yield Problem(("body", *loc), problem.msg, problem.type)


def lines_response(items: Iterator[T], shown: Callable[[T], object]) -> Response:
    """Return a list, one JSON object a line."""
    first = list(islice(items, FIRST_LINES))
    body = _lines(first, shown) if len(first) < FIRST_LINES else _stream(first, items, shown)
    return Response(200, [("content-type", "application/jsonl")], body)


def _stream(batch: list[T], items: Iterator[T], shown: Callable[[T], object]) -> Iterator[bytes]:
    while batch:
        yield _lines(batch, shown)
        batch = list(islice(items, FIRST_LINES))


def _lines(items: Iterable[T], shown: Callable[[T], object]) -> bytes:
    return b"".join(dump(shown(item)) + b"\n" for item in items)


def evaluation_route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    """Declare a route of this interface below a namespace, described as `documented_route` does."""
    return documented_route(Interface.BASE, Auth.BASIC, method, NAMESPACE + path, handler, **more)


RUNS = "/evaluation_runs"
