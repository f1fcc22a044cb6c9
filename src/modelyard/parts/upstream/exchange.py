"""One request to a server, written once as a flow: its attempts, their time limits, and the deltas of the answer."""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from itertools import count
from typing import Any, ClassVar, Protocol

import attrs

from modelyard.domain.completion import CompletionRequest, Delta, ToolMode
from modelyard.errors import BackendError, InvalidInput, ModelyardError, Problem
from modelyard.flow import Await, Emit, Flow
from modelyard.formats.json import dumps
from modelyard.parts.request_objects import request_object
from modelyard.parts.upstream.answers.reader import AnswerBrokenOff, AnswerReader
from modelyard.parts.upstream.answers.values import is_whole, read_values
from modelyard.parts.upstream.decoding import TELLING, Decompressor, Unreadable, encoding_of
from modelyard.parts.upstream.errors import Head, RetryableError, failed_inside, moved, refusal, reported
from modelyard.parts.upstream.events import DONE, EventReader, begins_event, event_within, may_begin_event
from modelyard.parts.upstream.models import UpstreamModel
from modelyard.parts.upstream.timeouts import Timeouts
from modelyard.protocols import Clock, ServedModel

log: logging.Logger = logging.getLogger("modelyard.backends.upstream")
log.addHandler(logging.NullHandler())

MAX_ANSWER = 2**26
MAX_REFUSAL = 2**16
_LAST_LINES = tuple(b"\n" + done for done in DONE)
"""Ends of an event of several chunks: servers that send no blank lines."""
_GREEDY = 1e-5
"""The temperature below which vLLM takes the likeliest token."""
_MOST_REDIRECTS = 4
_MOST_WRAPPED = 4
"""How many proxies may wrap an event that was one already."""
_LAST_READ = 1.0
"""Seconds that a connection has to end once the answer is complete."""
_LAST_BYTES = 2**16
"""Bytes that may still follow."""


class Adapters(Protocol):
    """Keeps a checkpoint's adapter loaded on a server, under a name, while it answers."""

    def serving(self, model: ServedModel) -> AbstractContextManager[str]:
        """Return the adapter's name on the server, which keeps it loaded while the block runs."""
        ...

    def aserving(self, model: ServedModel) -> AbstractAsyncContextManager[str]:
        """Return the adapter's name, without blocking the event loop."""
        ...

    def lost(self, name: str) -> None:
        """Note that the server does not know that name: what was loaded there is gone."""
        ...


class Transport(Protocol):
    """Carries one request. Each method blocks, or on an event loop returns an awaitable."""

    def enter(self, seconds: float) -> Any:
        """Wait for a place among the concurrent requests. Raises `Overloaded`."""
        ...

    def borrow(self, adapters: Adapters, model: ServedModel) -> Any:
        """Return the name of an adapter that stays loaded until the transport is closed."""
        ...

    def send(self, method: str, path: str, body: bytes, target: str | None, seconds: float) -> Any:
        """Send the request and return the `Head` of the answer. Raises `RetryableError`, `TimeoutError`.

        It goes to a path below the server's URL, or to the `target` that the server has named instead.
        """
        ...

    def redirected(self, path: str, location: str) -> str | None:
        """Return the target that a `location` names; None if it is on another server, which never gets the key."""
        ...

    def read(self, seconds: float) -> Any:
        """Return the next bytes of the answer; none at its end. Raises `RetryableError`, `TimeoutError`."""
        ...

    def pause(self, seconds: float) -> Any:
        """Wait before the next attempt."""
        ...


def _nothing() -> None:
    pass


@attrs.frozen
class Upstream:
    """The state that all requests to a server share. `jitter` draws numbers from 0 to 1. `retried` counts another
    attempt.
    """

    api_key: str | None = attrs.field(repr=False)
    timeouts: Timeouts
    clock: Clock
    jitter: Callable[[], float]
    adapters: Adapters | None
    retried: Callable[[], None] = _nothing


def _effect(method: Callable[..., Any], *arguments: Any) -> Await:
    """Return the effect of a method of the transport, which is of the driver's kind."""
    call = partial(method, *arguments)
    return Await(call, call)


