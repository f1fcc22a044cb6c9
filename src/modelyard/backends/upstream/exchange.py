"""One request to a server, written once: what is said, heard, waited for and tried again.

The flow yields deltas, and between them what its carrier is to do; a synchronous carrier does it, an asynchronous one
is awaited. So nothing here knows a socket, and both ways behave alike.
"""

import logging
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from itertools import count
from operator import methodcaller
from typing import Any, Protocol

import attrs

from modelyard.backends.upstream.errors import Head, RetryableError, failed_inside, refusal
from modelyard.backends.upstream.models import UpstreamModel
from modelyard.backends.upstream.timeouts import Timeouts
from modelyard.domain.completion import CompletionRequest, Delta
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.chat.answer_reader import AnswerReader
from modelyard.formats.chat.request import request_object
from modelyard.formats.chat.sse import EventReader
from modelyard.formats.json import dumps, loads
from modelyard.protocols import Clock, ServedModel

log = logging.getLogger("modelyard.backends.upstream")
log.addHandler(logging.NullHandler())

Effect = Callable[[Any], Any]
Flow = Generator[Effect | Delta, Any, None]
Part = Generator[Effect | Delta, Any, Any]

MAX_ANSWER = 2**26
MAX_REFUSAL = 2**16
_DONE = b"[DONE]"
_LAST_WORDS = 1.0
"""Seconds that a connection has to end once the answer is complete."""


class Adapters(Protocol):
    """Sees to it that a server has a checkpoint's adapter loaded, under a name, for as long as it answers."""

    def serving(self, model: ServedModel) -> AbstractContextManager[str]:
        """The adapter's name on the server, which keeps it while the block runs."""
        ...

    def aserving(self, model: ServedModel) -> AbstractAsyncContextManager[str]:
        """The same on an event loop."""
        ...

    def lost(self, name: str) -> None:
        """The server does not know that name: whatever was loaded there is gone."""
        ...


@attrs.frozen
class Upstream:
    """What all requests to a server share. `jitter` draws numbers from 0 to 1."""

    api_key: str | None = attrs.field(repr=False)
    patience: Timeouts
    clock: Clock
    jitter: Callable[[], float]
    adapters: Adapters | None


