"""What a completion asks of a backend: open a stream, pull from it, close it."""

from collections.abc import Callable
from typing import Any

import attrs

from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.flow import AsyncDriver, Driver
from modelyard.platform.backend_stream import BackendStream
from modelyard.protocols import AsyncBackend, Backend, ServedModel


@attrs.define(eq=False)
class Open:
    """Answered with a `BackendStream` of the backend's deltas, which the driver closes when the flow has ended."""

    backend: Backend | AsyncBackend
    request: CompletionRequest
    model: ServedModel

    @property
    def waits(self) -> bool:
        """Whether it opens otherwise on an event loop; nothing is asked of the backend yet in either way."""
        return hasattr(self.backend, "astream")

    def perform(self, driver: "Driver[Any]") -> BackendStream:
        """Raises RuntimeError for a backend that is asynchronous only where an event loop runs already."""
        return _opened(driver, BackendStream.of(self.backend, self.request, self.model))

    async def aperform(self, driver: "AsyncDriver[Any]") -> BackendStream:
        """The asynchronous way where the backend has one."""
        return _opened(driver, BackendStream.on_loop(self.backend, self.request, self.model))


def _opened(driver: Driver[Any], source: BackendStream) -> BackendStream:
    driver.opened.append(source)
    return source


@attrs.define(eq=False)
class Pull:
    """Hands deltas to `take` until that returns True. Answered with whether it did; False is the end of the source."""

    source: BackendStream
    take: Callable[[Delta], bool]

    @property
    def waits(self) -> bool:
        """As the source says."""
        return self.source.waits

    def perform(self, driver: "Driver[Any]") -> bool:
        """In this thread."""
        return self.source.pull(self.take)

    async def aperform(self, driver: "AsyncDriver[Any]") -> bool:
        """On the loop, or for a backend that blocks in one hand-over to the executor."""
        if self.source.adeltas is not None:
            return await self.source.apull(self.take)
        return await driver.in_thread(lambda: self.source.pull(self.take), self.source.stop)


@attrs.define(eq=False)
class Close:
    """Stop a source's work now; answered with None."""

    source: BackendStream

    @property
    def waits(self) -> bool:
        """As the source says."""
        return self.source.waits

    def perform(self, driver: "Driver[Any]") -> None:
        """In this thread."""
        self.source.close()

    async def aperform(self, driver: "AsyncDriver[Any]") -> None:
        """On the loop, or in the executor."""
        await driver.close(self.source)