class Attempts:
    """One request and its attempts; a subclass makes the request, and reads the answer."""

    path: ClassVar[str] = ""
    awaited: ClassVar[str] = "no answer"

    def __init__(
        self, upstream: Upstream, transport: Transport, upstream_model: UpstreamModel, model: ServedModel
    ) -> None:
        self._upstream, self._clock, self._timeouts = upstream, upstream.clock, upstream.timeouts
        self._transport, self._upstream_model, self._model = transport, upstream_model, model
        self._limit = self._waited = 0.0
        self._begun = False
        self._adapter: str | None = None
        self._decompressor: Decompressor | None = None
        self._ahead = b""

    def _body(self, name: str) -> bytes:
        """Return the request to the model that the server calls by this name."""
        raise NotImplementedError

    def _answer(self, head: Head) -> Flow[None]:
        """Read the answer after its head, and emit it."""
        raise NotImplementedError

    def flow(self) -> Flow[None]:
        """Emit the answer. Raises what `modelyard.protocols.Backend` allows.

        A request that fails before the first token is tried again if that may help.
        """
        until = self._clock.monotonic() + self._timeouts.deadline
        yield _effect(self._transport.enter, self._timeouts.deadline)
        for attempt in count():
            try:
                yield from self._attempt()
                return
            except RetryableError as failure:
                self._model.on_sent(False)
                pause = self._timeouts.pause(attempt, failure.wait, self._upstream.jitter())
                last = self._begun or not failure.again or attempt >= self._timeouts.retries
                if last or self._clock.monotonic() + pause > until:
                    yield from self._spent(failure)
                    raise failure.error from failure.__cause__
                self._upstream.retried()
                log.warning("attempt %d failed, the next follows in %.1f s: %s", attempt + 1, pause, failure)
            except ModelyardError:
                self._model.on_sent(False)
                raise
            yield _effect(self._transport.pause, pause)

    def _attempt(self) -> Flow[None]:
        upstream = self._upstream
        self._limit, self._waited = self._timeouts.first_token, 0.0
        try:
            head = yield from self._begin()
            if not head.is_success:
                raise refusal(head, (yield from self._reason(head)), upstream.api_key, self._clock.now())
            yield from self._open(head)
            yield from self._answer(head)
        except InvalidInput as wrong:
            raise RetryableError(BackendError(f"the upstream server's answer is malformed: {wrong}")) from wrong
        except BackendError as failed:
            raise RetryableError(failed) from failed.__cause__
        except AnswerBrokenOff as ended:
            raise RetryableError(BackendError("the upstream server broke the answer off"), again=True) from ended
        except TimeoutError as late:
            what = "sent nothing more" if self._begun else f"gave {self.awaited}"
            raise RetryableError(BackendError(f"the upstream server {what} within {self._limit:g} s")) from late

    def _spent(self, failure: RetryableError) -> Flow[None]:
        """Emit what an answer that failed says of its cost."""
        yield from ()

    # ---- the request

    def _begin(self) -> Flow[Head]:
        """Return the head of the answer. An adapter that the server has lost is loaded again, once."""
        if self._model.checkpoint is None or not self._model.checkpoint.files:
            return (yield from self._send(self._upstream_model.served_as))
        adapters = self._upstream.adapters
        if adapters is None:
            raise RetryableError(
                BackendError(f"{self._upstream_model.entry.id} is served upstream without adapters for checkpoints")
            )
        if self._adapter is None:
            self._adapter = yield _effect(self._transport.borrow, adapters, self._model)
        head = yield from self._send(self._adapter)
        if head.status != 404:
            return head
        adapters.lost(self._adapter)
        self._adapter = yield _effect(self._transport.borrow, adapters, self._model)
        return (yield from self._send(self._adapter))

    def _send(self, name: str) -> Flow[Head]:
        """Send the request, to another place of the same server if it says so. Raises `RetryableError`."""
        body, target = self._body(name), None
        for _ in range(_MOST_REDIRECTS):
            head: Head = yield from self._timed(self._transport.send, "POST", self.path, body, target)
            if not head.is_redirect:
                break
            target = self._transport.redirected(self.path, head.location)
            if target is None:
                raise moved(head, self._upstream.api_key)
        return head

    # ---- the answer

    def _open(self, head: Head) -> Flow[None]:
        """Read the beginning of the body, which tells whether it is compressed, and what it is."""
        begin = b""
        while len(begin) < TELLING and (raw := (yield from self._timed(self._transport.read))):
            begin += raw
        encoding = encoding_of(head.content_encoding, begin) if begin else ""
        self._decompressor = Decompressor(encoding, begin, head.content_encoding) if encoding else None
        self._ahead = b"" if encoding else begin
        if encoding:
            self._ahead = yield from self._read()
        while not head.is_event_stream and may_begin_event(begin := self._ahead):
            self._ahead = b""
            more = yield from self._read()
            self._ahead = begin + more
            if not more:
                break

    def _read(self) -> Generator[Await, Any, bytes]:
        """Return the next bytes of the body as they were before compression; none at its end."""
        if self._ahead:
            found, self._ahead = self._ahead, b""
            return found
        if self._decompressor is None:
            return (yield from self._timed(self._transport.read))  # type: ignore[no-any-return]
        while not (found := self._decompressor.take()):
            raw = yield from self._timed(self._transport.read)
            if not raw:
                return b""
            self._decompressor.feed(raw)
        return found

    def _reason(self, head: Head) -> Flow[bytes]:
        """Return what the server says of a failure, as far as it can be read: its status is known without."""
        self._limit, self._waited = self._timeouts.between_tokens, 0.0
        said = b""
        try:
            yield from self._open(head)
            while len(said) < MAX_REFUSAL and (raw := (yield from self._read())):
                said += raw
        except (RetryableError, TimeoutError) as wrong:
            return said or str(wrong).encode()
        return said

    def _whole(self, most: int) -> Flow[bytes]:
        """Read the whole body. One that ends too early is kept if it is whole, as the server miscounts its length."""
        pieces, size = [], 0
        try:
            while size <= most and (raw := (yield from self._read())):
                pieces.append(raw)
                size += len(raw)
        except (RetryableError, TimeoutError):
            if not is_whole(b"".join(pieces)):
                raise
        if size > most:
            raise _too_long(most)
        return b"".join(pieces)

    def _failed(self, value: Any, reader: AnswerReader | None = None) -> None:
        """Raise the error that a value reports, if it is one. An answer that is complete is kept nevertheless."""
        failed = failed_inside(value, self._upstream.api_key) if isinstance(value, dict) else None
        if failed is None:
            return
        if reader is None or not (reader.complete and reader.has_output):
            raise failed
        reader.note(f"is complete, and reports a failure besides: {failed}")

    def _timed(self, method: Callable[..., Any], *arguments: Any) -> Generator[Await, Any, Any]:
        """Call a method of the transport within what is left of the time limit. Our own work does not count."""
        began = self._clock.monotonic()
        if self._waited > self._limit:
            raise TimeoutError
        call = partial(method, *arguments, self._limit - self._waited)
        found = yield Await(call, call)
        self._waited += self._clock.monotonic() - began
        return found