class Exchange:
    """One request and its attempts."""

    def __init__(
        self, upstream: Upstream, offered: UpstreamModel, request: CompletionRequest, model: ServedModel
    ) -> None:
        self._upstream, self._offered, self._request, self._model = upstream, offered, request, model
        self._clock, self._patience = upstream.clock, upstream.patience
        self._limit = self._waited = 0.0
        self._told = False
        self._adapter: str | None = None

    def flow(self) -> Flow:
        """The answer. Raises as `modelyard.protocols.Backend` says; what fails before the first token is tried again
        where that may help.
        """
        until = self._clock.monotonic() + self._patience.deadline
        yield methodcaller("enter", self._patience.deadline)
        for attempt in count():
            try:
                yield from self._attempt()
                return
            except RetryableError as setback:
                wait = self._patience.pause(attempt, setback.wait, self._upstream.jitter())
                last = self._told or not setback.again or attempt >= self._patience.retries
                if last or self._clock.monotonic() + wait > until:
                    raise setback.error from setback.__cause__
                log.warning("attempt %d failed, the next follows in %.1f s: %s", attempt + 1, wait, setback)
            yield methodcaller("pause", wait)

    def _attempt(self) -> Part:
        self._limit, self._waited = self._patience.first_token, 0.0
        try:
            head = yield from self._begin()
            if head.status != 200:
                raise refusal(head, (yield from self._whole(MAX_REFUSAL)), self._upstream.api_key, self._clock.now())
            if head.content_encoding not in ("", "identity"):
                raise RetryableError(
                    BackendError("the upstream server's answer is compressed, which it was not asked for")
                )
            yield from self._events() if head.content_type.startswith("text/event-stream") else self._document()
        except InvalidInput as wrong:
            raise RetryableError(BackendError(f"the upstream server's answer is malformed: {wrong}")) from wrong
        except TimeoutError as late:
            what = "said nothing more" if self._told else "gave no first token"
            raise RetryableError(BackendError(f"the upstream server {what} within {self._limit:g} s")) from late

    # ---- the question

    def _begin(self) -> Part:
        """The head of the answer. An adapter that the server has lost is loaded anew, once."""
        if self._model.checkpoint is None or not self._model.checkpoint.files:
            return (yield from self._send(self._offered.served_as))
        adapters = self._upstream.adapters
        if adapters is None:
            raise RetryableError(
                BackendError(f"{self._offered.entry.id} is served upstream without adapters for checkpoints")
            )
        if self._adapter is None:
            self._adapter = yield methodcaller("borrow", adapters, self._model)
        head = yield from self._send(self._adapter)
        if head.status != 404:
            return head
        adapters.lost(self._adapter)
        self._adapter = yield methodcaller("borrow", adapters, self._model)
        return (yield from self._send(self._adapter))

    def _send(self, name: str) -> Part:
        offered, request = self._offered, self._request
        # What is the model's own limit anyway is left to the server, which knows how long the prompt is.
        limited = request.max_tokens is not None and request.max_tokens < self._model.entry.max_output_length
        limit = request.max_tokens if limited else None
        body = dumps(request_object(request, name, limit, offered.capabilities.parameters))
        return (yield from self._timed("send", "POST", "/chat/completions", body))

    # ---- the answer

    def _events(self) -> Part:
        """A stream of chunks, up to its end, so that its connection can be used again."""
        events, reader, done = EventReader(), AnswerReader(self._request), False
        try:
            while raw := (yield from self._timed("read")):
                for event in events.take(raw):
                    if event == _DONE:
                        done, self._limit, self._waited = True, _LAST_WORDS, 0.0
                        continue
                    for delta in reader.take(self._json(event)):
                        self._told, self._limit, self._waited = True, self._patience.between_tokens, 0.0
                        yield delta
        except (RetryableError, TimeoutError):
            if not done:
                raise
        yield reader.end()

    def _document(self) -> Part:
        """An answer in one piece, as also a server gives it that does not stream."""
        reader = AnswerReader(self._request)
        value = self._json((yield from self._whole(MAX_ANSWER)))
        for delta in (*reader.take(value), reader.end()):
            self._told = True
            yield delta

    def _whole(self, most: int) -> Part:
        """The rest of the answer's bytes."""
        pieces, size = [], 0
        while raw := (yield from self._timed("read")):
            pieces.append(raw)
            size += len(raw)
            if size > most:
                raise RetryableError(BackendError(f"the upstream server's answer is longer than {most} bytes"))
        return b"".join(pieces)

    def _json(self, raw: bytes) -> Any:
        """The value of a JSON text. Raises what it says that went wrong."""
        value = loads(raw, at=("answer",), max_structure=MAX_ANSWER)
        failed = failed_inside(value, self._upstream.api_key) if isinstance(value, dict) else None
        if failed is not None:
            raise failed
        return value

    def _timed(self, name: str, *given: Any) -> Part:
        """What the carrier gives, within what is left of the time; what it waits for is time, what we do is none."""
        began = self._clock.monotonic()
        if self._waited > self._limit:
            raise TimeoutError
        found = yield methodcaller(name, *given, seconds=self._limit - self._waited)
        self._waited += self._clock.monotonic() - began
        return found


# ---- the drivers -------------------------------------------------------------------------------------------------


class Carrier(Protocol):
    """What a synchronous exchange needs done; the asynchronous one's methods are the same, to be awaited."""

    def enter(self, seconds: float) -> None:
        """Wait for one's turn. Raises `Overloaded`."""
        ...

    def borrow(self, adapters: Adapters, model: ServedModel) -> str:
        """The name of an adapter that stays loaded until the carrier is closed."""
        ...

    def send(self, method: str, path: str, body: bytes, seconds: float) -> Head:
        """Ask, and wait for the head of the answer. Raises `RetryableError`, `TimeoutError`."""
        ...

    def read(self, seconds: float) -> bytes:
        """The next bytes of the answer; none at its end. Raises `RetryableError`, `TimeoutError`."""
        ...

    def pause(self, seconds: float) -> None:
        """Let time go by."""
        ...

    def close(self) -> None:
        """Stop, and give everything back."""
        ...


def drive(flow: Flow, carrier: Carrier) -> Iterator[Delta]:
    """The deltas of a flow, by blocking calls. Closing the iterator breaks the request off."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Delta):
                yield step
                step = next(flow)
                continue
            try:
                answer = step(carrier)
            except Exception as error:  # noqa: BLE001 - the flow decides
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration:
        return
    finally:
        carrier.close()


async def adrive(flow: Flow, carrier: Any) -> AsyncGenerator[Delta, None]:
    """The same on an event loop, with a carrier whose methods are awaited."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Delta):
                yield step
                step = next(flow)
                continue
            try:
                answer = await step(carrier)
            except Exception as error:  # noqa: BLE001 - the flow decides
                step = flow.throw(error)
            else:
                step = flow.send(answer)
    except StopIteration:
        return
    finally:
        await carrier.aclose()
