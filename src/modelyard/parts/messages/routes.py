"""Answers in the messages format: a translation of the shapes of requests and answers, over the same completions."""

from collections.abc import Mapping
from typing import Any, TypeVar

from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.http.answer_stream import AnswerEvents, stream_answer
from modelyard.http.auth import attribution
from modelyard.http.interface import Auth
from modelyard.http.message import JSON_HEADER, Response, deprecation, json_response
from modelyard.http.route import Body, Route, RouteCall
from modelyard.parts.messages.errors import messages_body
from modelyard.parts.messages.formats.answer import (
    AnsweredMessages,
    CountedTokens,
    MessagesEvent,
    MessagesEvents,
    messages_json,
    named_event,
)
from modelyard.parts.messages.formats.request import CountedMessages, MessagesBody, read_counted, read_messages_request
from modelyard.parts.messages.interface import MESSAGES
from modelyard.parts.places import moved
from modelyard.platform.chat.backend_stream import StreamStarted

T = TypeVar("T")


def create_message(call: RouteCall) -> Flow[Response | None]:
    """Answer a conversation."""
    booked_on, clock = attribution(call.headers, call.principal), call.platform.clock
    request = read_messages_request(call.body, "body", strict=call.platform.settings.strict_conversations)
    completion = _placed(call.platform.chat._pipeline(request, booked_on, client=call.client), call.body)
    if request.streamed:
        yield from stream_answer(completion, AnswerEvents(_begin, clock, _failure))
        return None
    result = yield from completion
    return Response(200, [JSON_HEADER, *deprecation(result.entry, clock)], messages_json(result.completion))


def count_message_tokens(call: RouteCall) -> Flow[Response | None]:
    """Count the tokens of a conversation, without answering it."""
    booked_on = attribution(call.headers, call.principal)
    request = read_counted(call.body, "body", strict=call.platform.settings.strict_conversations)
    tokens = yield from _placed(call.platform.chat._count(request, booked_on), call.body)
    return json_response(CountedTokens(tokens))


def _placed(completion: Flow[T], body: Mapping[str, Any]) -> Flow[T]:
    """Locate what is refused where this format has it; turns have other numbers than the messages that they make."""
    try:
        return (yield from completion)
    except InvalidInput as wrong:
        chosen = (body.get("output_config") or {}).get("effort")
        effort = "thinking" if chosen is None else "output_config.effort"
        form = "output_config.format" if body.get("output_format") is None else "output_format"
        places = {"reasoning_effort": effort, "response_format": form, "response_format.json_schema": form}
        raise moved(wrong, {**_PLACES, **places}) from None


_PLACES: Mapping[str, str] = {
    "messages": "messages...",
    "tool_choice.function": "tool_choice",
    "tools.*.function": "tools.*",
    "tools.*.function.parameters": "tools.*.input_schema",
}
"""Where the members of a chat's request are in this format."""


def _begin(started: StreamStarted) -> MessagesEvents:
    return MessagesEvents(started.id, started.model)


def _failure(failure: Exception, status: int) -> bytes:
    return named_event(messages_body(failure, status))


ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/messages",
        MESSAGES,
        Auth.API_KEY,
        create_message,
        body=Body.CHAT,
        request=MessagesBody,
        response=AnsweredMessages,
        events=MessagesEvent,
        summary="Answer a conversation in the messages format.",
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        MESSAGES,
        Auth.API_KEY,
        count_message_tokens,
        body=Body.CHAT,
        request=CountedMessages,
        response=CountedTokens,
        summary="Count the tokens of a conversation.",
    ),
)
