"""Answers in the messages format: a translation of the shapes of requests and answers, over the same completions."""

from modelyard.domain.completion import Completion
from modelyard.flow import CallerDisconnected, Emit, Flow, OnEmit
from modelyard.formats.messages.answer import (
    AnsweredMessages,
    CountedTokens,
    MessagesEvent,
    MessagesEvents,
    messages_json,
    named_event,
)
from modelyard.formats.messages.request import CountedMessages, MessagesBody, read_counted, read_messages_request
from modelyard.http.auth import attribution
from modelyard.http.error_responses import error_status, messages_body, report
from modelyard.http.message import EVENT_STREAM, JSON_HEADER, STREAMED, Response, json_response
from modelyard.http.route import Auth, Body, ErrorFormat, Interface, Route, RouteCall
from modelyard.platform.chat.backend_stream import CompletionResult, StreamStarted

JOINED = 2**14
"""Bytes of events that are joined at most, where nothing has to be awaited between them."""


def create(call: RouteCall) -> Flow[Response | None]:
    """Answer a conversation."""
    booked_on = attribution(call.headers, call.principal)
    request = read_messages_request(call.body, "body")
    completion = call.platform.chat._pipeline(request, booked_on, client=call.client)
    if request.streamed:
        yield from _streamed(completion, StreamedMessages())
        return None
    result = yield from completion
    return Response(200, [JSON_HEADER], messages_json(result.completion))


def count(call: RouteCall) -> Flow[Response | None]:
    """Count the tokens of a conversation, without answering it."""
    booked_on = attribution(call.headers, call.principal)
    tokens = yield from call.platform.chat._count(read_counted(call.body, "body"), booked_on)
    return json_response(CountedTokens(tokens))


class StreamedMessages:
    """Makes events out of the items of an answer, and joins them until something has to be awaited."""

    def __init__(self) -> None:
        self._events, self._id, self.opened = MessagesEvents(), "", False
        self._ready: list[bytes] = []
        self._size = 0

    def on_emit(self, item: object) -> object:
        """Add an item of the answer. Returns what is to be sent now: the response, joined events, or None."""
        if type(item) is list:
            self._add(self._events.of_all(item))
        elif isinstance(item, Completion):
            self._add(self._events.end(item))
        elif isinstance(item, StreamStarted):
            self._id, self.opened = item.id, True
            self._add(self._events.start(item.id, item.model))
            return Response(200, [EVENT_STREAM], STREAMED)
        elif item is not None:
            return item
        return self.take() if self._size >= (1 if item is None else JOINED) else None

    def fail(self, failure: Exception) -> None:
        """Add an event that reports a failure; one that is not the caller's fault is logged."""
        status = error_status(failure, ErrorFormat.MESSAGES)
        if status >= 500:
            report(failure, self._id)
        self._add(named_event(messages_body(failure, status)))

    def take(self) -> bytes:
        """Return the events that are ready, joined."""
        joined = b"".join(self._ready)
        self._ready, self._size = [], 0
        return joined

    def _add(self, events: bytes) -> None:
        self._ready.append(events)
        self._size += len(events)


def _streamed(completion: Flow[CompletionResult], events: StreamedMessages) -> Flow[None]:
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


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/messages",
        Interface.MESSAGES,
        Auth.API_KEY,
        create,
        body=Body.CHAT,
        request=MessagesBody,
        response=AnsweredMessages,
        events=MessagesEvent,
        summary="Answer a conversation in the messages format.",
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        Interface.MESSAGES,
        Auth.API_KEY,
        count,
        body=Body.CHAT,
        request=CountedMessages,
        response=CountedTokens,
        summary="Count the tokens of a conversation.",
    ),
)
