"""One request to a vLLM double, and how it is answered: whole, event by event, or not at all."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import attrs

from modelyard.testing.fake_vllm.misbehaviour import LONGEST_WAIT, Answered, ConnectionCut, Misbehaviour
from modelyard.testing.fake_vllm.schemas import Json, dump, error_body

NOTHING: Mapping[str, str] = {}


@attrs.define(eq=False)
class Asked:
    """A request that came. `body` is its JSON, None where there is none; header names are in lower case.

    `status` is what was answered, None as long as nothing was; `disconnected` says that the client went away before
    the answer's end.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes = attrs.field(repr=False)
    status: int | None = None
    disconnected: bool = False
    _ended: threading.Event = attrs.field(factory=threading.Event, repr=False)

    @property
    def body(self) -> Any:
        """The JSON. Raises ValueError when it is none."""
        return json.loads(self.raw) if self.raw else None

    def end(self) -> None:
        """It is over."""
        self._ended.set()

    def ended(self, timeout: float = LONGEST_WAIT) -> None:
        """Wait until it is over: answered, cut, or given up by the client. Raises TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.path} was not over within {timeout:.0f} seconds")


async def read(scope: Any, receive: Callable[[], Any]) -> Asked:
    """The whole request."""
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return Asked(scope["method"], scope["path"], headers, raw)


class Exchange:
    """How a request is answered, with what is to go wrong on the way."""

    def __init__(self, asked: Asked, send: Callable[[Any], Any], plan: Misbehaviour | None, old_errors: bool) -> None:
        self.asked, self._send, self._plan, self._old = asked, send, plan, old_errors
        self._work: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._streaming = False
        self._cut = False

    # ---- its life

    async def run(self, answer: Coroutine[Any, Any, None], receive: Callable[[], Any]) -> bool:
        """Answer, unless the client goes away. Returns False when the connection is to be cut."""
        self._work = asyncio.create_task(answer)
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
            self.asked.disconnected = not self._work.done()
            return await self._outcome()
        finally:
            self._work.cancel()
            gone.cancel()
            self.asked.end()

    async def _outcome(self) -> bool:
        assert self._work is not None
        self._work.cancel()
        try:
            await self._work
        except ConnectionCut:
            return False
        except asyncio.CancelledError:
            if not (self.asked.disconnected or self._cut):
                raise
            return not self._cut
        return True

    def cut(self) -> None:
        """Give up, as a server that dies. From any thread."""
        self._cut = True
        if self._work is not None:
            self._loop.call_soon_threadsafe(self._work.cancel)

    # ---- what is said

    async def reach(self, place: int | None, streamed: bool = True) -> None:
        """Let happen what is planned for this place of the answer; for all of it in one that does not stream."""
        plan = self._plan
        if plan is not None and (plan.after == place or not streamed):
            self._plan = None
            await plan.happen(self)

    async def answer(self, status: int, body: str, content_type: str, headers: Mapping[str, str]) -> None:
        """A whole answer."""
        raw = body.encode()
        await self._start(status, {"content-type": content_type, "content-length": str(len(raw)), **headers})
        await self._send({"type": "http.response.body", "body": raw})

    async def answer_json(self, body: Json, status: int = 200, headers: Mapping[str, str] = NOTHING) -> None:
        """A whole answer that is JSON."""
        await self.answer(status, dump(body), "application/json", headers)

    async def refuse(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] = NOTHING,
        **said: str | None,
    ) -> None:
        """An error in vLLM's shape; `said` may tell its `type` and `param`."""
        await self.answer_json(error_body(status, message, old=self._old, **said), status, headers)

    async def begin_stream(self) -> None:
        """The head of a stream."""
        self._streaming = True
        await self._start(200, {"content-type": "text/event-stream; charset=utf-8"})

    async def event(self, data: str) -> None:
        """One event of the stream; outside of one, the body of an answer."""
        if not self._streaming:
            await self.answer(200, data, "application/json", {})
            raise Answered
        await self._send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

    async def end_stream(self) -> None:
        """`[DONE]`, and the end."""
        await self.event("[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def break_off(self, message: str) -> None:
        """An error as the last event of a stream, which vLLM too ends with `[DONE]`; outside of one a status 500."""
        if not self._streaming:
            await self.refuse(500, message)
            return
        await self.event(dump(error_body(500, message, old=self._old)))
        await self.end_stream()

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.asked.status = status
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})


async def _gone(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
