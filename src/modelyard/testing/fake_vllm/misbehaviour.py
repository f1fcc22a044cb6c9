"""What a server double does with a request to come, other than to answer it: refuse, cut, garble, break off, hold."""

import asyncio
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Protocol

import attrs

LONGEST_WAIT = 10.0


class Gate:
    """Holds whoever comes to it, on any event loop, until it is opened; then it lets all pass.

    gate = Gate()
    fake.plan(Hold(gate, after=2))
    ...                 # begin a request
    gate.reached()      # it stands at the gate now
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
        """Wait until one more has come to the gate. Raises TimeoutError."""
        if not self._arrivals.acquire(timeout=timeout):
            raise TimeoutError(f"nobody came to the gate within {timeout:.0f} seconds")

    async def wait(self) -> None:
        """Stand at the gate until it is open."""
        self._arrivals.release()
        await asyncio.shield(asyncio.wrap_future(self._opened))


class ConnectionCut(Exception):
    """The connection is to end here, without a word."""


class Answered(Exception):
    """Nothing more is to be sent."""


class Speaker(Protocol):
    """How a double answers: whole, or event by event."""

    async def refuse(self, status: int, message: str, headers: Mapping[str, str]) -> None:
        """Answer with an error in the server's own shape."""
        ...

    async def event(self, data: str) -> None:
        """Send one event of a stream."""
        ...

    async def break_off(self, message: str) -> None:
        """Say that the answer failed: in a stream as an event and its end, otherwise as a status 500."""
        ...


class Misbehaviour(Protocol):
    """Happens once a request has got so far: `after` None is before the status, n behind n events of the stream.

    An answer that is no stream has no events: there it happens before the status, whatever `after` says.
    """

    @property
    def after(self) -> int | None:
        """When."""
        ...

    async def happen(self, speaker: Speaker) -> None:
        """Do it. Raises `Answered` or `ConnectionCut` when nothing is to follow."""
        ...


@attrs.frozen
class Refuse:
    """Answer with this status, and a `Retry-After` where one is given (seconds, or an HTTP date)."""

    status: int = 503
    message: str = "The engine is not ready."
    retry_after: float | str | None = None
    after: None = attrs.field(default=None, init=False)

    async def happen(self, speaker: Speaker) -> None:
        """Refuse."""
        headers = {} if self.retry_after is None else {"retry-after": f"{self.retry_after}"}
        await speaker.refuse(self.status, self.message, headers)
        raise Answered


@attrs.frozen
class CutConnection:
    """End the connection."""

    after: int | None = None

    async def happen(self, speaker: Speaker) -> None:
        """CutConnection."""
        raise ConnectionCut


@attrs.frozen
class Garble:
    """Send an event that is no JSON, and go on."""

    after: int | None = 1

    async def happen(self, speaker: Speaker) -> None:
        """Garble."""
        await speaker.event('{"id": "chatcmpl-1", "choices": [{"ind')


@attrs.frozen
class Break:
    """Fail in the midst of the answer, as an engine does whose memory has run out."""

    after: int | None = 1
    message: str = "EngineCore encountered an issue. See stack trace (above) for the root cause."

    async def happen(self, speaker: Speaker) -> None:
        """Break off."""
        await speaker.break_off(self.message)
        raise Answered


@attrs.frozen
class Hold:
    """Wait at a gate, and go on when it is opened."""

    gate: Gate
    after: int | None = None

    async def happen(self, speaker: Speaker) -> None:
        """Wait."""
        await self.gate.wait()
