"""Responses on both bases: created, whole, streamed or in the background; shown, deleted, cancelled; their input."""

from collections.abc import Iterable
from functools import partial

import attrs

from modelyard.domain.completion import Usage
from modelyard.errors import InvalidInput
from modelyard.flow import Flow
from modelyard.http.answer_stream import AnswerEvents, stream_answer
from modelyard.http.auth import attribution
from modelyard.http.error_responses import chat_body
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.message import Response, deprecation, json_response
from modelyard.http.route import Body, Route, RouteCall
from modelyard.parts.responses.following import followed
from modelyard.parts.responses.formats.replay import MOST_EVENTS
from modelyard.parts.responses.formats.request import (
    CountedResponse,
    ResponseRequest,
    read_counted_response,
    read_response_request,
)
from modelyard.parts.responses.formats.response import CountedInput, DeletedResponse, ResponseObject, response_object
from modelyard.parts.responses.formats.stream import ResponseEvent, ResponseStreamEvent
from modelyard.parts.responses.interface import RESPONSES
from modelyard.parts.responses.pipeline import placed
from modelyard.parts.responses.schemas import AFTER, INCLUDE, PAGING, STREAM, ResponseItemPage, item_page


def create_response(call: RouteCall) -> Flow[Response | None]:
    """Create a response; with `background` it is queued, and a worker answers it."""
    place = attribution(call.headers, call.principal)
    parsed = read_response_request(call.body, "body")
    responses = call.platform.compat.responses
    if parsed.background:
        queued = yield from responses._queue(parsed, place, idempotency_key(call), call.client)
        if parsed.request.streamed:
            yield from followed(call, queued.id, -1)
            return None
        return json_response(response_object(queued))
    pipeline = yield from responses._pipeline(parsed, place, call.client)
    clock = call.platform.clock
    if not parsed.request.streamed:
        result = yield from pipeline.flow()
        return json_response(response_object(pipeline.response), 200, deprecation(result.entry, clock))
    written = _Written()

    def failed(failure: Exception, status: int) -> bytes:
        return written.of_all(pipeline.failed(chat_body(failure, status)["error"]))

    yield from stream_answer(pipeline.flow(), AnswerEvents(lambda _: written, clock, failed))
    return None


def count_input_tokens(call: RouteCall) -> Flow[Response | None]:
    """Count the tokens of an input, with the conversation before it, without answering it."""
    place = attribution(call.headers, call.principal)
    parsed = read_counted_response(call.body, "body")
    messages = yield from call.platform.compat.responses._conversation(parsed)
    try:
        tokens = yield from call.platform.chat._count(attrs.evolve(parsed.request, messages=messages), place)
    except InvalidInput as wrong:
        raise placed(wrong) from None
    return json_response(CountedInput(tokens, "response.input_tokens"))


class _Written:
    """Writes the events that a response emits, its last ones too."""

    def of_all(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join([event.written() for event in events])

    def end(self, _: Usage) -> bytes:
        """Write nothing: the usage is in the last event."""
        return b""


# ---- those that are stored ---------------------------------------------------------------------------------------


def show_response(call: RouteCall) -> Flow[Response | None]:
    """Show a response that is stored; as a stream of its events, if it was requested in the background."""
    response_id, stream = call.params["response_id"], call.one("stream")
    if stream not in (None, "true", "false"):
        raise InvalidInput.at("query", "stream", msg="must be true or false", type="literal_error")
    if stream == "true":
        yield from followed(call, response_id, call.integer("starting_after", -1, -1, MOST_EVENTS))
        return None
    responses = call.platform.compat.responses
    return json_response(response_object((yield responses._call(partial(responses.get, response_id)))))


def delete_response(call: RouteCall) -> Response:
    """Delete a response that is stored."""
    response_id = call.params["response_id"]
    call.platform.compat.responses.delete(response_id)
    return json_response(DeletedResponse(response_id, "response", True))


def cancel_response(call: RouteCall) -> Response:
    """Cancel a response that is answered in the background."""
    return json_response(response_object(call.platform.compat.responses.cancel(call.params["response_id"])))


def list_response_items(call: RouteCall) -> Response:
    """List the items of a response's input, the last first unless another order is requested."""
    return json_response(item_page(call, call.platform.compat.responses.input_items(call.params["response_id"])))


def _routes(base: str) -> tuple[Route, ...]:
    route = partial(Route, interface=RESPONSES, auth=Auth.BEARER)
    one = f"{base}/responses/{{response_id}}"
    creating = partial(
        route,
        "POST",
        handler=create_response,
        body=Body.CHAT,
        request=ResponseRequest,
        response=ResponseObject,
        events=ResponseStreamEvent,
        headers=(IDEMPOTENCY_KEY,),
        summary="Create a response.",
    )
    described = partial(route, response=ResponseObject)
    return (
        creating(path=f"{base}/responses"),
        creating(path=f"{base}/responses/"),
        route(
            "POST",
            f"{base}/responses/input_tokens",
            handler=count_input_tokens,
            body=Body.CHAT,
            request=CountedResponse,
            response=CountedInput,
            summary="Count the tokens of an input.",
        ),
        described(
            "GET",
            one,
            handler=show_response,
            events=ResponseStreamEvent,
            query=(STREAM, AFTER, INCLUDE),
            summary="Show a response that is stored, or stream one that is answered in the background.",
        ),
        route(
            "DELETE",
            one,
            handler=delete_response,
            response=DeletedResponse,
            summary="Delete a response that is stored.",
        ),
        described(
            "POST",
            f"{one}/cancel",
            handler=cancel_response,
            summary="Cancel a response that is answered in the background.",
        ),
        route(
            "GET",
            f"{one}/input_items",
            handler=list_response_items,
            response=ResponseItemPage,
            query=(*PAGING, INCLUDE),
            summary="List the items of a response's input.",
        ),
    )


ROUTES: tuple[Route, ...] = (*_routes("/v1"), *_routes("/inference/v1"))
