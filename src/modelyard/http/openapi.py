"""The OpenAPI 3.1 document, generated from the route table and the classes of the bodies."""

import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from modelyard import report
from modelyard.domain.evaluation.objects import RefMode
from modelyard.domain.promotion import ALIAS_PATTERN
from modelyard.errors import CallerError, InvalidInput, nearest
from modelyard.formats.constraints import NAME
from modelyard.http.body_schemas import JsonSchema, Schemas, required_members
from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE
from modelyard.http.leniency import UNKNOWN_MEMBERS
from modelyard.http.message import HTML_HEADER, JSON_HEADER, PROTOBUF, Response, dump
from modelyard.http.route import Body, Parameter, Route, RouteCall, function_of
from modelyard.http.router import MAX_SEGMENT

PATH = "/openapi.json"
PAGE_PATH = "/docs"
MAX_STEP = 10**18 - 1
VERSION = "0.1.0"
"""The version of the interface (specification 9), not of this library."""

INFO: Mapping[str, Any] = {
    "title": "modelyard",
    "version": VERSION,
    "description": "A model platform: a catalogue, chat completions, training jobs and evaluation runs.",
    "contact": {"name": "The documentation", "url": "https://modelyard.readthedocs.io/"},
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
}
EXAMPLES = "openapi_examples.json"
"""The file of recorded examples, in the folder of the core's routes and in that of each part."""


def document_route(routes: Sequence[Route]) -> Route:
    """Make the public route that shows the document of these routes; `?interface=` and `?tag=` show a part of it."""
    interfaces = sorted({route.interface.name for route in routes})
    tags = sorted({tag for route in routes for tag in _found_by(route)})

    @lru_cache(maxsize=16)
    def written(named: str | None, tag: str | None, checked: bool, root: str) -> bytes:
        chosen = [one for one in shown if named in (None, one.interface.name) and (not tag or tag in _found_by(one))]
        return dump(document(chosen, checked) | _mounted(root))

    def show_openapi_document(call: RouteCall) -> Response:
        named, given = call.one("interface"), call.one("tag")
        if named is not None and named not in interfaces:
            raise InvalidInput.at("query", "interface", msg=f"must be one of {', '.join(interfaces)}")
        tag = None if given is None else re.sub(r"[\s-]", "_", given.lower())
        if tag is not None and tag not in tags:
            raise CallerError(f"query.tag: must be one of {', '.join(tags)}{nearest(tag[:MAX_SEGMENT], tags)}")
        checked = RefMode(call.platform.settings.reference_mode) is not RefMode.LENIENT
        return Response(200, [JSON_HEADER], written(named, tag, checked, call.request.root))

    query = (
        Parameter("interface", {"type": "string", "enum": interfaces}, "Show the document of one interface."),
        Parameter("tag", {"type": "string"}, f"Show the operations of one of {', '.join(tags)}, with their schemas."),
    )
    own = Route("GET", PATH, BASE, Auth.PUBLIC, show_openapi_document, summary="Describe the interfaces.", query=query)
    shown = [*routes, own]
    return own


def _found_by(route: Route) -> set[str]:
    """Return the tags that find a route: its interface, and its capability, which is the folder of its handler."""
    folder = re.findall(r"^modelyard\.(?:http|parts)\.(\w+)\.", function_of(route.handler).__module__)
    return {route.interface.name, *folder}


def page_route(routes: Sequence[Route]) -> Route:
    """Make the public route that shows the operations of these routes as a page for people."""

    @cache
    def written() -> bytes:
        return report.operations_page(document(routes)).encode()

    def show_operations_page(call: RouteCall) -> Response:
        return Response(200, [HTML_HEADER], written())

    head = ("GET", PAGE_PATH, BASE, Auth.PUBLIC, show_operations_page)
    return Route(*head, summary="Show the operations as a page.", media="text/html")


def document(routes: Sequence[Route], check_references: bool = True) -> JsonSchema:
    """Return the document of these routes; without `check_references` any string may stand for a reference.

    Raises TypeError if two operations have one name.
    """
    schemas = Schemas(check_references)
    _check_names(routes)
    paths: dict[str, JsonSchema] = {}
    for route in routes:
        operation = _operation(route, schemas)
        links = _links(route, routes)
        if links:
            operation["responses"]["200"]["links"] = links
        paths.setdefault(_path(route), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": INFO,
        "servers": [{"url": "/"}],
        "tags": _tags(routes),
        "paths": paths,
        "components": {
            "schemas": schemas.components,
            "securitySchemes": {name: scheme for name, scheme in _SCHEMES.items() if name in _schemes_of(routes)},
        },
    }


