"""The waits of the management of adapters: for the server's routes, and for a bell, as effects of a flow."""

import threading
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

import attrs

from modelyard.clock import SystemClock
from modelyard.errors import BackendError
from modelyard.flow import Await
from modelyard.formats.json import dumps
from modelyard.lazy import asyncio
from modelyard.parts.upstream.address import Address
from modelyard.parts.upstream.connections import MOST_WHOLE, BlockingConnection, LoopConnections, check_size
from modelyard.parts.upstream.decoding import decoded
from modelyard.parts.upstream.errors import RetryableError
from modelyard.parts.upstream.response import ConnectionBroken, UpstreamResponse
from modelyard.protocols import Clock


@attrs.frozen
class ServerAnswer:
    path: str
    status: int
    body: bytes


@attrs.frozen
class Server:
    """A server that is asked now and then, to load adapters or for tokens: each call makes a connection."""

    address: Address
    timeout: float

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Await:
        """Return an effect that is answered with a `ServerAnswer`, or raises `BackendError` after `timeout` seconds."""
        return Await(partial(self._acall, method, path, body), partial(self._call, method, path, body))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> ServerAnswer:
        request = self._request(method, path, body)
        try:
            with closing(BlockingConnection(self.address, self.timeout)) as connection:
                connection.send(request, self.timeout)
                while not connection.response.complete:
                    check_size(connection.response)
                    connection.receive(self.timeout)
        except (OSError, ConnectionBroken) as error:
            raise _unreachable(path, error) from error
        return _answer(path, connection.response)

    async def _acall(self, method: str, path: str, body: Mapping[str, Any] | None) -> ServerAnswer:
        request = self._request(method, path, body)
        try:
            with (
                closing(LoopConnections(self.address, 0, SystemClock())) as connections,
                closing(await connections.open(self.timeout)) as connection,
            ):
                connection.send(request)
                async with asyncio.timeout(self.timeout):
                    await connection.end()
        except (OSError, ConnectionBroken) as error:
            raise _unreachable(path, error) from error
        return _answer(path, connection.response)

    def _request(self, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
        return self.address.request(method, path, b"" if body is None else dumps(body))


def _answer(path: str, answer: UpstreamResponse) -> ServerAnswer:
    assert answer.head is not None
    try:
        return ServerAnswer(path, answer.head.status, decoded(answer.head, answer.take(), MOST_WHOLE))
    except RetryableError as failure:
        raise failure.error from failure


def _unreachable(path: str, error: Exception) -> BackendError:
    return BackendError(f"the upstream server did not answer {path}: {type(error).__name__}")


def wait_for_bell(bell: "Future[None]", clock: Clock, seconds: float) -> Await:
    def wait() -> None:
        rung = threading.Event()
        bell.add_done_callback(lambda _: rung.set())
        clock.wait(rung, seconds)

    async def await_() -> None:
        sleeping = asyncio.ensure_future(clock.asleep(seconds))
        try:
            await asyncio.wait({asyncio.wrap_future(bell), sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()

    return Await(await_, wait)
