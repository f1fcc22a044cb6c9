"""A response as it is made: the events of a stream, in their order and with their numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import Delta, ToolCallDelta
from modelyard.domain.response import ModelResponse, ResponseStatus, item_id
from modelyard.errors import InvalidInput
from modelyard.formats.chat.response import TokenEntry, logprobs_object
from modelyard.formats.json import dumps, loads
from modelyard.formats.responses.response import (
    AnsweredText,
    Json,
    OutputCall,
    OutputMessage,
    ResponseObject,
    call_item,
    message_item,
    response_object,
    text_part,
)


@attrs.frozen
class ResponseEvent:
    """An event: its type, and its data, in which that and the event's number are repeated."""

    type: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The piece of text that it adds; "" for an event of another type."""
        return str(self.data["delta"]) if self.type == "response.output_text.delta" else ""

    def written(self) -> bytes:
        """Write it as a server-sent event."""
        return b"event: " + self.type.encode("ascii") + b"\ndata: " + dumps(self.data) + b"\n\n"


@attrs.frozen
class ResponseStreamEvent:
    """An event of a response that streams. The others of its members depend on its `type`."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    output_index: int | None = None
    content_index: int | None = None
    item_id: str | None = None
    item: OutputMessage | OutputCall | None = None
    part: AnsweredText | None = None
    delta: str | None = None
    text: str | None = None
    logprobs: tuple[TokenEntry, ...] | None = None
    name: str | None = None
    arguments: str | None = None
    code: str | None = None
    message: str | None = None
    param: str | None = None


