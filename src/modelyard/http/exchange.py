"""One request and its answer, as a flow: authenticate, read, handle, and report what failed."""

from collections.abc import Mapping
from typing import cast
from urllib.parse import parse_qs

import attrs

from modelyard import flow
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import InvalidInput, Unauthenticated
from modelyard.flow import Await, CallerDisconnected, Emit, Flow
from modelyard.http.auth import CHALLENGES, Caller, CallerCache
from modelyard.http.body import aread, aspool, check_length, check_media, read, spool
from modelyard.http.error_responses import failed, report
from modelyard.http.message import Header, Headers, Request, Response, check_singular, parse
from modelyard.http.route import Auth, Body, Call, FlowHandler, PlainHandler, Route
from modelyard.http.router import RouteMatch
from modelyard.platform.artifacts import Spool
from modelyard.platform.platform import Platform

ANYONE = Principal("anyone", "", Scope(""))
"""The caller of a public route: a principal with an empty scope."""

LARGE = 2**18
"""Bytes of JSON from which parsing is kept off the event loop."""

_NO_STORE: Header = ("cache-control", "no-store")
_MAX_QUERY_FIELDS = 1000


@attrs.frozen
class Served:
    """What all exchanges of an endpoint share."""

    platform: Platform
    anyone: Caller
    callers: CallerCache
    spool: Spool
    limits: Mapping[Body, int]


@attrs.define(eq=False)
class Exchange:
    """One request on its way; `id` names it in the answer and in the log."""

    served: Served
    request: Request
    match: RouteMatch
    headers: Headers
    doubled: set[str]
    id: str
    started: bool = False

    def flow(self) -> Flow[None]:
        """Emit the response, and after a response whose body is `STREAMED` the pieces of that body."""
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
            yield Emit(response)

    def finished(self, response: Response) -> Response:
        """Return the response with the headers that every answer has."""
        self.started = True
        response.headers.append(("x-request-id", self.id))
        if self.match.auth is not Auth.PUBLIC:
            response.headers.append(_NO_STORE)
        if type(response.body) is bytes and response.status not in (204, 304):
            response.headers.append(("content-length", str(len(response.body))))
        if self.request.method == "HEAD":
            close(response.body)
            response.body = b""
        return response

    def _failed(self, failure: Exception) -> Response:
        response = failed(failure, self.match.error_format, self.id)
        if isinstance(failure, Unauthenticated) and self.match.auth in CHALLENGES:
            response.headers.append(CHALLENGES[self.match.auth])
        return response

    def _answer(self) -> Flow[Response | None]:
        if self.doubled and self.match.auth is not Auth.PUBLIC:
            check_singular(self.doubled)
        caller = self._known_caller() or (
            yield flow.Call(self._find_caller, self.served.callers.waits(self.match.auth))
        )
        method = self.request.method
        if method == "OPTIONS" and self.match.routes:
            return Response(204, [("allow", ", ".join(self.match.allowed))], b"")
        route = self.match.route(method)
        query = self.request.query
        call = Call(
            caller.principal,
            caller.platform,
            self.served.spool,
            self.match.params,
            _query(query) if query else _NO_QUERY,
            self.headers,
            self.request,
        )
        if route.body is not Body.NONE:
            yield from self._read(route, call)
        if route.is_flow:
            return (yield from cast(FlowHandler, route.handler)(call))
        answer = cast(PlainHandler, route.handler)
        if call.data is not None:
            return (yield flow.Call(lambda: self._with_data(answer, call), True))  # type: ignore[no-any-return]
        if self._store_waits:
            return (yield flow.Call(lambda: answer(call), True))  # type: ignore[no-any-return]
        return answer(call)

    def _with_data(self, answer: PlainHandler, call: Call) -> Response:
        """Answer, and remove the raw body in any case."""
        assert call.data is not None
        try:
            return answer(call)
        finally:
            call.spool.remove(call.data)

    @property
    def _store_waits(self) -> bool:
        return self.served.platform.blocking

    def _known_caller(self) -> Caller | None:
        """Return the caller, if that needs no read of the store."""
        auth = self.match.auth
        if auth is Auth.PUBLIC:
            return self.served.anyone
        if auth is Auth.ADDRESS:
            return None
        return self.served.callers.remembered(auth, self.headers.get("authorization"))

    def _find_caller(self) -> Caller:
        callers, auth = self.served.callers, self.match.auth
        if auth is Auth.ADDRESS:
            return callers.at(self.match.params)
        return callers.find(auth, self.headers.get("authorization"))

    def _read(self, route: Route, call: Call) -> Flow[None]:
        """Read the body as the route takes it, and put it into the call."""
        body, files, clock = self.request.body, self.served.spool, self.served.platform.clock
        limit = self.served.limits[route.body]
        check_media(self.headers, route.body is Body.DATA)
        check_length(self.headers, limit)
        if route.body is Body.DATA:
            files.require_room()
            call.data = yield Await(
                lambda: aspool(body, limit, files),
                lambda: spool(body, limit, clock, files),
            )
            return
        raw: bytes = yield Await(lambda: aread(body, limit), lambda: read(body, limit, clock))
        if len(raw) > LARGE:
            call.body = yield flow.Call(lambda: parse(raw), True)
        elif raw:
            call.body = parse(raw)


def close(body: object) -> None:
    """Close a body that can be closed."""
    if hasattr(body, "close"):
        body.close()


_NO_QUERY: Mapping[str, tuple[str, ...]] = {}


def _query(text: str) -> Mapping[str, tuple[str, ...]]:
    """Return the parameters of a query, in strict UTF-8. Raises `InvalidInput`."""
    try:
        text.encode("ascii")
        fields = parse_qs(text, keep_blank_values=True, errors="strict", max_num_fields=_MAX_QUERY_FIELDS)
        return {name: tuple(values) for name, values in fields.items()}
    except ValueError:
        raise InvalidInput.at("query", msg="must be percent-encoded UTF-8 with at most 1000 fields") from None
