"""The events of a response in the background, as the body of an answer."""

from modelyard.flow import CallerDisconnected, Emit, Flow, OnEmit
from modelyard.http.error_responses import ERROR, chat_body, error_status, report
from modelyard.http.message import EVENT_STREAM, STREAMED, Response
from modelyard.http.route import RouteCall
from modelyard.parts.responses.formats.replay import MOST_EVENTS
from modelyard.parts.responses.formats.stream import ResponseEvent


def followed(call: RouteCall, response_id: str, after: int) -> Flow[None]:
    """Emit the events that are numbered above `after`, as they come. A client that leaves does not cancel the response.

    An error before the first event is raised; a later error ends the stream with an event that reports it.
    """
    body = _Body()
    yield OnEmit(body.on_emit)
    try:
        yield from call.platform.compat.responses._followed(response_id, after)
    except CallerDisconnected:
        raise
    except Exception as failure:
        if not body.opened:
            raise
        body.fail(failure, response_id)
    yield Emit(body.take())


class _Body:
    """Joins events until the next is waited for. The first are preceded by the response."""

    def __init__(self) -> None:
        self.opened = False
        self._ready: list[bytes] = []

    def on_emit(self, item: object) -> object:
        if isinstance(item, list):
            self._ready += [event.written() for event in item]
            begun, self.opened = self.opened, True
            return None if begun else Response(200, [EVENT_STREAM], STREAMED)
        return item if item is not None else self.take() or None

    def fail(self, failure: Exception, response_id: str) -> None:
        status = error_status(failure, ERROR)
        if status >= 500:
            report(failure, response_id)
        error = chat_body(failure, status)["error"]
        told = {name: error[name] for name in ("code", "message", "param")}
        self._ready.append(ResponseEvent("error", {"type": "error", "sequence_number": MOST_EVENTS, **told}).written())

    def take(self) -> bytes:
        joined, self._ready = b"".join(self._ready), []
        return joined
