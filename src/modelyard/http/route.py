"""What a route declares: who may call it, what it takes and what it returns. The table of routes is the whole API."""

import inspect
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any, BinaryIO

import attrs

from modelyard.domain.identity import Principal
from modelyard.errors import Forbidden, InvalidInput
from modelyard.flow import Flow
from modelyard.http.headers import Headers
from modelyard.http.interface import Auth, ErrorFormat, Interface
from modelyard.http.message import Request, Response, parse
from modelyard.platform.artifacts import Spool
from modelyard.platform.chat.booked_request import RequestInProgress
from modelyard.platform.platform import Platform
from modelyard.threads import TenantThreads


class Body(StrEnum):
    """What a route takes: nothing, a small JSON object, a chat request, or data of any size (kept as an artifact), as
    they are or in a form. An export is protobuf or JSON, perhaps compressed; a message is protobuf. The handler checks
    which.
    """

    NONE = "none"
    CONTROL = "control"
    CHAT = "chat"
    DATA = "data"
    FORM = "form"
    EXPORT = "export"
    MESSAGE = "message"


MAX_EXPORT = 16 * 2**20
"""Bytes of an export, as it is sent and decompressed."""


@attrs.frozen
class Parameter:
    """A parameter of the query or a header, as the OpenAPI document describes it. An array may be repeated."""

    name: str
    schema: Mapping[str, Any] = attrs.field(factory=lambda: {"type": "string"})
    description: str = ""
    required: bool = False


@attrs.define
class RouteCall:
    """A request that was matched, authenticated and read.

    `platform` acts as the `principal` who calls. `params` are the path's, decoded. `body` is what the route has read,
    mostly parsed JSON (None when absent); where a route takes data, a form or an export, `data` are the raw bytes as a
    file, which is closed when the handler has returned. `client` is what a completion reports to.
    """

    principal: Principal
    platform: Platform
    spool: Spool
    params: Mapping[str, str]
    query: Mapping[str, tuple[str, ...]]
    headers: Headers
    request: Request
    body: Any = None
    data: BinaryIO | None = None
    client: RequestInProgress | None = None

    @property
    def threads(self) -> TenantThreads:
        """The threads in which an event loop reads and computes for the caller what may take long."""
        return self.platform.threads.bodies.of(self.principal.entity)

    @property
    def file(self) -> BinaryIO:
        """The raw bytes of a route that takes data, a form or an export, from their beginning."""
        assert self.data is not None
        return self.data

    def require_host(self) -> None:
        """Raise `Forbidden` unless the host itself calls, as with a key that was made with `host=True`."""
        if self.principal.scope.entity is not None:
            raise Forbidden("only a key of the host may do this: modelyard keys create --host --entity NAME makes one")

    def one(self, name: str) -> str | None:
        """Read a query parameter that may come once. Raises `InvalidInput`."""
        values = self.query.get(name, ())
        if len(values) > 1:
            raise InvalidInput.at("query", name, msg="must be given once")
        return values[0] if values else None

    def integer(self, name: str, default: int, least: int, most: int) -> int:
        """Read a query parameter that is a whole number from `least` to `most`. Raises `InvalidInput`."""
        text = self.one(name)
        if text is None:
            return default
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 18):
            raise InvalidInput.at("query", name, msg="must be a whole number", type="int_parsing")
        if not least <= int(text) <= most:
            raise InvalidInput.at("query", name, msg=f"must be from {least} to {most}")
        return int(text)


PlainHandler = Callable[[RouteCall], Response]
FlowHandler = Callable[[RouteCall], Flow[Response | None]]
Handler = PlainHandler | FlowHandler


@attrs.frozen
class Route:
    """One method of one path.

    A segment `{name}` of `path` takes one segment, a last one `{name...}` all that follow. `handler` returns the
    response, or is a generator function whose flow returns it. `request` and `response` are the classes of the bodies,
    `summary` is the first line of the docstring of `handler` unless given.
    `media` is the media type of the response, which may also be protobuf where it is `coded`, and `statuses` are those
    that carry it. `events` is the class of what a stream sends.
    `error_format` is that of the interface unless given. `headers` are those that only some routes read.
    `read` makes what a call has as its body of the bytes, if they are not kept as a file.
    `operation` is its name in the OpenAPI document: that of the handler (`operation_name`) unless given.
    `links` are the parameters of other paths that members of the response name: `{"model_id": "id"}`.
    `admit` identifies the caller by the parameters of the path, for `Auth.ADDRESS`.
    """

    method: str
    path: str
    interface: Interface
    auth: Auth
    handler: Handler
    body: Body = Body.NONE
    request: type | None = None
    response: type | None = None
    summary: str = attrs.field()
    query: tuple[Parameter, ...] = ()
    headers: tuple[Parameter, ...] = ()
    media: str = "application/json"
    coded: bool = False
    statuses: tuple[int, ...] = (200,)
    events: type | None = None
    links: Mapping[str, str] = attrs.field(factory=dict)
    read: "Callable[[bytes, RouteCall], object]" = parse
    admit: Callable[[Platform, Mapping[str, str]], Principal] | None = None
    error_format: ErrorFormat = attrs.field()
    operation: str = attrs.field()
    is_flow: bool = attrs.field(init=False)

    @summary.default
    def _first_line_of_handler(self) -> str:
        return (self.handler.__doc__ or "").partition("\n")[0]

    @error_format.default
    def _format_of_interface(self) -> ErrorFormat:
        return self.interface.errors

    @operation.default
    def _named_by_handler(self) -> str:
        function = function_of(self.handler)
        return operation_name(getattr(function, "__name__", type(function).__name__), self.path)

    @is_flow.default
    def _generates(self) -> bool:
        return inspect.isgeneratorfunction(self.handler)


def function_of(handler: Handler) -> Callable[..., Any]:
    """Return the function that a handler is, also if arguments of it are bound."""
    return function_of(handler.func) if isinstance(handler, partial) else handler


def operation_name(name: str, path: str) -> str:
    """Return the name of the operation at `path` whose handler, of this name, serves other paths too.

    `create_response` is `create_inference_response` below `/inference/v1`, and a slash at the end is named as well.
    """
    verb, *noun = name.split("_", 1)
    named = "_".join([verb, "inference", *noun]) if path.startswith("/inference/v1/") else name
    return f"{named}_with_slash" if path.endswith("/") else named


def documented_route(interface: Interface, auth: Auth, method: str, path: str, handler: Handler, **more: Any) -> Route:
    """Declare a route, described by the docstring of its handler."""
    return Route(method, path, interface, auth, handler, **more)
