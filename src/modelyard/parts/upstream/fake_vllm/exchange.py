"""One request to a vLLM double, and its answer: whole, event by event, or none."""

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import attrs

from modelyard.parts.upstream.fake_vllm.misbehaviour import LONGEST_WAIT, Answered, ConnectionCut, Misbehaviour
from modelyard.parts.upstream.fake_vllm.prompts import PromptWriter
from modelyard.parts.upstream.fake_vllm.schemas import AnswerWriter, Json, dump, error_body

NOTHING: Mapping[str, str] = {}


@attrs.define(eq=False)
class ReceivedRequest:
    """A request. `body` is its JSON, or None; header names are in lower case.

    `status` is the answer's, None before there is one. `disconnected` says whether the client disconnected before the
    end of the answer.
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
        """The JSON. Raises ValueError for another body."""
        return json.loads(self.raw) if self.raw else None

    def end(self) -> None:
        """Mark the request as over."""
        self._ended.set()

    def ended(self, timeout: float = LONGEST_WAIT) -> None:
        """Wait until the request is answered, cut, or given up by the client. Raises TimeoutError."""
        if not self._ended.wait(timeout):
            raise TimeoutError(f"{self.path} was not over within {timeout:.0f} seconds")


async def read(scope: Any, receive: Callable[[], Any]) -> ReceivedRequest:
    raw, more = b"", True
    while more:
        message = await receive()
        raw += message.get("body", b"")
        more = message.get("more_body", False)
    headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
    return ReceivedRequest(scope["method"], scope["path"], headers, raw)


class FakeExchange:
    """The answer to a request, with the misbehaviour that is planned for it."""

    def __init__(
        self, request: ReceivedRequest, send: Callable[[Any], Any], plan: Misbehaviour | None, old_errors: bool
    ) -> None:
        self.request: ReceivedRequest = request
        self._send, self._plan, self._old = send, plan, old_errors
        self._work: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._streaming = False
        self._cut = False
        self.writer: AnswerWriter | PromptWriter | None = None

    # ---- life cycle

    async def run(self, answer: Coroutine[Any, Any, None], receive: Callable[[], Any]) -> bool:
        """Answer, unless the client disconnects. Return False when the connection is to be cut."""
        self._work = asyncio.create_task(answer)
        gone = asyncio.create_task(_gone(receive))
        try:
            await asyncio.wait({self._work, gone}, return_when=asyncio.FIRST_COMPLETED)
            self.request.disconnected = not self._work.done()
            return await self._outcome()
        finally:
            self._work.cancel()
            gone.cancel()
            self.request.end()

    async def _outcome(self) -> bool:
        assert self._work is not None
        self._work.cancel()
        try:
            await self._work
        except ConnectionCut:
            return False
        except asyncio.CancelledError:
            if not (self.request.disconnected or self._cut):
                raise
            return not self._cut
        return True

    def cut(self) -> None:
        """Stop, as a server that dies. May be called from any thread."""
        self._cut = True
        if self._work is not None:
            self._loop.call_soon_threadsafe(self._work.cancel)

    # ---- answers

    async def reach(self, place: int | None, streamed: bool = True) -> None:
        """Perform the plan for this place of the answer, or for any place if the answer does not stream."""
        plan = self._plan
        if plan is not None and (plan.after == place or not streamed):
            self._plan = None
            await plan.happen(self)

    async def answer(self, status: int, body: str, content_type: str | None, headers: Mapping[str, str]) -> None:
        raw = body.encode()
        kind = {} if content_type is None else {"content-type": content_type}
        await self._start(status, {**kind, "content-length": str(len(raw)), **headers})
        await self._send({"type": "http.response.body", "body": raw})

    async def answer_json(self, body: Json, status: int = 200, headers: Mapping[str, str] = NOTHING) -> None:
        await self.answer(status, dump(body), "application/json", headers)

    async def refuse(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] = NOTHING,
        **members: str | None,
    ) -> None:
        await self.answer_json(error_body(status, message, old=self._old, **members), status, headers)

    async def begin_stream(self) -> None:
        self._streaming = True
        await self._start(200, {"content-type": "text/event-stream; charset=utf-8"})

    async def event(self, data: str) -> None:
        """Send an event of the stream; outside of a stream, the body of an answer."""
        if not self._streaming:
            await self.answer(200, data, "application/json", {})
            raise Answered
        await self._send({"type": "http.response.body", "body": f"data: {data}\n\n".encode(), "more_body": True})

    async def end_stream(self) -> None:
        await self.event("[DONE]")
        await self._send({"type": "http.response.body", "body": b""})

    async def break_off(self, message: str) -> None:
        """Send an error as the last event before `[DONE]`, as vLLM does; outside of a stream a status 500."""
        if not self._streaming:
            await self.refuse(500, message)
            return
        await self.event(dump(error_body(500, message, old=self._old)))
        await self.end_stream()

    async def abort(self) -> None:
        """End the answer to a chat or a prompt with the finish reason "abort", as vLLM does when it gets SIGTERM."""
        assert self.writer is not None, "an abort is planned for a completion"
        if not self._streaming:
            await self.answer_json(self.writer.aborted())
            return
        for chunk in self.writer.abortions():
            await self.event(dump(chunk))
        await self.end_stream()

    async def _start(self, status: int, headers: Mapping[str, str]) -> None:
        self.request.status = status
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": encoded})


async def _gone(receive: Callable[[], Any]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