def _check_names(routes: Iterable[Route]) -> None:
    known: dict[str, Route] = {}
    for route in routes:
        if known.setdefault(route.operation, route) is not route:
            raise TypeError(f"two operations are called {route.operation}: {known[route.operation].path}, {route.path}")


def _tags(routes: Iterable[Route]) -> list[JsonSchema]:
    """Describe the interfaces of these routes, which are the tags of their operations."""
    interfaces = dict.fromkeys(route.interface for route in routes)
    return [{"name": one.name, "description": one.description or f"The interface {one.name}."} for one in interfaces]


def _mounted(root: str) -> JsonSchema:
    """Describe where the paths begin, if not at the root of the host."""
    address = quote(root.rstrip("/"))
    return {"servers": [{"url": address}]} if address else {}


# ---- operations --------------------------------------------------------------------------------------------------

_SECURITY: Mapping[Auth, list[Mapping[str, list[str]]]] = {
    Auth.PUBLIC: [],
    Auth.BEARER: [{"bearer": []}],
    Auth.BASIC: [{"basic": []}],
    Auth.API_KEY: [{"api_key": []}, {"bearer": []}],
    Auth.EITHER: [{"bearer": []}, {"basic": []}],
    Auth.ADDRESS: [],
}


_SCHEMES: Mapping[str, JsonSchema] = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "basic": {"type": "http", "scheme": "basic"},
    "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def _schemes_of(routes: Iterable[Route]) -> set[str]:
    return {name for route in routes for one in _SECURITY[route.auth] for name in one}


def _path(route: Route) -> str:
    return route.path.replace("...}", "}")


def example_of(route: Route) -> Mapping[str, Any]:
    """Return the `request`, the `response` and the parameters (`path`, `query`) of one call of an operation.

    They were recorded from a platform (`tests/shared/openapi_calls.py`). The nearest file of examples above the module
    of the handler has them.
    """
    return _examples_above(function_of(route.handler).__module__).get(route.operation, {})


@cache
def _examples_above(module: str) -> Mapping[str, Mapping[str, Any]]:
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    found = (folder / EXAMPLES for folder in Path(file).parents[: module.count(".")])
    return next((_examples_in(path) for path in found if path.is_file()), {})


@cache
def _examples_in(file: Path) -> Mapping[str, Mapping[str, Any]]:
    examples: Mapping[str, Mapping[str, Any]] = json.loads(file.read_bytes())
    return examples


def _description(route: Route) -> str:
    """Return what the handler says of itself first, or the summary."""
    said = inspect.getdoc(function_of(route.handler)) or route.summary
    return " ".join(said.partition("\n\n")[0].split())


def _operation(route: Route, schemas: Schemas) -> JsonSchema:
    example = example_of(route)
    operation: JsonSchema = {
        "operationId": route.operation,
        "summary": route.summary,
        "description": _description(route),
        "tags": [route.interface.name],
        "security": _SECURITY[route.auth],
        "parameters": [
            *_path_parameters(route, example.get("path", {})),
            *(_parameter("query", parameter, example.get("query", {})) for parameter in route.query),
            *(_parameter("header", parameter, {}) for parameter in _headers(route)),
        ],
        "responses": _responses(route, schemas, example),
    }
    if route.body is not Body.NONE:
        operation["requestBody"] = {"required": _needs_body(route), "content": _taken(route, schemas, example)}
    return operation


def _headers(route: Route) -> Sequence[Parameter]:
    return (*route.headers, UNKNOWN_MEMBERS) if route.body is Body.CHAT else route.headers


def _needs_body(route: Route) -> bool:
    """Return whether the body must be there: a small one whose members are all optional may be left out."""
    return route.body is not Body.CONTROL or route.request is None or bool(required_members(route.request))


