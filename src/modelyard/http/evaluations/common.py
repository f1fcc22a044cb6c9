"""What the routes of the evaluation interface have in common: a place in the path, references, lists as JSON Lines."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypedDict, TypeVar

from modelyard.domain.evaluation.references import RefKind, RefMode, reference_problem
from modelyard.domain.identity import check_name
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.converter import structure
from modelyard.http.evaluations.run_schemas import wire_places
from modelyard.http.message import Response, dump
from modelyard.http.route import Auth, Call, Handler, Interface, Parameter, Route, documented_route

T = TypeVar("T")

PLACE = "/v2/{entity}/{project}"
FIRST_LINES = 1000
"""So many lines are read before the status is sent; what fails among them fails the request."""

TEXTS = {"type": "array", "items": {"type": "string"}}
COUNT = {"type": "integer", "minimum": 0}
WINDOW = (
    Parameter("limit", COUNT, "How many at most; all when absent."),
    Parameter("offset", COUNT, "How many to leave out at the start."),
)


class Where(TypedDict):
    """The arguments that name a place."""

    entity: str
    project: str


def place_of(call: Call) -> Where:
    """The path's entity and project. A caller who lacks them hears so before the rest of the request is looked at."""
    entity, project = call.params["entity"], call.params["project"]
    call.principal.require(entity, project)
    with wire_places():
        return {"entity": check_name(entity, "entity"), "project": check_name(project, "project")}


def optional_body(cls: type[T], call: Call) -> T:
    """The body of a request that may come without one. Raises `InvalidInput`."""
    return structure(cls, {} if call.body is None else call.body, "body")


def body_with_references(cls: type[T], call: Call, **kinds: frozenset[RefKind]) -> T:
    """The body of a request, some of whose members are references. Raises `InvalidInput`.

    The references at fault in a body that does not fit anyway are told too, so that all problems are told at once.
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
    """A list, one JSON object a line."""
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
    """A route of this interface, below the place in its path, summed up by its handler's docstring."""
    return documented_route(Interface.BASE, Auth.BASIC, method, PLACE + path, handler, **more)
