"""Routes of the trace clients: their bodies of up to `MAX_BODY` bytes, and how a route is declared."""

from collections.abc import Mapping
from difflib import get_close_matches
from functools import partial
from typing import Any, TypedDict, TypeVar, cast

import attrs

from modelyard.domain.identity import check_name
from modelyard.errors import BodyTooLarge, InvalidInput, Problem
from modelyard.formats.converter import structure
from modelyard.formats.json import loads
from modelyard.http.evaluations.route import SIMILAR
from modelyard.http.interface import Auth
from modelyard.http.route import Body, Handler, Route, RouteCall, documented_route
from modelyard.parts.traces.interface import TRACES

T = TypeVar("T")

MAX_BODY = 32 * 2**20
"""Bytes of a body: its clients split what they send at a little less."""

MAX_STRUCTURE = 2**22
"""Structural characters of a body."""


def body_of(cls: type[T], call: RouteCall) -> T:
    raw = call.file.read(MAX_BODY + 1)
    if len(raw) > MAX_BODY:
        raise BodyTooLarge(MAX_BODY)
    return structure(cls, loads(raw, at=("body",), max_structure=MAX_STRUCTURE) if raw else None, "body")


def control_body(cls: type[T], call: RouteCall, **within: type) -> T:
    """Read a small body, and objects `within` it. Raises `InvalidInput`, also for a misspelt member, without which more
    would be found or deleted. A member that is unlike any known one is meant for another server.
    """
    body = structure(cls, call.body, "body")
    given = cast(Mapping[str, Any], call.body)
    problems = _misspelt(cls, given, "body")
    for name, inner in within.items():
        problems += _misspelt(inner, given.get(name) or {}, "body", name)
    if problems:
        raise InvalidInput(problems)
    return body


def _misspelt(cls: type, given: Mapping[str, Any], *at: str) -> list[Problem]:
    known = {field.name for field in attrs.fields(cls)}
    missing = sorted(known - given.keys())
    near = {name: get_close_matches(name, missing, 1, SIMILAR) for name in sorted(given.keys() - known)}
    return [
        Problem((*at, name), f"is not known; did you mean {found[0]!r}?", "extra_forbidden")
        for name, found in near.items()
        if found and given[name] is not None
    ]


class PlaceArguments(TypedDict):
    """The arguments that name an entity and a project."""

    entity: str
    project: str


def place_of(call: RouteCall, project_id: str) -> PlaceArguments:
    entity, _, project = project_id.partition("/")
    call.principal.require(entity, project)
    return {"entity": check_name(entity, "entity"), "project": check_name(project, "project")}


_route = partial(documented_route, TRACES, Auth.BASIC)


def data_route(path: str, handler: Handler, request: type, response: type, **more: Any) -> Route:
    """Declare a route to which clients send data, which is described as `documented_route` does."""
    return _route("POST", path, handler, body=Body.DATA, request=request, response=response, **more)


def control_route(path: str, handler: Handler, request: type, response: type | None, **more: Any) -> Route:
    """Declare a route to which clients send a small body."""
    return _route("POST", path, handler, body=Body.CONTROL, request=request, response=response, **more)
