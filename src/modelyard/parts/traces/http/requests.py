"""Routes of the trace clients: their bodies of up to `MAX_BODY` bytes, and how a route is declared."""

from functools import partial
from typing import Any, TypedDict, TypeVar

from modelyard.domain.identity import check_name
from modelyard.errors import BodyTooLarge
from modelyard.formats.converter import structure
from modelyard.formats.json import loads
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
