"""An answer of a model as the events of a response, whichever format it has."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from modelyard.domain.completion import Completion, Usage
from modelyard.flow import CallerDisconnected, Emit, Flow, OnEmit
from modelyard.formats.chat.stream import event
from modelyard.http.error_responses import ERROR, chat_body, error_status, report
from modelyard.http.message import EVENT_STREAM, STREAMED, Response, deprecation
from modelyard.platform.chat.backend_stream import StreamStarted
from modelyard.protocols import Clock

JOINED = 2**14
"""Most bytes of events that are joined while nothing has to be awaited between them."""


class EventWriter(Protocol):
    def of_all(self, items: Iterable[Any]) -> bytes: ...

    def end(self, usage: Usage) -> bytes: ...


def _chat_failure(failure: Exception, status: int) -> bytes:
    return event(chat_body(failure, status))


class AnswerEvents:
    """Makes the events of a stream out of the items of an answer, and joins them until something has to be awaited.
    `begin` returns the writer of an answer that begins: one for each, or the same for answers that follow each other.
    `fail` writes the events that report a failure with a status, in another format than that of chats."""

    def __init__(
        self,
        begin: Callable[[StreamStarted], EventWriter],
        clock: Clock,
        fail: Callable[[Exception, int], bytes] = _chat_failure,
    ) -> None:
        self._begin, self._clock, self._write_failure, self._id = begin, clock, fail, ""
        self._writer: EventWriter | None = None
        self._ready: list[bytes] = []
        self._size = 0

    @property
    def opened(self) -> bool:
        """Whether the response has begun, so that a failure can only be reported as an event."""
        return self._writer is not None

    def on_emit(self, item: object) -> object:
        if type(item) is list:
            assert self._writer is not None
            self._add(self._writer.of_all(item))
        elif isinstance(item, Completion):
            assert self._writer is not None
            self._add(self._writer.end(item.usage))
        elif isinstance(item, StreamStarted):
            return self._open(item)
        elif item is not None:
            return item
        return self.take() if self._size >= (1 if item is None else JOINED) else None

    def _open(self, started: StreamStarted) -> Response | None:
        begun, self._id = self.opened, started.id
        self._writer = self._begin(started)
        return None if begun else Response(200, [EVENT_STREAM, *deprecation(started.entry, self._clock)], STREAMED)

    def fail(self, failure: Exception) -> None:
        """Add an event that reports a failure; one that is not the caller's fault is logged."""
        status = error_status(failure, ERROR)
        if status >= 500:
            report(failure, self._id)
        self._add(self._write_failure(failure, status))

    def take(self) -> bytes:
        joined = b"".join(self._ready)
        self._ready, self._size = [], 0
        return joined

    def _add(self, events: bytes) -> None:
        self._ready.append(events)
        self._size += len(events)


def stream_answer(answer: Flow[object], events: AnswerEvents) -> Flow[None]:
    """Emit the response when the answer begins, and then its events. A failure before the answer begins is raised; a
    later one ends the stream with an event that reports it."""
    yield OnEmit(events.on_emit)
    try:
        yield from answer
    except CallerDisconnected:
        raise
    except Exception as failure:
        if not events.opened:
            raise
        events.fail(failure)
    yield Emit(events.take())
