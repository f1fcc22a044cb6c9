"""Chat completions on both interfaces (specification 4.2, 4.3), whole and streamed."""

from datetime import UTC, datetime, time
from functools import partial

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion
from modelyard.flow import Call, CallerDisconnected, Emit, Flow, OnEmit
from modelyard.formats.chat.plain import ParsedRequest, read_plain
from modelyard.formats.chat.request import ChatRequest, read_request
from modelyard.formats.chat.response import ChatCompletion, completion_json
from modelyard.formats.chat.sse import DONE, event
from modelyard.formats.chat.stream import ChatCompletionChunk, Chunks
from modelyard.http.auth import attribution
from modelyard.http.error_responses import chat_body, error_status, report
from modelyard.http.message import EVENT_STREAM, JSON_HEADER, STREAMED, Header, Response
from modelyard.http.route import Auth, Body, ErrorFormat, Handler, Interface, Route, RouteCall
from modelyard.platform.chat.pipeline import CompletionResult, StreamStarted
from modelyard.protocols import Clock

LONG = 1000
"""Tokens from which an answer with details is written off the event loop."""

JOINED = 2**14
"""Bytes of events that are joined at most, where nothing has to be awaited between them."""


def complete(call: RouteCall, training: bool) -> Flow[Response | None]:
    """Answer a chat; for `training` with the log-probabilities and token ids that it needs."""
    platform, clock = call.platform, call.platform.clock
    booked_on = attribution(call.headers, call.principal)
    parsed = read_plain(call.body, training) or read_request(call.body, "body", details=training)
    completion = platform.chat._pipeline(parsed.request, booked_on, details=training, client=call.client)
    if parsed.request.streamed:
        yield from _streamed(completion, Events(parsed, clock))
        return None
    result = yield from completion
    write = partial(completion_json, result.completion, parsed.with_logprobs, parsed.with_ids)
    long = (parsed.with_logprobs or parsed.with_ids) and result.completion.usage.completion_tokens > LONG
    body = (yield Call(write, threads=call.threads)) if long else write()
    return Response(200, [JSON_HEADER, *_deprecation(result.entry, clock)], body)


def _deprecation(entry: CatalogueEntry, clock: Clock) -> list[Header]:
    """Return the header of RFC 9745 for a model that is past its date."""
    if entry.deprecation_date is None:
        return []
    since = datetime.combine(entry.deprecation_date, time(), UTC)
    return [("deprecation", f"@{int(since.timestamp())}")] if since <= clock.now() else []


# ---- streams -----------------------------------------------------------------------------------------------------


class Events:
    """Makes the events of a stream out of the items of an answer, and joins them until something has to be awaited."""

    def __init__(self, parsed: ParsedRequest, clock: Clock) -> None:
        self._parsed, self._clock, self._id = parsed, clock, ""
        self._chunks: Chunks | None = None
        self._ready: list[bytes] = []
        self._size = 0

    @property
    def opened(self) -> bool:
        """Whether the response has begun, so that a failure can only be reported as an event."""
        return self._chunks is not None

    def on_emit(self, item: object) -> object:
        """Add an item of the answer. Returns what is to be sent now: the response, joined events, or None."""
        if type(item) is list:
            assert self._chunks is not None
            self._add(self._chunks.of_all(item))
        elif isinstance(item, Completion):
            assert self._chunks is not None
            self._add(self._chunks.usage(item.usage) + DONE)
        elif isinstance(item, StreamStarted):
            return self._open(item)
        elif item is not None:
            return item
        return self.take() if self._size >= (1 if item is None else JOINED) else None

    def _open(self, started: StreamStarted) -> Response:
        parsed, self._id = self._parsed, started.id
        self._chunks = Chunks(
            started.id,
            started.created,
            started.model,
            with_usage=parsed.with_usage,
            with_logprobs=parsed.with_logprobs,
            with_ids=parsed.with_ids,
        )
        return Response(200, [EVENT_STREAM, *_deprecation(started.entry, self._clock)], STREAMED)

    def fail(self, failure: Exception) -> None:
        """Add an event that reports a failure; one that is not the caller's fault is logged."""
        status = error_status(failure, ErrorFormat.ERROR)
        if status >= 500:
            report(failure, self._id)
        self._add(event(chat_body(failure, status)))

    def take(self) -> bytes:
        """Return the events that are ready, joined."""
        joined = b"".join(self._ready)
        self._ready, self._size = [], 0
        return joined

    def _add(self, events: bytes) -> None:
        self._ready.append(events)
        self._size += len(events)


def _streamed(completion: Flow[CompletionResult], events: Events) -> Flow[None]:
    """Emit the response when the answer begins, and then its events.

    What fails before the answer begins is raised; what fails later ends the stream with an event that reports it.
    """
    yield OnEmit(events.on_emit)
    try:
        yield from completion
    except CallerDisconnected:
        raise
    except Exception as failure:
        if not events.opened:
            raise
        events.fail(failure)
    yield Emit(events.take())


# ---- routes ------------------------------------------------------------------------------------------------------


def _routes(path: str, interface: Interface, handler: Handler) -> tuple[Route, ...]:
    """Return the route with and without a slash at its end: a redirect would lose bodies and keys."""
    return tuple(
        Route(
            "POST",
            path + end,
            interface,
            Auth.BEARER,
            handler,
            body=Body.CHAT,
            request=ChatRequest,
            response=ChatCompletion,
            events=ChatCompletionChunk,
            summary="Create a chat completion.",
            error_format=ErrorFormat.ERROR,
        )
        for end in ("", "/")
    )


ROUTES: tuple[Route, ...] = (
    *_routes("/inference/v1/chat/completions", Interface.INFERENCE, partial(complete, training=False)),
    *_routes("/v1/chat/completions", Interface.TRAINING, partial(complete, training=True)),
)
