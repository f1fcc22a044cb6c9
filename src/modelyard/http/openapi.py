"""The OpenAPI 3.1 document, generated from the route table and the classes of the bodies."""

import inspect
import re
import types
from collections.abc import Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin
from urllib.parse import quote

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length, Matching, Unsupported, Within
from modelyard.http.error_responses import ChatErrorBody, DetailBody, GraphQLErrorsBody, ProblemsBody, ReasonBody
from modelyard.http.message import Response, json_response
from modelyard.http.route import Auth, Body, ErrorFormat, Interface, Parameter, Route, RouteCall

PATH = "/openapi.json"
VERSION = "0.1.0"
"""The version of the interface (specification 9), not of this library."""

JsonSchema = dict[str, Any]


def document_route(routes: Sequence[Route]) -> Route:
    """Make the public route that shows the document of these routes; `?interface=` shows that of one interface."""
    interfaces = sorted({route.interface.value for route in routes})

    def show(call: RouteCall) -> Response:
        named = call.one("interface")
        if named is not None and named not in interfaces:
            raise InvalidInput.at("query", "interface", msg=f"must be one of {', '.join(interfaces)}")
        described = document([route for route in shown if named in (None, route.interface.value)])
        return json_response(described | _mounted(call.request.root))

    query = (Parameter("interface", {"type": "string", "enum": interfaces}, "Show the document of one interface."),)
    own = Route("GET", PATH, Interface.BASE, Auth.PUBLIC, show, summary="Describe the interfaces.", query=query)
    shown = [*routes, own]
    return own


def document(routes: Sequence[Route]) -> JsonSchema:
    """Return the document of these routes."""
    schemas = Schemas()
    paths: dict[str, JsonSchema] = {}
    for route in routes:
        paths.setdefault(_path(route), {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "modelyard", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _mounted(root: str) -> JsonSchema:
    """Describe where the paths begin, if not at the root of the host."""
    address = quote(root.rstrip("/"))
    return {"servers": [{"url": address}]} if address else {}


# ---- operations --------------------------------------------------------------------------------------------------

_FAILURES: Mapping[ErrorFormat, Any] = {
    ErrorFormat.ERROR: ChatErrorBody,
    ErrorFormat.DETAIL: DetailBody | ProblemsBody,
    ErrorFormat.REASON: ReasonBody | ProblemsBody,
    ErrorFormat.ERRORS: GraphQLErrorsBody,
}
_SECURITY: Mapping[Auth, list[Mapping[str, list[str]]]] = {
    Auth.PUBLIC: [],
    Auth.BEARER: [{"bearer": []}],
    Auth.BASIC: [{"basic": []}],
    Auth.ADDRESS: [],
}


def _path(route: Route) -> str:
    return route.path.replace("...}", "}")


def _operation(route: Route, schemas: "Schemas") -> JsonSchema:
    operation: JsonSchema = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}"),
        "summary": route.summary,
        "tags": [route.interface.value],
        "security": _SECURITY[route.auth],
        "parameters": [
            *_path_parameters(route),
            *(_parameter("query", parameter) for parameter in route.query),
            *(_parameter("header", parameter) for parameter in route.headers),
        ],
        "responses": _responses(route, schemas),
    }
    if route.body is not Body.NONE:
        operation["requestBody"] = {"required": _needs_body(route), "content": _taken(route, schemas)}
    return operation


def _needs_body(route: Route) -> bool:
    """Return whether the body must be there: a small one whose members are all optional may be left out."""
    return route.body is not Body.CONTROL or route.request is None or bool(_required(route.request))


def _taken(route: Route, schemas: "Schemas") -> JsonSchema:
    if route.request is not None:
        return {"application/json": {"schema": schemas.of(route.request)}}
    return {"application/jsonl": {"schema": {"type": "string"}}}


def _path_parameters(route: Route) -> list[JsonSchema]:
    names = re.findall(r"{(\w+)", route.path)
    return [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]


def _parameter(place: str, parameter: Parameter) -> JsonSchema:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def _responses(route: Route, schemas: "Schemas") -> JsonSchema:
    schema = schemas.of(route.response) if route.response else _UNNAMED.get(route.media, _BYTES)
    content = {route.media: {"schema": schema}}
    if route.events is not None:
        content["text/event-stream"] = {"schema": schemas.of(route.events)}
    shown: JsonSchema = {
        str(status): {"description": route.summary, "content": content} if status != 304 else _NOT_MODIFIED
        for status in route.statuses
    }
    content = {"application/json": {"schema": schemas.of(_FAILURES[route.error_format])}}
    refusals = {str(status): {"description": _REFUSED[status], "content": content} for status in _refusals(route)}
    return shown | refusals | {"default": {"description": "What went wrong.", "content": content}}


