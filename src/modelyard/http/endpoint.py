"""The whole of HTTP as one function from a request to a response, synchronous and asynchronous.

`Endpoint` is that function, and this module knows the routes of every interface.
"""

from collections.abc import Collection, Iterable, Iterator
from functools import cache
from itertools import count
from typing import cast

from modelyard.domain.identity import Principal
from modelyard.flow import AsyncDriver, SyncDriver
from modelyard.http.auth import CallerCache
from modelyard.http.catalogue import routes as catalogue
from modelyard.http.chat import routes as completion
from modelyard.http.chat import stored_routes as stored
from modelyard.http.cors import AllowedOrigins
from modelyard.http.evaluations import comparison, predictions, results, runs
from modelyard.http.evaluations import jobs as evaluation_jobs
from modelyard.http.evaluations import object_routes as objects
from modelyard.http.exchange import ANYONE, HttpExchange, Served
from modelyard.http.health import routes as health
from modelyard.http.keys import routes as keys
from modelyard.http.message import (
    STREAMED,
    Request,
    Response,
)
from modelyard.http.models import routes as models
from modelyard.http.openapi import document_route, page_route
from modelyard.http.response_bodies import offloaded
from modelyard.http.route import MAX_EXPORT, STANDARD, Body, Interface, Route
from modelyard.http.router import HttpRouter
from modelyard.http.training import routes as training
from modelyard.http.usage import routes as usage
from modelyard.parts.annotations import routes as annotations
from modelyard.parts.batches import routes as batches
from modelyard.parts.batches.files import routes as files
from modelyard.parts.completions import routes as continued
from modelyard.parts.embeddings import routes as embeddings
from modelyard.parts.fine_tuning import routes as fine_tuning
from modelyard.parts.messages import routes as messages
from modelyard.parts.responses import routes as responses
from modelyard.parts.tinker.http import rest_routes, session_routes
from modelyard.parts.tinker.http import routes as tinker
from modelyard.parts.traces.http import feedback_routes, object_routes, otlp_routes
from modelyard.parts.traces.http import routes as traces
from modelyard.parts.traffic import routes as traffic
from modelyard.parts.uploads import routes as upload
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator


def routes() -> tuple[Route, ...]:
    """Return the routes of all interfaces."""
    traced = (*traces.ROUTES, *object_routes.ROUTES, *feedback_routes.ROUTES, *otlp_routes.ROUTES)
    trained = (*traced, *models.ROUTES, *training.ROUTES, *traffic.ROUTES)
    judged = (*runs.ROUTES, *results.ROUTES, *comparison.ROUTES)
    judging = (*judged, *evaluation_jobs.ROUTES, *predictions.ROUTES, *objects.ROUTES)
    chats = (*completion.ROUTES, *stored.ROUTES, *responses.ROUTES, *messages.ROUTES)
    answering = (*chats, *embeddings.ROUTES)
    base = (*catalogue.ROUTES, *answering, *trained, *judging, *health.ROUTES)
    operations = (*keys.ROUTES, *usage.ROUTES, *annotations.ROUTES)
    tuned = (*fine_tuning.ROUTES, *session_routes.ROUTES, *tinker.ROUTES, *rest_routes.ROUTES)
    return (*base, *upload.ROUTES, *operations, *files.ROUTES, *continued.ROUTES, *batches.ROUTES, *tuned)


def mounted_routes(interfaces: Collection[Interface]) -> list[Route]:
    """Return the routes of these interfaces. Of two at one place the later is mounted: uploads know the GraphQL of
    traces, too.
    """
    return [*{(route.method, route.path): route for route in routes() if route.interface in interfaces}.values()]


@cache
def route_table(interfaces: frozenset[Interface]) -> HttpRouter:
    """Return the table of these interfaces, and of the two routes that describe them.

    It is never changed, so that all endpoints of a process may share it: a test opens many.
    """
    mounted = mounted_routes(interfaces)
    described = [*mounted, page_route(mounted)]
    return HttpRouter([*described, document_route(described)])


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
        self.table: HttpRouter = route_table(frozenset(interfaces))
        mounted = {route.interface for route in self.table.routes}
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
            platform.metrics.count() if Interface.OPERATIONS in mounted else None,
            platform.observer is not None,
            map(name.__add__, map(str, count(1))).__next__,
        )

    def handle(self, request: Request) -> Response:
        """Answer. A body that is an iterator must be read to its end or closed."""
        exchange = HttpExchange(self._served, request)
        driver = SyncDriver(exchange.flow())
        items = driver.items()
        streamed: Response | None = next(items, None)
        response = exchange.finished(streamed or cast(Response, driver.result))
        if response.body is STREAMED:
            response.body = items
        return response

    async def ahandle(self, request: Request) -> Response:
        """Answer, on an event loop that is never blocked. A body that is an asynchronous iterator must be read to its
        end or closed.
        """
        exchange = HttpExchange(self._served, request)
        driver = AsyncDriver(exchange.flow())
        items = driver.items()
        streamed: Response | None = await anext(items, None)
        response = exchange.finished(streamed or cast(Response, driver.result))
        if response.body is STREAMED:
            response.body = items
        elif type(response.body) is not bytes and isinstance(response.body, Iterator):
            response.body = offloaded(response.body, exchange.threads.bodies.of(exchange.tenant))
        return response
