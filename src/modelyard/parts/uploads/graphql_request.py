"""The GraphQL that W&B clients begin with: who calls, and whether a project is there.

No GraphQL is interpreted: an operation is known by its name or by its first field, and read by its variables. Fields
keep the client's own names.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs

from modelyard.formats.constraints import NAME, Length
from modelyard.formats.converter import structure
from modelyard.http.errors import MalformedRequest
from modelyard.http.message import Response, json_response
from modelyard.http.route import RouteCall

V = TypeVar("V")

Data = Mapping[str, Any]

Operation = Callable[[RouteCall, Mapping[str, Any]], Data]

_HEAD = re.compile(
    r"\s*+(?:(?:query|mutation)\b\s*+(?P<name>\w{1,128}+)?\s*+(?:\([^)]*+\))?\s*+)?"
    r"\{\s*+(?:\w++\s*+:\s*+)?(?P<field>\w{1,128}+)"
)


@attrs.frozen
class GraphQLRequest:
    """An operation of a W&B client. Only the operations that are needed here are known. Its name may be left out or
    empty, as by newer clients, since a document has one operation.
    """

    query: str = attrs.field(validator=Length(1, 65_536))
    variables: Mapping[str, Any] | None = None
    operationName: str | None = attrs.field(default=None, validator=Length(0, 128))


@attrs.frozen
class GraphQLAnswer:
    """The answer to an operation."""

    data: Mapping[str, Any]


@attrs.frozen
class ProjectVariables:
    """A project by its name, which the client may call after its entity in two ways."""

    name: str = attrs.field(validator=NAME)
    entityName: str | None = attrs.field(default=None, validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)


def names_of(request: GraphQLRequest) -> tuple[str, str]:
    head = _HEAD.match(request.query)
    if head is None:
        return request.operationName or "", ""
    return request.operationName or head["name"] or "", head["field"]


def with_variables(cls: type[V], perform: Callable[[RouteCall, V], Data]) -> Operation:
    return lambda call, variables: perform(call, structure(cls, variables, "variables"))


def always(data: Data) -> Operation:
    return lambda call, variables: data


def perform(call: RouteCall, operations: Mapping[str, Operation], purpose: str) -> Response:
    """Perform one of these operations. Raises `MalformedRequest` for another, naming the `purpose` of these."""
    request = structure(GraphQLRequest, call.body, "body")
    name, field = names_of(request)
    found = operations.get(name) or operations.get(field)
    if found is None:
        raise MalformedRequest(f"there is no operation {name or field!r}; only those that {purpose} are supported")
    return json_response(GraphQLAnswer(found(call, request.variables or {})))


# ---- who, and where --------------------------------------------------------------------------------------------------


def _viewer(call: RouteCall, _: Mapping[str, Any]) -> Data:
    entity = call.principal.entity
    user: Data = {
        "id": entity,
        "name": entity,
        "username": entity,
        "entity": entity,
        "defaultEntity": {"name": entity},
        "email": None,
        "admin": False,
        "flags": "{}",
        "deletedAt": None,
        "apiKeys": None,
        "teams": {"edges": [{"node": {"name": entity}}]},
    }
    return {"viewer": user}


def _project(call: RouteCall, project: ProjectVariables) -> Data:
    """Describe a project; every project that the caller may use is there."""
    return {"project": {"name": _allowed(call, project)}}


def _new_project(call: RouteCall, project: ProjectVariables) -> Data:
    """Describe a project as if it had been created: it begins with its first record."""
    return {"upsertModel": {"model": {"name": _allowed(call, project), "description": None}}}


def _allowed(call: RouteCall, project: ProjectVariables) -> str:
    call.principal.require(project.entityName or project.entity or call.principal.entity, project.name)
    return project.name


ACCOUNT: Mapping[str, Operation] = {
    "viewer": _viewer,
    "serverInfo": always({"serverInfo": {"features": [], "frontendHost": None}}),
    "Project": with_variables(ProjectVariables, _project),
    "UpsertModel": with_variables(ProjectVariables, _new_project),
}
"""The operations with which a client finds out who calls, and whether a project is there."""