def _taken(route: Route, schemas: Schemas, example: Mapping[str, Any]) -> JsonSchema:
    shown = {"example": example["request"]} if "request" in example else {}
    if route.body is Body.MESSAGE:
        return {PROTOBUF: {"schema": _BYTES}}
    if route.body is Body.FORM and route.request is not None:
        return {"multipart/form-data": {"schema": schemas.of(route.request), **shown}}
    if route.request is not None:
        return {"application/json": {"schema": schemas.of(route.request), **shown}, **_coded(route)}
    return {
        "application/jsonl": {"schema": {"type": "string"}, **shown},
        "application/octet-stream": {"schema": _BYTES},
    }


def _coded(route: Route) -> JsonSchema:
    """Return the content in protobuf, which an export and its answers may be in."""
    return {PROTOBUF: {"schema": _BYTES}} if route.body is Body.EXPORT else {}


_NAMED: JsonSchema = {"type": "string", "pattern": NAME.schema["pattern"]}
_SEGMENT: JsonSchema = {"type": "string", "minLength": 1, "maxLength": MAX_SEGMENT}
_IN_PATH: Mapping[str, JsonSchema] = {
    "entity": _NAMED,
    "project": _NAMED,
    "alias": {"type": "string", "pattern": f"^{ALIAS_PATTERN}$"},
    "step": {"type": "integer", "minimum": 0, "maximum": MAX_STEP},
}
"""The schemas of parameters of paths; others are one segment of any characters but control characters."""


def _path_parameters(route: Route, given: Mapping[str, Any]) -> list[JsonSchema]:
    return [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": _IN_PATH.get(name, _SEGMENT),
            **({"example": given[name]} if name in given else {}),
        }
        for name in _names_in(route)
    ]


def _names_in(route: Route) -> list[str]:
    return re.findall(r"{(\w+)", route.path)


def _parameter(place: str, parameter: Parameter, given: Mapping[str, Any]) -> JsonSchema:
    return {
        "name": parameter.name,
        "in": place,
        "required": parameter.required,
        "description": parameter.description,
        "schema": dict(parameter.schema),
        **({"example": given[parameter.name]} if parameter.name in given else {}),
    }


def _links(route: Route, routes: Iterable[Route]) -> JsonSchema:
    """Return the operations that what the route answers leads to: those whose path needs only what is known then."""
    answered = {name: f"$response.body#/{member}" for name, member in route.links.items()}
    known = {name: f"$request.path.{name}" for name in _names_in(route)} | answered
    return {
        other.operation: {
            "operationId": other.operation,
            "parameters": {name: known[name] for name in _names_in(other)},
        }
        for other in routes
        if other is not route and answered.keys() & set(_names_in(other)) and set(_names_in(other)) <= known.keys()
    }


def _responses(route: Route, schemas: Schemas, example: Mapping[str, Any]) -> JsonSchema:
    schema = schemas.of(route.response) if route.response else _UNNAMED.get(route.media, _BYTES)
    shown_example = {"example": example["response"]} if "response" in example else {}
    content: JsonSchema = {route.media: {"schema": schema, **shown_example}, **_coded(route)}
    if route.coded:
        content[PROTOBUF] = {"schema": _BYTES}
    if route.events is not None:
        content["text/event-stream"] = {"schema": schemas.of(route.events)}
    shown: JsonSchema = {
        str(status): {"description": route.summary, "content": content} if status != 304 else _NOT_MODIFIED
        for status in route.statuses
    }
    content = {"application/json": {"schema": schemas.of(route.error_format.described)}, **_coded(route)}
    refusals = {str(status): {"description": _REFUSED[status], "content": content} for status in _refusals(route)}
    return refusals | shown | {"default": {"description": "What went wrong.", "content": content}}


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
    queues = "training-jobs" in route.path or route.path.endswith("/batches") or route.path.startswith("/evaluations/")
    enqueues = route.method == "POST" and queues
    changes = route.method in ("POST", "PUT", "PATCH", "DELETE") and not chat
    found = [400, 503, *[401, 403] * (route.auth not in (Auth.PUBLIC, Auth.ADDRESS)), *[404] * named]
    found += [402, 429] * (chat or enqueues) + [409] * changes + [408, 413, 415] * (route.body is not Body.NONE)
    return sorted(found if InvalidInput in route.error_format.statuses else [*found, 422])


_NOT_MODIFIED: JsonSchema = {"description": "The client's copy is the newest."}
_UNNAMED: Mapping[str, JsonSchema] = {"application/json": {"type": "object"}, "text/plain": {"type": "string"}}
_BYTES: JsonSchema = {"type": "string", "format": "binary"}