_REFUSED: Mapping[int, str] = {
    400: "The request contradicts itself, or what is stored.",
    401: "The API key is missing or not valid.",
    402: "A budget has too little left for this request.",
    403: "The API key gives no access to the entity or project.",
    404: "There is no such thing in the caller's scope.",
    408: "The body came too slowly.",
    409: "The request contradicts what is stored.",
    413: "The body is too large.",
    415: "The body has another media type.",
    422: "The request does not fit its schema.",
    429: "Too many requests; try again after `Retry-After` seconds.",
    503: "Nothing can be done now; try again after `Retry-After` seconds.",
}


def _refusals(route: Route) -> Sequence[int]:
    """Return the statuses with which a route may refuse a request."""
    chat = route.body is Body.CHAT
    named = "{" in route.path or chat
    changes = route.method in ("POST", "PUT", "PATCH", "DELETE") and not chat
    found = [400, 503, *[401, 403] * (route.auth in (Auth.BEARER, Auth.BASIC)), *[404] * named]
    found += [402, 429] * chat + [409] * changes + [408, 413, 415] * (route.body is not Body.NONE)
    return sorted(found if route.error_format is ErrorFormat.ERROR else [*found, 422])


_NOT_MODIFIED: JsonSchema = {"description": "The client's copy is the newest."}
_UNNAMED: Mapping[str, JsonSchema] = {"application/json": {"type": "object"}}
_BYTES: JsonSchema = {"type": "string", "format": "binary"}

# ---- schemas -----------------------------------------------------------------------------------------------------

_PRIMITIVES: Mapping[Any, JsonSchema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    None: {"type": "null"},
    type(None): {"type": "null"},
    datetime: {"type": "string"},
    Any: {"description": "Any JSON value."},
    object: {"description": "Any JSON value."},
}
_EVERY_TYPE = ["object", "array", "string", "number", "boolean", "null"]


class Schemas:
    """JSON Schemas of types. Classes are collected as components and referred to."""

    def __init__(self) -> None:
        self.components: dict[str, JsonSchema] = {}
        self._classes: dict[str, type] = {}

    def of(self, kind: Any) -> JsonSchema:
        """Return the schema of a type that the converter knows. Raises TypeError for another."""
        if kind in _PRIMITIVES:
            return dict(_PRIMITIVES[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is None and attrs.has(kind):
            return self._reference(kind)
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"type": "string", "enum": [member.value for member in kind]}
        if origin is Annotated:
            return self.of(arguments[0]) | {key: value for rule in arguments[1:] for key, value in rule.schema.items()}
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (list, tuple, Sequence):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin in (dict, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if origin in (Union, types.UnionType):
            return {"anyOf": [self.of(argument) for argument in arguments]}
        raise TypeError(f"{kind!r} has no JSON schema here")

    def _reference(self, cls: type) -> JsonSchema:
        name = cls.__name__
        if self._classes.setdefault(name, cls) is not cls:
            raise TypeError(f"two classes of bodies are called {name}")
        if name not in self.components:
            self.components[name] = {}
            self.components[name] = self._object(cls)
        return {"$ref": f"#/components/schemas/{name}"}

    def _object(self, cls: type) -> JsonSchema:
        fields = [field for field in attrs.fields(attrs.resolve_types(cls)) if field.init]
        schema: JsonSchema = {
            "type": "object",
            "description": inspect.cleandoc(cls.__doc__ or ""),
            "properties": {field.name: self._field(field) for field in fields},
        }
        required = _required(cls)
        return {**schema, "required": required} if required else schema

    def _field(self, field: Any) -> JsonSchema:
        """Describe a field: its type with its constraints, and null where it has a default."""
        schema = self.of(field.type)
        for rule in getattr(field.validator, "_validators", (field.validator,)):
            if isinstance(rule, Unsupported):
                return dict(rule.schema)
            if isinstance(rule, Within | Matching):
                schema.update(rule.schema)
            if isinstance(rule, Length):
                for type_ in _types(schema):
                    schema.update(rule.schema_of(type_))
        if field.default is attrs.NOTHING or "null" in _types(schema):
            return schema
        return {"anyOf": [schema, {"type": "null"}]}


def _required(cls: type) -> list[str]:
    return [field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING]


def _types(schema: JsonSchema) -> list[str]:
    """Return the JSON types that a schema made here accepts."""
    if "anyOf" in schema:
        return [type_ for member in schema["anyOf"] for type_ in _types(member)]
    if schema == _PRIMITIVES[Any]:
        return _EVERY_TYPE
    named = schema.get("type", "object" if "$ref" in schema else "string")
    return [str(named)]
