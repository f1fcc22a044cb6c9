"""One request to the platform and its answer, as a flow: identify the caller, read the body, call the handler, report
what failed.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from logging import INFO
from typing import Any, ClassVar

import attrs

from modelyard import flow
from modelyard.domain.events import CALLER_LEFT
from modelyard.domain.identity import Principal, RateStand, Scope
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import InvalidInput, Unauthenticated
from modelyard.flow import Await, CallerDisconnected, Flow
from modelyard.http import leniency
from modelyard.http.auth import CHALLENGES, OPEN, Caller, CallerCache, credentials
from modelyard.http.cors import AllowedOrigins
from modelyard.http.ended_requests import log as access_log
from modelyard.http.ended_requests import report_ended
from modelyard.http.error_responses import failed, report
from modelyard.http.headers import Header, Headers, check_singular, headers_of
from modelyard.http.interface import Auth
from modelyard.http.message import AnyBody, Request, Response, aread, aspool, check_length, check_media, read, spool
from modelyard.http.query import parse_query
from modelyard.http.response_bodies import close
from modelyard.http.route import Body, PlainHandler, Route, RouteCall
from modelyard.http.router import HttpRouter, RouteMatch
from modelyard.platform.artifacts import Spool
from modelyard.platform.keys.service import REMEMBERED_SECONDS
from modelyard.platform.meters import Meters
from modelyard.platform.owned import REQUEST_BEGAN
from modelyard.platform.platform import Platform
from modelyard.protocols import Clock
from modelyard.threads import AUTHENTICATION, Threads

ANYONE = Principal("anyone", "", Scope(""))
"""The caller of a public route: a principal with an empty scope."""

LARGE = 2**18
"""Bytes of JSON from which parsing is kept off the event loop."""

_NONE, _PARSED, _CODED = Body.NONE, (Body.CHAT, Body.CONTROL), (Body.EXPORT, Body.MESSAGE)
_PUBLIC, _BY_KEY = Auth.PUBLIC, {Auth.BEARER, Auth.API_KEY, Auth.EITHER, Auth.BASIC}
_NO_QUERY: Mapping[str, tuple[str, ...]] = {}
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
_NO_STORE: Header = ("cache-control", "no-store")


@attrs.frozen
class Served:
    """What all exchanges of an endpoint share."""

    platform: Platform
    table: HttpRouter
    clock: Clock
    anyone: Caller
    callers: CallerCache
    spool: Spool
    limits: Mapping[Body, int]
    origins: AllowedOrigins | None
    meters: Meters | None
    observed: bool
    request_id: Callable[[], str]


@attrs.define(eq=False)
class ReadBody:
    """What a flow needs to read a whole body. Answered with its bytes."""

    body: AnyBody
    limit: int
    clock: Clock
    waits: ClassVar[bool] = True

    def perform(self, driver: object) -> bytes:
        """Read it by blocking calls."""
        return read(self.body, self.limit, self.clock)

    def aperform(self, driver: object) -> Awaitable[bytes]:
        """Read it on an event loop."""
        read_whole = getattr(self.body, "read_whole", None)
        return aread(self.body, self.limit) if read_whole is None else read_whole(self.limit)


class HttpExchange:
    """One request on its way; `id` names it in the answer and in the log. `booked` is the completion that it made,
    and `asked` the requested name where a part serves it."""

    started: bool = False
    status: int = 0
    route: str = ""
    principal: Principal | None = None
    booked: LedgerEntry | None = None
    asked: str = ""
    span: Any = None
    rate: RateStand | None = None
    ignored: Sequence[str] = ()

    def __init__(self, served: Served, request: Request) -> None:
        path = request.raw_path
        self.served: Served = served
        self.request: Request = request
        self.match: RouteMatch = served.table.exact.get(path) or served.table.match(path)
        self.began: float = served.clock.monotonic()
        self.headers: Headers
        self.headers, self._doubled = headers_of(request.headers)
        named = self.headers.get(b"x-request-id")
        self.id: str = named.decode() if named is not None and _REQUEST_ID.fullmatch(named) else served.request_id()

    def see_rate(self, stand: RateStand) -> None:
        """Note what is left of the rate of the key, for the headers of the answer."""
        self.rate = stand

    @property
    def tenant(self) -> str:
        """On whose account work for the request is done in threads."""
        return AUTHENTICATION if self.principal is None else self.principal.entity

    @property
    def threads(self) -> Threads:
        """The threads in which an event loop does what may take long."""
        return self.served.platform.threads

    def flow(self) -> Flow[Response | None]:
        """Return the response; one whose body is `STREAMED` is emitted, and after it the pieces of that body."""
        tracing = self.served.platform.tracing
        if tracing is not None:
            self.span = tracing.request_began(self.request.method, self.headers.texts())
        try:
            try:
                response = yield from self._answer()
            except CallerDisconnected:
                raise
            except Exception as failure:
                if self.started:
                    report(failure, self.id)
                    raise
                response = self._failed(failure)
            if response is not None:
                self.status = response.status
            return response
        except BaseException as end:
            if isinstance(end, CallerDisconnected) or not isinstance(end, Exception):
                self.status = CALLER_LEFT
            raise
        finally:
            self._ended()

    def _ended(self) -> None:
        """Count the request, and report how it has ended."""
        served, method, tracing = self.served, self.request.method, self.served.platform.tracing
        seconds, status = served.clock.monotonic() - self.began, self.status or CALLER_LEFT
        if served.meters is not None:
            served.meters.answered(method if self.route else "", self.route, status, seconds)
        if served.observed or access_log.isEnabledFor(INFO):
            of = self.id, method, self.route, status, seconds
            report_ended(served.platform, *of, self.principal, self.booked, self.asked)
        if tracing is not None and self.span is not None:
            tracing.request_ended(self.span, method, self.route, status, seconds)

    def finished(self, response: Response) -> Response:
        """Return the response with the headers that every answer has."""
        self.started, self.status = True, response.status
        headers, body = response.headers, response.body
        headers.append(("x-request-id", self.id))
        if self.rate is not None:
            headers += rate_headers(self.rate)
        if self.ignored:
            headers.append(leniency.ignored_header(self.ignored))
        if self.served.origins is not None:
            headers += self.served.origins.headers(self.headers)
        if self.match.auth is not _PUBLIC:
            headers.append(_NO_STORE)
        if type(body) is bytes and response.status not in (204, 304):
            headers.append(("content-length", str(len(body))))
        if self.request.method == "HEAD":
            close(body)
            response.body = b""
        return response

    def _failed(self, failure: Exception) -> Response:
        response = failed(failure, self.match.error_format, self.id, self.headers.text(b"content-type"))
        if isinstance(failure, Unauthenticated) and self.match.auth in CHALLENGES:
            response.headers.append(CHALLENGES[self.match.auth])
        return response

    def _answer(self) -> Flow[Response | None]:
        served, match, request = self.served, self.match, self.request
        if self._doubled and match.auth is not _PUBLIC:
            check_singular(self._doubled)
        route = match.routes.get(request.method)
        if route is None:
            route = self._rarer_route()
            match = self.match
            if request.method == "OPTIONS" and (preflight := self._preflight()) is not None:
                return preflight
        self.route = "" if route is None else route.path
        caller = self._known_caller() or (yield from self._identify())
        self.principal = principal = caller.principal
        if route is None:
            return self._without_route()
        query = parse_query(request.query) if request.query else _NO_QUERY
        call = RouteCall(
            principal, caller.platform, served.spool, match.params, query, self.headers, request, None, None, self
        )
        if route.body is not _NONE:
            yield from self._read_body(route, call)
        while True:
            try:
                if route.is_flow:
                    return (yield from route.handler(call))  # type: ignore[misc, no-any-return]
                return (yield from self._handled(route.handler, call))  # type: ignore[arg-type]
            except InvalidInput as refused:
                self.ignored = [*self.ignored, *leniency.ignore_unknown(call, route.body, refused)]

    def _rarer_route(self) -> Route | None:
        """Return the route that the first ones lack: of a path whose other methods are used less, or GET for HEAD. None
        for OPTIONS, and for a path that does not exist. Raises `MethodNotAllowed`: as the OpenAPI document shows the
        methods of a path, callers need not be known for that.
        """
        method = self.request.method
        self.match = match = self.served.table.match(self.request.raw_path)
        return match.route(method) if match.routes and method != "OPTIONS" else None

    def _preflight(self) -> Response | None:
        """Return the answer to a browser that asks what it may send, where it may send anything."""
        origins = self.served.origins
        return None if origins is None else origins.preflight(self.headers, self.match.allowed)

    def _without_route(self) -> Response:
        """Return which methods a path has. Raises `UnknownRoute`."""
        if not self.match.routes:
            self.match.route(self.request.method)
        return Response(204, [("allow", ", ".join(self.match.allowed))], b"")

    def _read_body(self, route: Route, call: RouteCall) -> Flow[None]:
        """Read the body, and put it into the call: its JSON as the route reads it, or as a file."""
        if route.body not in _PARSED:
            yield from self._spool(route, call)
            yield from self._still_known()
            return
        raw: bytes = yield self._reading(self.served.limits[route.body])
        yield from self._still_known()
        if len(raw) > LARGE:
            call.body = yield flow.Call(partial(route.read, raw, call), True, call.threads)
        elif raw:
            call.body = route.read(raw, call)

    def _handled(self, answer: PlainHandler, call: RouteCall) -> Flow[Response]:
        """Call a handler that is a plain function: in a thread, if it may wait for a file or the store."""
        if call.data is not None:
            with call.data:
                return (yield flow.Call(lambda: self._with_data(answer, call), True, call.threads))  # type: ignore[no-any-return]
        if self.served.platform.blocking:
            threads = self.threads.store.of(self.tenant)
            return (yield flow.Call(lambda: self._since(answer, call), True, threads))  # type: ignore[no-any-return]
        return self._since(answer, call)

    def _with_data(self, answer: PlainHandler, call: RouteCall) -> Response:
        """Answer, and close the data in this thread, which takes a while for a large file."""
        with call.file:
            return self._since(answer, call)

    def _since(self, answer: PlainHandler, call: RouteCall) -> Response:
        """Answer, and let what is stored know when the request began."""
        token = REQUEST_BEGAN.set(self.began)
        try:
            return answer(call)
        finally:
            REQUEST_BEGAN.reset(token)

    def _known_caller(self) -> Caller | None:
        """Return the caller, if that needs no read of the store."""
        auth, header = self.match.auth, self.headers.get(b"authorization")
        if auth not in _BY_KEY:
            return self.served.anyone if auth is _PUBLIC else None
        if auth in OPEN:
            auth, header = credentials(auth, self.headers)
        if header is None:
            return self.served.callers.without_key(self.headers)
        return self.served.callers.remembered(auth, header, self.began)

    def _still_known(self) -> Flow[None]:
        """Raise `Unauthenticated` if what the caller is known by was revoked while a long body came."""
        takes_long = self.served.clock.monotonic() - self.began > REMEMBERED_SECONDS
        if takes_long and self.match.auth in _BY_KEY and credentials(self.match.auth, self.headers)[1] is not None:
            yield from self._identify()

    def _identify(self) -> Flow[Caller]:
        waits = self.served.callers.waits(self.match.auth)
        return (yield flow.Call(self._find_caller, waits, self.threads.store.of(AUTHENTICATION)))  # type: ignore

    def _find_caller(self) -> Caller:
        callers, auth = self.served.callers, self.match.auth
        if auth is Auth.ADDRESS:
            return callers.at(next(iter(self.match.routes.values())), self.match.params)
        return callers.find(*credentials(auth, self.headers), self.began)

    def _reading(self, limit: int) -> ReadBody:
        """Return what reads the body of JSON, which its headers declare it to be. Raises what they are refused by."""
        check_media(self.headers, False)
        check_length(self.headers, limit)
        return ReadBody(self.request.body, limit, self.served.clock)

    def _spool(self, route: Route, call: RouteCall) -> Flow[None]:
        """Read the body as a file, and put it into the call."""
        body, files, clock = self.request.body, self.served.spool, self.served.clock
        limit = self.served.limits[route.body]
        if route.body not in _CODED:
            check_media(self.headers, route.body is Body.DATA, route.body is Body.FORM)
        check_length(self.headers, limit)
        files.require_room()
        call.data = yield Await(
            lambda: aspool(body, limit, files, call.threads),
            lambda: spool(body, limit, clock, files),
        )


def rate_headers(stand: RateStand) -> list[Header]:
    """Return the headers by which clients of chat completions learn what is left of their rate.

    >>> rate_headers(RateStand(60, 59, 1.0))[1:]
    [('x-ratelimit-remaining-requests', '59'), ('x-ratelimit-reset-requests', '1s')]
    """
    return [
        ("x-ratelimit-limit-requests", str(stand.limit)),
        ("x-ratelimit-remaining-requests", str(stand.remaining)),
        ("x-ratelimit-reset-requests", f"{stand.reset:.3f}".rstrip("0").rstrip(".") + "s"),
    ]
