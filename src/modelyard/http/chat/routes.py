"""Chat completions on both interfaces (specification 4.2, 4.3), whole and streamed."""

from datetime import UTC, datetime, time
from functools import partial

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion, Delta
from modelyard.flow import CallerDisconnected, Effect, Emit, Flow
from modelyard.formats.chat.request import ChatRequest, ParsedRequest, read_request
from modelyard.formats.chat.response import ChatCompletion, completion_json
from modelyard.formats.chat.sse import DONE, event
from modelyard.formats.chat.stream import ChatCompletionChunk, Chunks
from modelyard.http.auth import attribution
from modelyard.http.error_responses import chat_body, error_status, report
from modelyard.http.message import EVENT_STREAM, JSON_HEADER, STREAMED, Header, Response
from modelyard.http.route import Auth, Body, Call, ErrorFormat, Handler, Interface, Route
from modelyard.platform.chat.pipeline import CompletionResult, StreamStarted
from modelyard.protocols import Clock

JOINED = 2**14
"""Bytes of events that are joined at most, where nothing has to be waited for between them."""


def complete(call: Call, training: bool) -> Flow[Response | None]:
    """CompletionResult a chat; for `training` with the log-probabilities and token ids that it needs."""
    platform, clock = call.platform, call.platform.clock
    booked = attribution(call.headers, call.principal)
    asked = read_request(call.body, "body", strict=platform.settings.strict_parameters, details=training)
    answering = platform.chat._pipeline(asked.request, booked, details=training)
    if asked.request.streamed:
        yield from _streamed(answering, Events(asked, clock))
        return None
    answer = yield from answering
    body = completion_json(answer.completion, asked.with_logprobs, asked.with_ids)
    return Response(200, [JSON_HEADER, *_deprecation(answer.entry, clock)], body)


def _deprecation(entry: CatalogueEntry, clock: Clock) -> list[Header]:
    """The header of RFC 9745 for a model that is past its date."""
    if entry.deprecation_date is None:
        return []
    since = datetime.combine(entry.deprecation_date, time(), UTC)
    return [("deprecation", f"@{int(since.timestamp())}")] if since <= clock.now() else []


# ---- streams -----------------------------------------------------------------------------------------------------


class Events:
    """The events of a stream that are ready to be sent."""

    def __init__(self, asked: ParsedRequest, clock: Clock) -> None:
        self._asked, self._clock, self._id = asked, clock, ""
        self._chunks: Chunks | None = None
        self._ready: list[bytes] = []
        self.size = 0

    @property
    def opened(self) -> bool:
        """Whether the answer has begun, so that a failure can only be told as an event."""
        return self._chunks is not None

    def resume(self, item: StreamStarted | Delta | Completion) -> Response | None:
        """Make ready what an item of the answer says. Returns the response when the answer opens."""
        if isinstance(item, StreamStarted):
            return self._open(item)
        assert self._chunks is not None
        self._add(self._chunks.of(item) if isinstance(item, Delta) else self._chunks.usage(item.usage) + DONE)
        return None

    def _open(self, opening: StreamStarted) -> Response:
        asked, self._id = self._asked, opening.id
        self._chunks = Chunks(
            opening.id,
            opening.created,
            opening.model,
            with_usage=asked.with_usage,
            with_logprobs=asked.with_logprobs,
            with_ids=asked.with_ids,
        )
        return Response(200, [EVENT_STREAM, *_deprecation(opening.entry, self._clock)], STREAMED)

    def fail(self, failure: Exception) -> None:
        """Make ready what went wrong; what is no fault of the caller is logged."""
        kind = error_status(failure, ErrorFormat.ERROR)
        if kind.status >= 500:
            report(failure, self._id)
        self._add(event(chat_body(failure, kind)))

    def take(self) -> bytes:
        """What is ready, joined."""
        joined = b"".join(self._ready)
        self._ready, self.size = [], 0
        return joined

    def _add(self, events: bytes) -> None:
        self._ready.append(events)
        self.size += len(events)


def _streamed(answering: Flow[CompletionResult], events: Events) -> Flow[None]:
    """Emit the response when the answer begins, and then its events, joined until something has to be waited for.

    What fails before the answer begins is raised; what fails later ends the stream with an event that says so.
    """
    answer: object = None
    error: Exception | None = None
    while True:
        try:
            effect = answering.send(answer) if error is None else answering.throw(error)
            effect = _told(effect, answering, events)
        except StopIteration:
            break
        except CallerDisconnected:
            raise
        except Exception as failure:
            if not events.opened:
                raise
            events.fail(failure)
            break
        try:
            if events.size and effect.waits:
                yield Emit(events.take())
            answer, error = (yield effect), None
        except Exception as raised:  # noqa: BLE001 - a stream that has begun can only tell in its own words
            error = raised
    yield Emit(events.take())


def _told(effect: Effect, answering: Flow[CompletionResult], events: Events) -> Effect:
    """The first effect of the answer to be passed on. What it emits before is made ready; the response, and events when
    they are many, are emitted in its place.
    """
    while type(effect) is Emit:
        try:
            response = events.resume(effect.item)
        except Exception as error:  # noqa: BLE001 - the answer must hear of it, to book what was said
            effect = answering.throw(error)
            continue
        if response is not None or events.size >= JOINED:
            return Emit(response or events.take())
        effect = answering.send(None)
    return effect


# ---- routes ------------------------------------------------------------------------------------------------------


def _routes(path: str, interface: Interface, handler: Handler) -> tuple[Route, ...]:
    """With and without a slash at the end: a redirect would lose bodies and keys."""
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
