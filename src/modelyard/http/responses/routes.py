"""Responses on both bases: created, whole, streamed or in the background; shown, deleted, cancelled; their input."""

from functools import partial

from modelyard.errors import InvalidInput
from modelyard.flow import CallerDisconnected, Emit, Flow, OnEmit
from modelyard.formats.responses.request import ResponseRequest, read_response_request
from modelyard.formats.responses.response import DeletedResponse, ResponseObject, response_object
from modelyard.formats.responses.stream import ResponseEvent, ResponseStreamEvent
from modelyard.http.auth import attribution
from modelyard.http.error_responses import chat_body, error_status, report
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.message import EVENT_STREAM, STREAMED, Response, json_response
from modelyard.http.responses.schemas import INCLUDE, PAGING, STREAM, ResponseItemPage, item_page
from modelyard.http.route import Auth, Body, ErrorFormat, Interface, Route, RouteCall
from modelyard.platform.chat.backend_stream import CompletionResult, StreamStarted
from modelyard.platform.responses.pipeline import ResponsePipeline

JOINED = 2**14
"""Bytes of events that are joined at most, where nothing has to be awaited between them."""


def create(call: RouteCall) -> Flow[Response | None]:
    """Create a response; with `background` it is queued, and a worker answers it."""
    place = attribution(call.headers, call.principal)
    parsed = read_response_request(call.body, "body")
    responses = call.platform.responses
    if parsed.background:
        queued = yield from responses._queue(parsed, place, idempotency_key(call))
        return json_response(response_object(queued))
    pipeline = yield from responses._pipeline(parsed, place, call.client)
    if not parsed.request.streamed:
        yield from pipeline.flow()
        return json_response(response_object(pipeline.response))
    yield from _streamed(pipeline)
    return None


class _Events:
    """Joins the events of a response until something has to be awaited."""

    def __init__(self) -> None:
        self.opened = False
        self._ready: list[bytes] = []
        self._size = 0

    def on_emit(self, item: object) -> object:
        """Add an item of the answer. Returns what is to be sent now: the response, joined events, or None."""
        if type(item) is list:
            self.add(item)
        elif isinstance(item, StreamStarted):
            self.opened = True
            return Response(200, [EVENT_STREAM], STREAMED)
        elif isinstance(item, bytes):
            return item
        return self.take() if self._size >= (1 if item is None else JOINED) else None

    def add(self, events: list[ResponseEvent]) -> None:
        """Add events."""
        for event in events:
            self._ready.append(event.written())
            self._size += len(self._ready[-1])

    def take(self) -> bytes:
        """Return the events that are ready, joined."""
        joined = b"".join(self._ready)
        self._ready, self._size = [], 0
        return joined


def _streamed(pipeline: ResponsePipeline) -> Flow[None]:
    """Emit the response when the answer begins, and then its events.

    What fails before the answer begins is raised; what fails later ends the stream with events that report it.
    """
    events = _Events()
    yield OnEmit(events.on_emit)
    try:
        yield from _answered(pipeline)
    except CallerDisconnected:
        raise
    except Exception as failure:
        if not events.opened:
            raise
        status = error_status(failure, ErrorFormat.ERROR)
        if status >= 500:
            report(failure, pipeline.response.id)
        events.add(pipeline.failed(chat_body(failure, status)["error"]))
    yield Emit(events.take())


def _answered(pipeline: ResponsePipeline) -> Flow[CompletionResult]:
    return (yield from pipeline.flow())


# ---- those that are stored ---------------------------------------------------------------------------------------


def show(call: RouteCall) -> Response:
    """Show a response that is stored."""
    if call.one("stream") not in (None, "false"):
        raise InvalidInput.at("query", "stream", msg="is not supported: ask for the response until it has ended")
    return json_response(response_object(call.platform.responses.get(call.params["response_id"])))


def delete(call: RouteCall) -> Response:
    """Delete a response that is stored."""
    response_id = call.params["response_id"]
    call.platform.responses.delete(response_id)
    return json_response(DeletedResponse(response_id, "response", True))


def cancel(call: RouteCall) -> Response:
    """Cancel a response that is answered in the background."""
    return json_response(response_object(call.platform.responses.cancel(call.params["response_id"])))


def list_input(call: RouteCall) -> Response:
    """List the items of a response's input, the last first unless another order is requested."""
    return json_response(item_page(call, call.platform.responses.input_items(call.params["response_id"])))


def _routes(base: str) -> tuple[Route, ...]:
    route = partial(Route, interface=Interface.RESPONSES, auth=Auth.BEARER)
    one = f"{base}/responses/{{response_id}}"
    creating = partial(
        route,
        "POST",
        handler=create,
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
        described("GET", one, handler=show, query=(STREAM, INCLUDE), summary="Show a response that is stored."),
        route("DELETE", one, handler=delete, response=DeletedResponse, summary="Delete a response that is stored."),
        described(
            "POST", f"{one}/cancel", handler=cancel, summary="Cancel a response that is answered in the background."
        ),
        route(
            "GET",
            f"{one}/input_items",
            handler=list_input,
            response=ResponseItemPage,
            query=(*PAGING, INCLUDE),
            summary="List the items of a response's input.",
        ),
    )


ROUTES: tuple[Route, ...] = (*_routes("/v1"), *_routes("/inference/v1"))
