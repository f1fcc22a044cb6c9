"""Routes of the evaluation interface: the namespace in the path, references in bodies, lists as JSON Lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import Any, TypedDict, TypeVar, cast

import attrs

from modelyard.domain.evaluation.objects import RefKind, RefMode, reference_problem
from modelyard.domain.identity import check_name
from modelyard.errors import InvalidInput, Problem
from modelyard.formats.constraints import Length
from modelyard.formats.converter import structure
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE
from modelyard.http.message import Response, json_response
from modelyard.http.query import MAX_VALUES, MAX_WHOLE, Query
from modelyard.http.response_bodies import json_lines
from modelyard.http.route import Handler, Parameter, Route, RouteCall, documented_route
from modelyard.platform.evaluations.predictions import Predictions, Scores
from modelyard.platform.evaluations.runs import Runs
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.listing import Listing

T = TypeVar("T")

NAMESPACE = "/v2/{entity}/{project}"
TEXTS: Mapping[str, Any] = {"type": "array", "items": {"type": "string"}, "maxItems": MAX_VALUES}
SOME_TEXTS: Mapping[str, Any] = {**TEXTS, "minItems": 1}
COUNT: Mapping[str, Any] = {"type": "integer", "minimum": 0, "maximum": MAX_WHOLE}
WINDOW = (
    Parameter("limit", COUNT, "How many at most; all when absent."),
    Parameter("offset", COUNT, "How many to leave out at the start."),
    Parameter("after", description="Continue after the item with this id."),
)


_IN_PATH = {("entity",), ("project",)}


@contextmanager
def problems_in_request() -> Iterator[None]:
    """Locate the problems of a use case where the client put the values: in the path or the body."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput([_moved(problem) for problem in error.problems]) from error


def _moved(problem: Problem) -> Problem:
    return attrs.evolve(problem, loc=("path" if problem.loc in _IN_PATH else "body", *problem.loc))


class NamespaceArguments(TypedDict):
    entity: str
    project: str


def namespace_of(call: RouteCall) -> NamespaceArguments:
    """Return the entity and project of the path. Raises `Forbidden` before anything else of the request is checked."""
    entity, project = call.params["entity"], call.params["project"]
    call.principal.require(entity, project)
    with problems_in_request():
        return {"entity": check_name(entity, "entity"), "project": check_name(project, "project")}


SIMILAR = 0.8
"""How similar a member must be to a known one to count as misspelt; others are meant for another server."""


def body_of(cls: type[T], call: RouteCall) -> T:
    """Read a body. Raises `InvalidInput`, also for a misspelt member; a member that is unlike any known one is
    ignored."""
    given = call.body if isinstance(call.body, dict) else {}
    known = {field.name for field in attrs.fields(cast(type[attrs.AttrsInstance], cls))}
    missing = sorted(known - given.keys())
    near = {name: get_close_matches(name, missing, 1, SIMILAR) for name in given.keys() - known}
    misspelt = [
        Problem(("body", name), f"is not known; did you mean {found[0]!r}?", "extra_forbidden")
        for name, found in sorted(near.items())
        if found
    ]
    try:
        body = structure(cls, call.body, "body")
    except InvalidInput as wrong:
        raise InvalidInput([*wrong.problems, *misspelt]) from None
    if misspelt:
        raise InvalidInput(misspelt)
    return body


def optional_body(cls: type[T], call: RouteCall) -> T:
    return structure(cls, {} if call.body is None else call.body, "body")


def body_with_references(cls: type[T], call: RouteCall, **kinds: frozenset[RefKind]) -> T:
    """Read a body in which the members named in `kinds` are references. Raises `InvalidInput`. A body that does not fit
    is refused with its wrong references too, so that all problems are reported at once."""
    try:
        return body_of(cls, call)
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


@attrs.frozen
class Success:
    """The answer to an action."""

    success: bool


@attrs.frozen
class NumDeleted:
    """How many were deleted."""

    num_deleted: int


@attrs.frozen
class GenaiSpanRef:
    """Where the call of a prediction was traced."""

    trace_id: str = attrs.field(validator=Length(1, 128))
    span_id: str = attrs.field(validator=Length(1, 128))


# ---- listings


class ListingQuery(Query):
    def __init__(self, parameters: Mapping[str, Sequence[str]]) -> None:
        super().__init__(parameters)
        self.limit: int | None = self.whole("limit")
        self.offset: int = self.whole("offset") or 0
        self.after: str | None = self.text("after")

    def response(self, listing: Listing[T], shown: Callable[[T], object]) -> Response:
        return self.response_of(iter(listing) if self.after is None else listing.after(self.after), shown)

    def response_of(self, items: Iterator[T], shown: Callable[[T], object]) -> Response:
        items = islice(items, self.offset, None if self.limit is None else self.offset + self.limit)
        return json_lines(map(shown, items))


# ---- routes


def evaluation_route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    """Declare a route of this interface below a namespace, described as `documented_route` does."""
    return documented_route(BASE, Auth.BASIC, method, NAMESPACE + path, handler, **more)


def creation_route(path: str, create: Callable[[RouteCall], T], show: Callable[[T], object], **more: Any) -> Route:
    return evaluation_route("POST", path, creating(create, show), headers=(IDEMPOTENCY_KEY,), **more)


RUNS = "/evaluation_runs"


def stored_routes(
    path: str,
    id: str,
    noun: str,
    ids: Parameter,
    stored: Callable[[Evaluations], Runs | Predictions | Scores],
    shown: type,
    show: Callable[[Any], object],
    filters: tuple[Parameter, ...],
    arguments: Callable[[Query], Mapping[str, Any]],
) -> tuple[Route, ...]:
    """Declare the routes that show, list and delete the records of one kind. `id` is the parameter of the path, and
    `ids` that of a deletion. `arguments` reads the filters of a listing."""

    def read(call: RouteCall) -> Response:
        return json_response(show(stored(call.platform.evaluations).get(call.params[id], **namespace_of(call))))

    def list_all(call: RouteCall) -> Response:
        namespace, query = namespace_of(call), ListingQuery(call.query)
        filtered = arguments(query)
        query.check()
        listing: Listing[Any] = stored(call.platform.evaluations).list(**filtered, **namespace)
        return query.response(listing, show)

    def delete(call: RouteCall) -> Response:
        namespace, query = namespace_of(call), Query(call.query)
        wanted = query.texts(ids.name, required=True)
        query.check()
        return json_response(NumDeleted(stored(call.platform.evaluations).delete(wanted, **namespace)))

    operation = path.removeprefix("/")
    plural, parts = f"{noun}s", " with their scores" if noun == "prediction" else ""
    deleting = f"Delete {plural}{parts}; those that do not exist are not counted."
    listing = f"List {plural}, one JSON object a line."
    return (
        evaluation_route(
            "GET",
            f"{path}/{{{id}}}",
            read,
            response=shown,
            summary=f"Show a {noun}.",
            operation=f"show_{operation[:-1]}",
        ),
        evaluation_route(
            "GET",
            path,
            list_all,
            query=filters + WINDOW,
            response=shown,
            media="application/jsonl",
            summary=listing,
            operation=f"list_{operation}",
        ),
        evaluation_route(
            "DELETE", path, delete, query=(ids,), response=NumDeleted, summary=deleting, operation=f"delete_{operation}"
        ),
    )
