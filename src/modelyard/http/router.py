"""The route table as a tree of path segments. Routing and authentication are one match in it."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, TypeGuard
from urllib.parse import quote, unquote, unquote_to_bytes

import attrs

from modelyard.formats.json import dumps, loads
from modelyard.http.error_responses import ERROR, REASON
from modelyard.http.errors import MethodNotAllowed, UnknownRoute
from modelyard.http.interface import Auth, ErrorFormat, Guards, Interface
from modelyard.http.interfaces import CORE
from modelyard.http.route import Route

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNFIT = re.compile(r"[\x00-\x1f\x7f/]")
_MALFORMED = re.compile(r"%(?![0-9A-Fa-f]{2})")
MAX_SEGMENT = 1024
AZURE = "openai"
"""The first segment of Azure's paths."""

MAX_SHOWN = 200
"""Characters at most of a path that an error names."""

NOT_SERVED = {"assistants", "audio", "containers", "conversations", "evals", "images", "moderations", "realtime"}
NOT_SERVED |= {"threads", "vector_stores", "videos"}
"""Interfaces of vendors, by the first segment after `v1`, that nothing here serves."""


def mounted_path(raw: str | None, path: str, root: str) -> str:
    """Return the percent-encoded path below the mount point `root`.

    `raw` is the path as it was sent, where the server passes it on. It is used only if it decodes to `path`, because a
    middleware may have rewritten `path`. Otherwise `path` is encoded again.
    """
    if raw is None or (raw != path and unquote(raw) != path):
        raw = quote(path, errors="surrogatepass")
    root = root.strip("/") if root else ""
    if not root:
        return raw
    depth, segments = root.count("/") + 2, raw.split("/")
    if unquote("/".join(segments[:depth])).strip("/") != root:
        return raw
    return "/" + "/".join(segments[depth:])


@attrs.frozen
class RouteMatch:
    """What a path matched: its methods and parameters, who may call it, and the format of errors.

    `missing` is what a caller is told if nothing matched.
    """

    routes: Mapping[str, Route]
    params: Mapping[str, str]
    auth: Auth
    error_format: ErrorFormat
    missing: str = ""

    def route(self, method: str) -> Route:
        """Return the route of a method; HEAD has that of GET. Raises `UnknownRoute`, `MethodNotAllowed`."""
        if not self.routes:
            raise UnknownRoute(self.missing)
        route = self.routes.get("GET" if method == "HEAD" else method)
        if route is None:
            raise MethodNotAllowed(self.allowed)
        return route

    @property
    def allowed(self) -> list[str]:
        """The methods of this path."""
        methods = {*self.routes, "OPTIONS"} | ({"HEAD"} if "GET" in self.routes else set())
        return sorted(methods)


@attrs.define
class _Node:
    """The paths that share their first segments. `rest` takes all further segments."""

    routes: dict[str, Route] = attrs.field(factory=dict)
    static: dict[str, "_Node"] = attrs.field(factory=dict)
    parameter: "_Named | None" = None
    rest: "_Named | None" = None


@attrs.frozen
class _Named:
    name: str
    node: _Node


class HttpRouter:
    """Finds the routes of a path. `exact` are the matches of paths without parameters.

    It begins with the `first` routes. All `routes` are made by the first request for a path that these lack.
    """

    def __init__(self, first: Iterable[Route], routes: Callable[[], Iterable[Route]] | None = None) -> None:
        self.exact: dict[str, RouteMatch] = {}
        self._make: Callable[[], Iterable[Route]] | None = None
        self._build(first)
        self._make = routes
        self._lock = RLock()

    @property
    def routes(self) -> tuple[Route, ...]:
        """Every route, loaded now if it is not there yet."""
        self.load()
        return self._routes

    def load(self) -> None:
        """Make all routes, if they are not there yet."""
        if self._make is not None:
            with self._lock:
                if self._make is not None:
                    self._build(self._make())
                    self._make = None

    def begin_with(self, routes: Sequence[Route]) -> None:
        """Have these routes, too, before all are loaded."""
        with self._lock:
            if self._make is not None and routes[0].path not in self.exact:
                self._build([*self._routes, *routes])

    def _build(self, routes: Iterable[Route]) -> None:
        self._routes = tuple(routes)
        self._root = _Node()
        for route in self._routes:
            self._add(route)
        served = dict.fromkeys([*CORE, *(route.interface for route in self._routes)])
        self._interfaces: tuple[Interface, ...] = tuple(served)
        guards = [guard for interface in self._interfaces for guard in interface.guards.items()]
        self._guards: Guards = dict(sorted(guards, key=lambda guard: -len(guard[0])))
        self.exact.update({route.path: self._search(route.path) for route in self._routes if "{" not in route.path})

    def match(self, raw_path: str) -> RouteMatch:
        """Match a percent-encoded path, which is decoded once, segment by segment, strictly."""
        self.load()
        return self.exact.get(raw_path) or self._search(raw_path)

    def _add(self, route: Route) -> None:
        node = self._root
        for segment in route.path[1:].split("/"):
            node = _child(node, segment)
        if route.method in node.routes:
            raise TypeError(f"two routes are {route.method} {route.path}")
        node.routes[route.method] = route

    def _search(self, raw_path: str) -> RouteMatch:
        segments = _decoded(raw_path)
        found = _walk(self._root, segments)
        if found is None and segments[0] == AZURE:
            return self._of_azure(segments[1:])
        if found is None:
            (auth, form), meant = self._guard(segments), self._meant(segments)
            return RouteMatch({}, {}, auth, ERROR if meant else form, self._why_missing(segments, meant))
        routes, params = found
        anyone = next(iter(routes.values()))
        return RouteMatch(routes, params, anyone.auth, anyone.error_format)

    def _of_azure(self, segments: Sequence[str | None]) -> RouteMatch:
        """Match what follows `/openai/`: `deployments/<model>/...`, `v1/...` or the path itself. The key may come as
        `api-key`, and a deployment is the model, whatever the body says.
        """
        deployment = segments[1] if segments[:1] == ["deployments"] and len(segments) > 2 else None
        rest = segments[2 if deployment else segments[:1] == ["v1"] :]
        for base in (["inference", "v1"], ["v1"]):
            found = _walk(self._root, [*base, *rest])
            if found is not None:
                routes = {method: _deployed(route, deployment) for method, route in found[0].items()}
                return RouteMatch(routes, found[1], Auth.API_KEY, next(iter(routes.values())).error_format)
        return RouteMatch({}, {}, Auth.API_KEY, ERROR, _unknown([AZURE, *segments], rest))

    def _guard(self, segments: Sequence[str | None]) -> tuple[Auth, ErrorFormat]:
        for prefix, guard in self._guards.items():
            if tuple(segments[: len(prefix)]) == prefix:  # a key in any header is one: no route says in which
                return (Auth.API_KEY if guard[0] is Auth.BEARER else guard[0]), guard[1]
        return Auth.PUBLIC, REASON

    def _meant(self, segments: Sequence[str | None]) -> str:
        """Return the path that a client means whose base URL lacks the /v1, has a second one, or is a whole address."""
        twice = segments[:-2] if segments[-2:] == segments[-4:-2] else ()
        for path in (["v1", *segments], segments[1:] if segments[0] else (), twice):
            if path[:1] in (["v1"], ["inference"]) and _walk(self._root, path):
                return f"; did you mean /{'/'.join(map(str, path))}?"
        return ""

    def _why_missing(self, segments: Sequence[str | None], meant: str) -> str:
        for interface in self._interfaces:
            if why := interface.missing(segments):
                return why
        return _unknown(segments, segments[segments[:1] == ["inference"] :][1:], meant)


