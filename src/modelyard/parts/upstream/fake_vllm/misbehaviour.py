"""The misbehaviour of a server double instead of an answer: refuse, cut, garble, break off, hold, shut down."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

import attrs

LONGEST_WAIT = 60.0
"""Seconds to wait for what a test expects: many, since a machine may be busy."""


class Gate:
    """Holds every request that reaches it, on any event loop, until it is opened; then all pass.

    gate = Gate()
    fake.plan(Hold(gate, after=2))
    ...                 # begin a request
    gate.reached()      # it waits at the gate now
    gate.open()
    """

    def __init__(self) -> None:
        self._opened: Future[None] = Future()
        self._arrivals = threading.Semaphore(0)

    def open(self) -> None:
        """Let everyone pass, now and later."""
        if not self._opened.done():
            self._opened.set_result(None)

    def reached(self, timeout: float = LONGEST_WAIT) -> None:
        """Wait until one more request has reached the gate. Raises TimeoutError."""
        if not self._arrivals.acquire(timeout=timeout):
            raise TimeoutError(f"no request reached the gate within {timeout:.0f} seconds")

    async def wait(self) -> None:
        """Wait at the gate until it is open."""
        self._arrivals.release()
        await asyncio.shield(asyncio.wrap_future(self._opened))


class ConnectionCut(Exception):
    """The connection is to end here, without an answer."""


class Answered(Exception):
    """The answer is complete; nothing more is to be sent."""


class Responder(Protocol):
    """Answers for a double: whole, or event by event."""

    async def refuse(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        """Answer with an error in the server's own shape."""
        ...

    async def event(self, data: str) -> None:
        """Send one event of a stream."""
        ...

    async def break_off(self, message: str) -> None:
        """Answer that it failed: in a stream with an event and its end, otherwise with a status 500."""
        ...

    async def abort(self) -> None:
        """Answer that the server shuts down: with the finish reason "abort"."""
        ...


class Misbehaviour(Protocol):
    """Happens at one place of an answer: with `after` None before the status, with n after n events of the stream.

    An answer that is not a stream has no events: there it happens before the status in any case.
    """

    @property
    def after(self) -> int | None:
        """The place where it happens."""
        ...

    async def happen(self, responder: Responder) -> None:
        """Do it. Raises `Answered` or `ConnectionCut` when nothing is to follow."""
        ...


@attrs.frozen
class Refuse:
    """Answer with this status, and a `Retry-After` if one is given (seconds, or an HTTP date)."""

    status: int = 503
    message: str = "The engine is not ready."
    retry_after: float | str | None = None
    after: None = attrs.field(default=None, init=False)

    async def happen(self, responder: Responder) -> None:
        headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after}"}
        await responder.refuse(self.status, self.message, headers)
        raise Answered


@attrs.frozen
class CutConnection:
    """End the connection without the rest of the answer."""

    after: int | None = None

    async def happen(self, responder: Responder) -> None:
        raise ConnectionCut


@attrs.frozen
class Garble:
    """Send an event that is not JSON, and continue."""

    after: int | None = 1

    async def happen(self, responder: Responder) -> None:
        await responder.event('{"id": "chatcmpl-1", "choices": [{"ind')


@attrs.frozen
class Break:
    """Fail in the middle of the answer, as an engine does that runs out of memory."""

    after: int | None = 1
    message: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."

    async def happen(self, responder: Responder) -> None:
        await responder.break_off(self.message)
        raise Answered


@attrs.frozen
class Hold:
    """Wait at a gate, and continue when it is opened."""

    gate: Gate
    after: int | None = None

    async def happen(self, responder: Responder) -> None:
        await self.gate.wait()


@attrs.frozen
class Abort:
    """Shut down, as vLLM mostly does: every choice ends with the finish reason "abort"."""

    after: int = 1

    async def happen(self, responder: Responder) -> None:
        await responder.abort()
        raise Answered


@attrs.frozen
class FallSilent:
    """Shut down, as vLLM sometimes does, with adapters above all: send nothing more until the client disconnects."""

    after: int | None = 1

    async def happen(self, responder: Responder) -> None:
        await asyncio.Event().wait()