class Exchange(Attempts):
    """A request for a completion, its attempts, and the deltas of its answer."""

    path: ClassVar[str] = "/chat/completions"
    awaited: ClassVar[str] = "no first token"

    def __init__(
        self,
        upstream: Upstream,
        transport: Transport,
        upstream_model: UpstreamModel,
        request: CompletionRequest,
        model: ServedModel,
    ) -> None:
        super().__init__(upstream, transport, upstream_model, model)
        self._greedy = request.n > 1 and request.sampling.temperature < _GREEDY
        sent = attrs.evolve(request, n=1) if self._greedy else request
        self._request = _strict(sent) if upstream_model.capabilities.guided else sent
        self._choices = request.n
        self._done, self._idle = False, 0
        self._reader: AnswerReader | None = None
        self._last: Sequence[Any] = ()

    def _body(self, name: str) -> bytes:
        request = self._request
        # What is the model's own limit anyway is left to the server, which knows how long the prompt is.
        limited = request.max_tokens is not None and request.max_tokens < self._model.entry.max_output_length
        limit = request.max_tokens if limited else None
        can = self._upstream_model.capabilities
        return dumps(request_object(request, name, limit, can.parameters, can.reasoning))

    def _new_reader(self) -> AnswerReader:
        return AnswerReader(self._request, note)

    def _answer(self, head: Head) -> Flow[None]:
        self._reader = reader = self._new_reader()
        return self._events(reader) if self._is_stream(head) else self._document(reader)

    def _spent(self, failure: RetryableError) -> Flow[None]:
        """Emit what an answer has cost. Of one that cannot be read at all, the prompt is known."""
        reader = self._new_reader() if self._reader is None else self._reader
        if reader.costs or isinstance(failure, Unreadable):
            yield Emit(self._choices_of(Delta(usage=reader.usage())))

    def _is_stream(self, head: Head) -> bool:
        """Return whether events follow. The first bytes of the body tell more than its label."""
        begin = self._ahead.removeprefix(b"\xef\xbb\xbf").lstrip()
        if begin.startswith((b"{", b"[")):
            return False
        return begins_event(begin) or head.is_event_stream

    def _events(self, reader: AnswerReader) -> Flow[None]:
        """Read a stream of chunks up to its end, so that its connection can be used again.

        What comes once every choice has ended, or fails to come, loses nothing of the answer.
        """
        events = EventReader()
        self._done, self._idle = False, 0
        try:
            while raw := (yield from self._read()):
                yield from self._take(events.take(raw), reader)
                self._idle += len(raw)
                if self._idle > (_LAST_BYTES if self._done else MAX_ANSWER):
                    raise _too_long(MAX_ANSWER)
            yield from self._take(events.end(), reader)
        except (RetryableError, TimeoutError, InvalidInput):
            if not self._done and not reader.complete:
                raise
        try:
            ended = reader.end(self._done)
        except InvalidInput as wrong:
            raise self._said(self._last, b"") or wrong from None
        yield Emit([shown for delta in ended for shown in self._choices_of(delta)])

    def _take(self, found: Sequence[bytes], reader: AnswerReader) -> Flow[None]:
        """Read events, and emit their deltas at once, also before an error that one of them is."""
        ready: list[Delta] = []
        at = 0
        try:
            while at < len(found):
                texts = reader.take_texts(found, at)
                ready += self._shown(texts) if texts else self._deltas(found[at], reader)
                at += len(texts) or 1
        finally:
            if ready:
                yield Emit(ready)

    def _deltas(self, event: bytes, reader: AnswerReader, wrapped: int = 0) -> Sequence[Delta]:
        """Return the deltas of an event, which proxies may have `wrapped`, and note what the next one may take."""
        event = event.strip()
        if event in DONE:
            self._end()
            return ()
        if not event.startswith((b"{", b"[{")):
            if (again := event_within(event)) is not None and wrapped < _MOST_WRAPPED:
                return self._deltas(again, reader, wrapped + 1)
            if event:
                reader.note("has an event that is not a chunk, which is left out")
            return ()
        chunks = self._last = read_values(event)
        try:
            deltas = reader.with_usage([delta for chunk in chunks for delta in reader.take(chunk, event)])
        finally:
            for chunk in chunks:
                self._failed(chunk, reader)
        shown = self._shown(deltas) if deltas else ()
        if not deltas and reader.has_output:  # which waits for more
            self._heard()
        if (reader.complete and reader.counted) or event.endswith(_LAST_LINES):
            self._end()
        return shown

    def _end(self) -> None:
        """Note that nothing more is needed. The rest is read for a moment, so that the connection can be used again."""
        if not self._done:
            self._done, self._limit, self._waited, self._idle = True, _LAST_READ, 0.0, 0

    def _shown(self, deltas: Sequence[Delta]) -> Sequence[Delta]:
        """Return the deltas without those that the caller does not get, and note that the answer has begun."""
        self._begun, self._idle = True, 0
        self._heard()
        return [shown for delta in deltas for shown in self._choices_of(delta)] if self._greedy else deltas

    def _heard(self) -> None:
        """Note that some of the answer has come."""
        if not self._done:
            self._limit, self._waited = self._timeouts.between_tokens, 0.0

    def _document(self, reader: AnswerReader) -> Flow[None]:
        """Read an answer in one piece, as servers that do not stream give it to a streamed request too."""
        raw = yield from self._whole(MAX_ANSWER)
        values: list[Any] = []
        if not raw.strip():
            raise InvalidInput([Problem((), "is empty", "incomplete")])
        try:
            values = read_values(raw)
            deltas = reader.whole(values)
        except InvalidInput as wrong:
            raise self._said(values, raw) or wrong from None
        finally:
            for value in values:
                self._failed(value, reader)
        self._begun = True
        yield Emit([shown for delta in deltas for shown in self._choices_of(delta)])

    def _said(self, values: Sequence[Any], raw: bytes) -> RetryableError | None:
        """Return the error that the server has in the place of an answer: in an envelope of its own, or on a page."""
        if values:
            return reported(values[0], self._upstream.api_key)
        if not raw.lstrip().startswith(b"<"):
            return None
        return RetryableError(
            BackendError(
                "the upstream server answered with a web page; the url must be the base of its chat completions"
            )
        )

    def _choices_of(self, delta: Delta) -> Sequence[Delta]:
        """Return the delta, and of greedy sampling a copy for each choice: vLLM refuses to make equal choices."""
        if not self._greedy:
            return (delta,)
        usage, count = delta.usage, self._choices
        copies = [attrs.evolve(delta, index=index, usage=None) for index in range(count)]
        if usage is not None:
            total = attrs.evolve(usage, completion_tokens=usage.completion_tokens * count)
            copies[-1] = attrs.evolve(copies[-1], usage=total)
        return copies


def _too_long(most: int) -> RetryableError:
    return RetryableError(BackendError(f"the upstream server's answer is longer than {most} bytes"))


def note(what: str) -> None:
    log.warning("the upstream server's answer %s", what)


def _strict(request: CompletionRequest) -> CompletionRequest:
    """Return the request with `strict` tools if a call is forced: in vLLM, others may have any arguments."""
    if request.tool_choice.mode is not ToolMode.REQUIRED:
        return request
    return attrs.evolve(request, tools=tuple(attrs.evolve(tool, strict=True) for tool in request.tools))
