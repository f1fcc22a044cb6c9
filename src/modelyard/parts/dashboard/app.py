"""The dashboard over HTTP: a function from a request to a page, for any server."""

import json
from collections.abc import AsyncIterator, Generator, Iterator

from modelyard.domain.identity import Principal
from modelyard.errors import ModelyardError
from modelyard.http.message import EVENT_STREAM, Request, Response, aread, read
from modelyard.parts.dashboard.exchange import HEADERS, Api, DashboardParts, PageExchange
from modelyard.parts.dashboard.routes import PageTable
from modelyard.parts.dashboard.sessions import Sessions
from modelyard.parts.dashboard.view import PREFIX
from modelyard.platform.platform import Platform
from modelyard.protocols import Authenticator
from modelyard.threads import TenantThreads

MAX_FORM = 2**18
MAX_FOLLOWERS = 200
"""How many pages at most are kept up to date by a stream; others look again every few seconds."""

LIVE_SECONDS = 1.0
TENANT = "(dashboard)"
"""The tenant on whose account callers are identified, and before an entity's name, its pages made. No entity has it."""


class Dashboard:
    """A platform as pages that people look at.

    `platform` must be the host's own view. Callers log in with a key, which `authenticator` knows, or else the
    platform. With `reader`, everyone sees what that principal sees, without a login, and nothing can be changed; it
    answers only at an address of this machine. `api` answers what is not
    below `/dashboard`.

        dashboard = Dashboard(platform)
        dashboard.handle(Request("GET", "/dashboard/", "", [], iter(()))).status  # 303: log in
    """

    def __init__(
        self,
        platform: Platform,
        authenticator: Authenticator | None = None,
        reader: Principal | None = None,
        api: Api | None = None,
    ) -> None:
        find, sessions = PageTable(platform.parts).find, Sessions(platform, authenticator)
        self._shared = DashboardParts(platform, sessions, reader, find, api)
        self._platform, self._api, self._followers = platform, api, 0

    def handle(self, request: Request) -> Response:
        """Answer. A body that is an iterator must be read to its end or closed."""
        if self._api is not None and not _is_ours(request.raw_path):
            return self._api.handle(request)
        exchange = PageExchange(self._shared, request)
        return exchange.answer(lambda: read(request.body, MAX_FORM, self._platform.clock))

    async def ahandle(self, request: Request) -> Response:
        """Answer, on an event loop that is never blocked."""
        if self._api is not None and not _is_ours(request.raw_path):
            return await self._api.ahandle(request)
        exchange = PageExchange(self._shared, request)
        if exchange.follows and self._followers < MAX_FOLLOWERS:
            return Response(200, [EVENT_STREAM, *HEADERS], self._updates(exchange))
        try:
            body = await aread(request.body, MAX_FORM)
        except ModelyardError as error:
            return exchange.failed(error)
        threads = await self._threads_for(exchange)
        response = await threads.run(lambda: exchange.answer(lambda: body))
        if isinstance(response.body, Iterator):
            response.body = _offloaded(response.body, threads)
        return response

    async def _threads_for(self, exchange: PageExchange) -> TenantThreads:
        """Return the threads in which the pages of a caller are made, of which each entity has a share of its own."""
        pool = self._platform.threads.backends
        return pool.of(f"{TENANT} {await pool.of(TENANT).run(exchange.entity)}")

    async def _updates(self, exchange: PageExchange) -> AsyncIterator[bytes]:
        """Yield the page as events, whenever it has changed, until it changes no more or the session has ended."""
        threads, shown = await self._threads_for(exchange), ""
        self._followers += 1
        try:
            while (page := await threads.run(exchange.update)) is not None:
                if page[0] not in ("", shown):
                    shown = page[0]
                    yield f"data: {json.dumps(shown)}\n\n".encode()
                if not page[1]:
                    break
                await self._platform.clock.asleep(LIVE_SECONDS)
            yield b"event: end\ndata: \n\n"
        finally:
            self._followers -= 1


def _is_ours(path: str) -> bool:
    return path in ("/", f"/{PREFIX}") or path.startswith(f"/{PREFIX}/")


async def _offloaded(pieces: Iterator[bytes], threads: TenantThreads) -> AsyncIterator[bytes]:
    """Yield pieces that are each made in a thread."""
    try:
        while (piece := await threads.run(lambda: next(pieces, None))) is not None:
            yield piece
    finally:
        if isinstance(pieces, Generator):
            await threads.to_close.run(pieces.close)
