"""The whole of HTTP as one function from a request to a response, synchronous and asynchronous.

`Endpoint` is that function, and this module knows the routes of the core.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import count
from typing import Any, cast

from modelyard.domain.identity import Principal
from modelyard.flow import AsyncDriver, SyncDriver
from modelyard.http import core_routes, openapi
from modelyard.http.auth import CallerCache
from modelyard.http.catalogue import routes as catalogue
from modelyard.http.chat import routes as completion
from modelyard.http.cors import AllowedOrigins
from modelyard.http.exchange import ANYONE, HttpExchange, Served
from modelyard.http.interface import Interface
from modelyard.http.interfaces import OPERATIONS, STANDARD, mounted_by_default
from modelyard.http.message import STREAMED, Request, Response
from modelyard.http.response_bodies import offloaded
from modelyard.http.route import MAX_EXPORT, Body, Route
from modelyard.http.router import HttpRouter
from modelyard.part import ALWAYS, Part
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator

FIRST: tuple[Route, ...] = (*catalogue.ROUTES, *completion.ROUTES)
"""The routes that are loaded when an endpoint is made. The others are loaded by the first request for another path."""


def mounted_routes(interfaces: Collection[Interface], parts: Iterable[Part]) -> list[Route]:
    """Return the routes of these interfaces, and those of any. Of two at one place the later part's is mounted."""
    parts, names = [*parts], {interface.name for interface in interfaces}
    of_parts = (make() for part in parts for name, make in part.routes.items() if name in names)
    every = (*FIRST, *core_routes.ROUTES, *(route for routes in of_parts for route in routes))
    found = [route for route in every if route.interface in interfaces]
    found += [route for part in parts for route in part.routes.get(ALWAYS, tuple)()]
    return [*{(route.method, route.path): route for route in found}.values()]


@cache
def route_table(interfaces: frozenset[Interface] | None, parts: tuple[Part, ...]) -> HttpRouter:
    """Return the table of these interfaces, or of those that are mounted by default, and of the two routes that
    describe them.

    All endpoints of a process share it: a test opens many.
    """

    def rest() -> list[Route]:
        mounted = mounted_routes(mounted_by_default(parts) if interfaces is None else interfaces, parts)
        described = [*mounted, openapi.page_route(mounted)]
        return [*described, openapi.document_route(described)]

    return HttpRouter([route for route in FIRST if interfaces is None or route.interface in interfaces], rest)


class Endpoint:
    """A platform over HTTP.

    `handle` and `ahandle` turn a `Request` into a `Response`; they raise nothing that a client could cause. `platform`
    must be the host's own view. `interfaces` are those that are mounted. `authenticator` identifies callers; without
    one, the platform's API keys do. `cors_origins` are those whose pages a browser lets use it (`AllowedOrigins`).
    `anonymous` is who calls without a key, for servers that only this machine can reach; by default that is refused.

        endpoint = Endpoint(platform, interfaces=[Interface.BASE])
        endpoint.handle(Request("GET", "/inference/analysis/partner/models", "", [], iter(()))).status  # 200
    """

    def __init__(
        self,
        platform: Platform,
        interfaces: Iterable[Interface] = STANDARD,
        authenticator: Authenticator | None = None,
        cors_origins: Iterable[str] = (),
        anonymous: Principal | None = None,
    ) -> None:
        named = None if interfaces is STANDARD else frozenset(interfaces)
        self.table: HttpRouter = route_table(named, tuple(platform.parts))
        self._watches: list[Any] = platform.part(lambda runtime, _: runtime.cache.watches)
        settings, callers = platform.settings, CallerCache(platform, authenticator or platform.keys, anonymous)
        name = f"req-{platform.randomness(8).hex()}-"
        self._served = Served(
            platform,
            self.table,
            platform.clock,
            callers.acting_as(ANYONE),
            callers,
            platform.spool,
            {
                Body.CONTROL: settings.max_control_body,
                Body.CHAT: settings.max_chat_body,
                Body.DATA: settings.max_data_body,
                Body.FORM: settings.max_form,
                Body.EXPORT: MAX_EXPORT,
                Body.MESSAGE: MAX_EXPORT,
            },
            AllowedOrigins(origins) if (origins := tuple(cors_origins)) else None,
            platform.count_requests() if named is None or OPERATIONS in named else None,
            platform.observer is not None,
            map(name.__add__, map(str, count(1))).__next__,
        )

    def handle(self, request: Request) -> Response:
        """Answer. A body that is an iterator must be read to its end or closed."""
        answered = self._watches[0].begin(request) if self._watches else None
        exchange = HttpExchange(self._served, request)
        driver = SyncDriver(exchange.flow())
        items = driver.items()
        streamed: Response | None = next(items, None)
        response = exchange.finished(streamed or cast(Response, driver.result))
        if response.body is STREAMED:
            response.body = items
        return response if answered is None else answered(response)

    async def ahandle(self, request: Request) -> Response:
        """Answer, on an event loop that is never blocked. A body that is an asynchronous iterator must be read to its
        end or closed."""
        answered = await self._watches[0].abegin(request) if self._watches else None
        exchange = HttpExchange(self._served, request)
        driver = AsyncDriver(exchange.flow())
        items = driver.items()
        streamed: Response | None = await anext(items, None)
        response = exchange.finished(streamed or cast(Response, driver.result))
        if response.body is STREAMED:
            response.body = items
        elif type(response.body) is not bytes and isinstance(response.body, Iterator):
            response.body = offloaded(response.body, exchange.threads.bodies.of(exchange.tenant))
        return response if answered is None else answered(response)
