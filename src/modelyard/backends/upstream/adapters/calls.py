"""What reconciling adapters waits for, done by blocking calls or on an event loop: one flow, two drivers."""

import asyncio
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

import attrs

from modelyard.backends.upstream.address import Address, httpx
from modelyard.errors import BackendError
from modelyard.flow import settled
from modelyard.protocols import Clock

T = TypeVar("T")


class Effect(Protocol):
    """Something that a flow waits for. Its answer goes back to the flow, and so does what it raises."""

    def perform(self) -> Any:
        """By blocking calls."""
        ...

    async def aperform(self) -> Any:
        """On the running event loop, which is never blocked."""
        ...


Flow = Generator[Effect, Any, T]


@attrs.frozen
class Answer:
    """What the server said to a request for `path`."""

    path: str
    status: int
    body: bytes


@attrs.frozen
class Ask:
    """Answered with an `Answer`. A connection each: it happens when an adapter is loaded, not per request.

    Raises `BackendError` when there is none within `timeout` seconds.
    """

    address: Address
    timeout: float
    method: str
    path: str
    body: Mapping[str, str] | None = None

    def perform(self) -> Answer:
        """With a client for this call."""
        try:
            with httpx.Client(**self.address.options, timeout=self.timeout) as client:
                return self._answer(client.request(self.method, self.path, json=self.body))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    async def aperform(self) -> Answer:
        """With a client for this call."""
        try:
            async with httpx.AsyncClient(**self.address.options, timeout=self.timeout) as client:
                return self._answer(await client.request(self.method, self.path, json=self.body))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _answer(self, response: httpx.Response) -> Answer:
        return Answer(self.path, response.status_code, response.content)

    def _unreachable(self, error: Exception) -> BackendError:
        return BackendError(f"the server of the adapters did not answer {self.path}: {type(error).__name__}")


@attrs.frozen
class Work:
    """Answered with what the function, which may block, returns."""

    function: Callable[[], Any]

    def perform(self) -> Any:
        """In this thread."""
        return self.function()

    async def aperform(self) -> Any:
        """In the loop's executor; a cancelled task waits for its end."""
        return await settled(self.function)


@attrs.frozen
class Listen:
    """Wait for a bell, but at most so many seconds."""

    bell: "Future[None]"
    clock: Clock
    seconds: float

    def perform(self) -> None:
        """In this thread."""
        rung = threading.Event()
        self.bell.add_done_callback(lambda _: rung.set())
        self.clock.wait(rung, self.seconds)

    async def aperform(self) -> None:
        """In this task."""
        sleeping = asyncio.ensure_future(self.clock.asleep(self.seconds))
        try:
            await asyncio.wait({asyncio.wrap_future(self.bell), sleeping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()


def run(flow: Flow[T]) -> T:
    """Drive a flow to its end by blocking calls."""
    resume, value = flow.send, None
    while True:
        try:
            effect = resume(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            resume, value = flow.send, effect.perform()
        except BaseException as error:  # noqa: BLE001 - the flow decides, and sets right what it had begun
            resume, value = flow.throw, error


async def arun(flow: Flow[T]) -> T:
    """Drive a flow to its end on the running event loop."""
    resume, value = flow.send, None
    while True:
        try:
            effect = resume(value)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            resume, value = flow.send, await effect.aperform()
        except BaseException as error:  # noqa: BLE001 - as above; a cancelled task is cancelled by the flow's end
            resume, value = flow.throw, error
