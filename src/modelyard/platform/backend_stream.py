"""What a backend gives, piece by piece: one kind of stream over both kinds of backend."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import cast

import attrs

from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.flow import settled
from modelyard.lazy import asyncio, log
from modelyard.protocols import AsyncBackend, Backend, ServedModel


@attrs.define(eq=False)
class BackendStream:
    """An open stream of deltas, of a backend of one kind or the other.

    A synchronous one has `begin`, called at the first pull, so that all of a backend runs where it may block; `deltas`
    is what it gave, and `blocking` says that getting them may wait. An asynchronous one has `adeltas`; `runner` drives
    them where no event loop runs.
    """

    blocking: bool
    begin: Callable[[], Iterator[Delta]] | None = None
    deltas: Iterator[Delta] | None = None
    adeltas: AsyncIterator[Delta] | None = None
    runner: "asyncio.Runner | None" = None
    stopping: bool = False
    closed: bool = False

    @property
    def waits(self) -> bool:
        """Whether it may keep an event loop waiting."""
        return self.blocking or self.adeltas is not None

    @classmethod
    def of(cls, backend: Backend | AsyncBackend, request: CompletionRequest, model: ServedModel) -> "BackendStream":
        """For blocking calls: an asynchronous backend gets an event loop of its own.

        Raises RuntimeError for such a backend where an event loop runs already.
        """
        if hasattr(backend, "stream"):
            return cls._synchronous(cast(Backend, backend), request, model)
        if _on_event_loop():
            raise RuntimeError("this backend is asynchronous only: on an event loop use acomplete or astream")
        runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        return cls(True, adeltas=backend.astream(request, model), runner=runner)

    @classmethod
    def on_loop(
        cls, backend: Backend | AsyncBackend, request: CompletionRequest, model: ServedModel
    ) -> "BackendStream":
        """For an event loop: asynchronous where the backend can be."""
        if hasattr(backend, "astream"):
            return cls(False, adeltas=backend.astream(request, model))
        return cls._synchronous(backend, request, model)

    @classmethod
    def _synchronous(cls, backend: Backend, request: CompletionRequest, model: ServedModel) -> "BackendStream":
        return cls(backend.blocking, lambda: iter(backend.stream(request, model)))

    def pull(self, take: Callable[[Delta], bool]) -> bool:
        """Hand deltas to `take` until it returns True or the source is to stop; False at the end."""
        if self.runner is not None:
            return self.runner.run(self.apull(take))
        if self.deltas is None:
            assert self.begin is not None
            self.deltas = self.begin()
        for delta in self.deltas:  # noqa: SIM110 - a generator would be resumed for every delta
            if take(delta) or self.stopping:
                return True
        return False

    async def apull(self, take: Callable[[Delta], bool]) -> bool:
        """The same on an event loop."""
        assert self.adeltas is not None
        async for delta in self.adeltas:
            if take(delta):
                return True
        return False

    def stop(self) -> None:
        """Have a pull that is under way in another thread end with the delta that is being made."""
        self.stopping = True

    def close(self) -> None:
        """Stop the backend's work. Idempotent; a fault of the backend while it stops is logged and changes nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            if self.runner is None:
                getattr(self.deltas, "close", _nothing)()
            else:
                self.runner.run(self._aclose())
        except Exception:  # noqa: BLE001 - the answer is complete, or given up
            log.exception(_STOPPING)
        finally:
            if self.runner is not None:
                self.runner.close()

    async def aclose(self) -> None:
        """Stop the backend's work on an event loop, in the executor where the backend may block."""
        if self.closed:
            return
        if self.adeltas is None:
            await settled(self.close) if self.blocking else self.close()
            return
        self.closed = True
        try:
            await self._aclose()
        except Exception:  # noqa: BLE001 - the answer is complete, or given up
            log.exception(_STOPPING)

    async def _aclose(self) -> None:
        aclose = getattr(self.adeltas, "aclose", None)
        if aclose is not None:
            await aclose()


_STOPPING = "a backend failed while it was stopped"


def _nothing() -> None:
    """How to close what was never begun, or cannot be closed."""


def _on_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