def _unknown(segments: Sequence[str | None], rest: Sequence[str | None], meant: str = "") -> str:
    """Say that no route has this path, and of which interface of a vendor it is, by the segments after `v1`."""
    shown = quote("/".join("?" if segment is None else segment for segment in segments), safe="/:?")[:MAX_SHOWN]
    name = rest[0] if rest else None
    vendor = f"is of a vendor's {name}: modelyard has no {name}" if name in NOT_SERVED else "has no route"
    return f"the path /{shown} {vendor}{meant or '; /openapi.json lists the routes'}"


def _deployed(route: Route, deployment: str | None) -> Route:
    def read(raw: bytes, call: Any) -> object:
        body = loads(raw, at=("body",)) if deployment else None
        return route.read(dumps({**body, "model": deployment}) if isinstance(body, dict) else raw, call)

    return attrs.evolve(route, auth=Auth.API_KEY, read=read)


def _child(node: _Node, segment: str) -> _Node:
    """Return the node below `node` for one segment of a declared path, made when it is missing."""
    if not segment.startswith("{"):
        return node.static.setdefault(segment, _Node())
    name = segment.strip("{}").removesuffix("...")
    kind = "rest" if segment.endswith("...}") else "parameter"
    named: _Named | None = getattr(node, kind)
    if named is None:
        named = _Named(name, _Node())
        setattr(node, kind, named)
    if named.name != name:
        raise TypeError(f"one parameter of a path is called {named.name} and {name}")
    return named.node


def _decoded(raw_path: str) -> list[str | None]:
    """Decode the segments of a path; None for one that is not percent-encoded UTF-8."""
    return [_segment(raw) for raw in raw_path[1:].split("/")] if raw_path.startswith("/") else [None]


def _segment(raw: str) -> str | None:
    if "%" not in raw:
        return raw if raw.isascii() else None
    if _MALFORMED.search(raw) or not raw.isascii():
        return None
    try:
        return unquote_to_bytes(raw).decode("utf-8")
    except UnicodeDecodeError:
        return None


def _walk(node: _Node, segments: Sequence[str | None]) -> tuple[Mapping[str, Route], Mapping[str, str]] | None:
    params: dict[str, str] = {}
    for at, segment in enumerate(segments):
        below = node.static.get(segment) if segment is not None else None
        if below is not None:
            node = below
        elif node.parameter is not None and _fits(segment):
            params[node.parameter.name] = segment
            node = node.parameter.node
        elif node.rest is not None and (tail := _joined(segments[at:])) is not None:
            return node.rest.node.routes, {**params, node.rest.name: tail}
        else:
            return None
    return (node.routes, params) if node.routes else None


def _fits(segment: str | None) -> TypeGuard[str]:
    if not segment or segment in (".", ".."):
        return False
    return len(segment) <= MAX_SEGMENT and not _UNFIT.search(segment)


def _joined(segments: Sequence[str | None]) -> str | None:
    """Join the rest of a path: a name whose slashes may have come as they are or encoded."""
    if None in segments:
        return None
    tail = "/".join(segment for segment in segments if segment is not None)
    return tail if tail and len(tail) <= MAX_SEGMENT and not _CONTROL.search(tail) else None