@attrs.define
class _Open:
    """An item that is being written: its place in the output, its JSON, and its text so far."""

    place: int
    item: Json
    pieces: list[str] = attrs.field(factory=list)
    logprobs: list[Any] = attrs.field(factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class ResponseEvents:
    """Makes the events of one response out of the deltas of an answer, and its `output` with them.

    A message ends when a call begins, and a call when another item begins and its arguments are complete.
    """

    def __init__(self, begun: ModelResponse, with_logprobs: bool) -> None:
        self._response, self._with_logprobs = begun, with_logprobs
        self._number = 0
        self._message: _Open | None = None
        self._calls: dict[int, _Open] = {}
        self._ended: set[int] = set()
        self.output: list[Json] = []

    def begin(self) -> list[ResponseEvent]:
        """Return the first events of the response."""
        shown = response_object(self._response)
        return [self._event("response.created", response=shown), self._event("response.in_progress", response=shown)]

    def of(self, deltas: Iterable[Delta]) -> list[ResponseEvent]:
        """Return the events of deltas."""
        events: list[ResponseEvent] = []
        for delta in deltas:
            if delta.text or (self._with_logprobs and delta.logprobs and delta.tool_call is None):
                events += self._text(delta)
            if delta.tool_call is not None:
                events += self._call(delta.tool_call)
        return events

    def close(self, incomplete: bool) -> list[ResponseEvent]:
        """Return the events that end the items; of an `incomplete` response the last is incomplete.

        A response without any has an empty message.
        """
        begun = [] if self.output else self._begin_message()
        left = [*([self._message] if self._message else []), *self._calls.values()]
        left.sort(key=lambda one: one.place)
        ends = []
        for one in left:
            ends += self._end(one, "incomplete" if incomplete and one is left[-1] else "completed")
        self._message, self._calls = None, {}
        return [*begun, *ends]

    def so_far(self) -> tuple[Json, ...]:
        """Return the items as they are now, those that are being written with their text so far."""
        items = list(self.output)
        for one in (*([self._message] if self._message else []), *self._calls.values()):
            if one.item["type"] == "message":
                items[one.place] = message_item(one.item["id"], one.text, [], "in_progress")
            else:
                items[one.place] = {**one.item, "arguments": one.text}
        return tuple(items)

    def end(self, response: ModelResponse) -> ResponseEvent:
        """Return the last event, of a response that has ended."""
        status = ResponseStatus.FAILED if response.status is ResponseStatus.CANCELLED else response.status
        return self._event(f"response.{status}", response=response_object(response))

    def error(self, code: str | None, message: str, param: str | None) -> ResponseEvent:
        """Return the event of an error."""
        return self._event("error", code=code, message=message, param=param)

    # ---- items

    def _text(self, delta: Delta) -> list[ResponseEvent]:
        events = [] if self._message is not None else self._begin_message()
        message = self._message
        assert message is not None
        logprobs = logprobs_object(delta.logprobs)["content"] if self._with_logprobs else []
        message.pieces.append(delta.text)
        message.logprobs += logprobs
        if delta.text:
            part = {"item_id": message.item["id"], "output_index": message.place, "content_index": 0}
            events.append(self._event("response.output_text.delta", **part, delta=delta.text, logprobs=logprobs))
        return events

    def _begin_message(self) -> list[ResponseEvent]:
        events = self._end_complete_calls()
        place = len(self.output)
        item = message_item(item_id("msg", self._response.id, place), "", [], "in_progress")
        self._message = _Open(place, item)
        self.output.append(item)
        part = {"item_id": item["id"], "output_index": place, "content_index": 0, "part": text_part("", [])}
        return [
            *events,
            self._event("response.output_item.added", output_index=place, item={**item, "content": []}),
            self._event("response.content_part.added", **part),
        ]

    def _call(self, piece: ToolCallDelta) -> list[ResponseEvent]:
        if piece.index in self._ended:
            return []  # nothing but white space can follow complete arguments
        call = self._calls.get(piece.index)
        events = [] if call is not None else self._begin_call(piece)
        call = self._calls[piece.index]
        if piece.arguments:
            call.pieces.append(piece.arguments)
            part = {"item_id": call.item["id"], "output_index": call.place}
            events.append(self._event("response.function_call_arguments.delta", **part, delta=piece.arguments))
        return events

    def _begin_call(self, piece: ToolCallDelta) -> list[ResponseEvent]:
        events = self._end_complete_calls()
        if self._message is not None:
            events += self._end(self._message, "completed")
            self._message = None
        place = len(self.output)
        item = call_item(item_id("fc", self._response.id, place), piece.id or "", piece.name or "", "", "in_progress")
        self._calls[piece.index] = _Open(place, item)
        self.output.append(item)
        return [*events, self._event("response.output_item.added", output_index=place, item=item)]

    def _end_complete_calls(self) -> list[ResponseEvent]:
        events = []
        for index in [index for index, call in self._calls.items() if _is_complete(call.text)]:
            events += self._end(self._calls.pop(index), "completed")
            self._ended.add(index)
        return events

    def _end(self, one: _Open, status: str) -> list[ResponseEvent]:
        text, at = one.text, {"item_id": one.item["id"], "output_index": one.place}
        if one.item["type"] == "message":
            item = message_item(one.item["id"], text, one.logprobs, status)
            part = {**at, "content_index": 0}
            events = [
                self._event("response.output_text.done", **part, text=text, logprobs=one.logprobs),
                self._event("response.content_part.done", **part, part=item["content"][0]),
            ]
        else:
            item = {**one.item, "arguments": text, "status": status}
            call = {"name": one.item["name"], "arguments": text}
            events = [self._event("response.function_call_arguments.done", **at, **call)]
        self.output[one.place] = item
        return [*events, self._event("response.output_item.done", output_index=one.place, item=item)]

    def _event(self, type_: str, **data: Any) -> ResponseEvent:
        event = ResponseEvent(type_, {"type": type_, "sequence_number": self._number, **data})
        self._number += 1
        return event


def _is_complete(arguments: str) -> bool:
    """Return whether the arguments of a call are a whole JSON value."""
    try:
        loads(arguments.encode())
    except (InvalidInput, UnicodeEncodeError):
        return False
    return True
