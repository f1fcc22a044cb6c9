"""Chat completions on both interfaces (specification 4.2, 4.3), whole and streamed."""

from datetime import UTC, datetime, time
from functools import partial

from modelyard.domain.catalogue import CatalogueEntry
from modelyard.domain.completion import Completion, Delta
from modelyard.http.auth import attribution
from modelyard.http.failures import chat_body, kind_of, report
from modelyard.http.message import FOLLOWING, Header, Response, json_response
from modelyard.http.route import Auth, Body, Call, Dialect, Handler, Interface, Route
from modelyard.protocols import Clock
from modelyard.service.answering import Answer, Opening
from modelyard.service.flow import Abandoned, Effect, Emit, Flow, Pull, Transact
from modelyard.wire.answer import DONE, ChatCompletion, ChatCompletionChunk, Chunks, completion_body, event
from modelyard.wire.completion import Asked, ChatRequest, read_chat_request

JOINED = 2**14
"""Bytes of events that are joined at most, where nothing has to be waited for between them."""

EVENT_STREAM: Header = ("content-type", "text/event-stream; charset=utf-8")


def complete(call: Call, training: bool) -> Flow[Response | None]:
    """Answer a chat; for `training` with the log-probabilities and token ids that it needs."""
    platform, clock = call.platform, call.platform.ports.clock
    booked = attribution(call.headers, platform.principal)
    asked = read_chat_request(call.body, platform.ports.settings.strict_parameters, training)
    answering = platform.chat.flow(asked.request, booked, details=training)
    if asked.request.streamed:
        yield from _streamed(answering, Events(asked), clock)
        return None
    answer = yield from answering
    body = completion_body(answer.completion, asked.with_logprobs, asked.with_ids)
    return json_response(body, headers=_deprecation(answer.entry, clock))


def _deprecation(entry: CatalogueEntry, clock: Clock) -> list[Header]:
    """The header of RFC 9745 for a model that is past its date."""
    if entry.deprecation_date is None:
        return []
    since = datetime.combine(entry.deprecation_date, time(), UTC)
    return [("deprecation", f"@{int(since.timestamp())}")] if since <= clock.now() else []


# ---- streams -----------------------------------------------------------------------------------------------------


class Events:
    """The events of a stream that are ready to be sent."""

    def __init__(self, asked: Asked) -> None:
        self._asked, self._id = asked, ""
        self._chunks: Chunks | None = None
        self._ready: list[bytes] = []
        self.size = 0

    @property
    def opened(self) -> bool:
        """Whether the answer has begun, so that a failure can only be told as an event."""
        return self._chunks is not None

    def hear(self, item: Opening | Delta | Completion) -> None:
        """Make ready what an item of the answer says."""
        if isinstance(item, Opening):
            asked, self._id = self._asked, item.id
            self._chunks = Chunks(
                item.id,
                item.created,
                item.model,
                with_usage=asked.with_usage,
                with_logprobs=asked.with_logprobs,
                with_ids=asked.with_ids,
            )
            return
        assert self._chunks is not None
        self._add(self._chunks.of(item) if isinstance(item, Delta) else self._chunks.usage(item.usage) + DONE)

    def fail(self, failure: Exception) -> None:
        """Make ready what went wrong; what is no fault of the caller is logged."""
        kind = kind_of(failure, Dialect.ERROR)
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


def _streamed(answering: Flow[Answer], events: Events, clock: Clock) -> Flow[None]:
    """Emit the response when the answer begins, and then its events, joined until something has to be waited for.

    What fails before the answer begins is raised; what fails later ends the stream with an event that says so.
    """
    answer: object = None
    error: Exception | None = None
    while True:
        try:
            effect = answering.send(answer) if error is None else answering.throw(error)
        except StopIteration:
            break
        except Abandoned:
            raise
        except Exception as failure:
            if not events.opened:
                raise
            events.fail(failure)
            break
        try:
            answer, error = (yield from _passed_on(effect, events, clock)), None
        except Exception as raised:  # noqa: BLE001 - a stream that has begun can only tell in its own words
            error = raised
    yield Emit(events.take())


def _passed_on(effect: Effect, events: Events, clock: Clock) -> Flow[object]:
    """What came of one effect; an item becomes events, which are sent when they are many."""
    if type(effect) is not Emit:
        if events.size and waits(effect):
            yield Emit(events.take())
        return (yield effect)
    events.hear(effect.item)
    if type(effect.item) is Opening:
        headers = [EVENT_STREAM, *_deprecation(effect.item.entry, clock)]
        yield Emit(Response(200, headers, FOLLOWING))
    elif events.size >= JOINED:
        yield Emit(events.take())
    return None


def waits(effect: Effect) -> bool:
    """Whether an effect may take time, so that what is ready should not wait for it."""
    if isinstance(effect, Pull):
        return effect.source.blocking or effect.source.adeltas is not None
    return isinstance(effect, Transact) and effect.store.blocking


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
            dialect=Dialect.ERROR,
        )
        for end in ("", "/")
    )


ROUTES: tuple[Route, ...] = (
    *_routes("/inference/v1/chat/completions", Interface.INFERENCE, partial(complete, training=False)),
    *_routes("/v1/chat/completions", Interface.TRAINING, partial(complete, training=True)),
)
