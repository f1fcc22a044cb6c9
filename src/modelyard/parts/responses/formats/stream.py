"""A response as it is made: the events of a stream, in their order and with their numbers."""

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.completion import Delta, ToolCallDelta
from modelyard.formats.chat.response import TokenEntry
from modelyard.formats.json import dumps
from modelyard.parts.call_arguments import is_json
from modelyard.parts.responses.formats.response import (
    AnsweredReasoning,
    AnsweredText,
    Json,
    OutputItem,
    ResponseObject,
    call_item,
    logprobs_of,
    message_item,
    reasoning_item,
    response_object,
)
from modelyard.parts.responses.records import ModelResponse, ResponseStatus, item_id


@attrs.frozen
class ResponseEvent:
    """An event: its type, and its data, which repeat the type and the number of the event."""

    type: str
    data: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The piece of text that it adds; "" for an event of another type."""
        return str(self.data["delta"]) if self.type == "response.output_text.delta" else ""

    def written(self) -> bytes:
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
    item: OutputItem | None = None
    part: AnsweredText | AnsweredReasoning | None = None
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
    """An unfinished item: its place in the output, its JSON, and its text so far."""

    place: int
    item: Json
    pieces: list[str] = attrs.field(factory=list)
    logprobs: list[Any] = attrs.field(factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def part(self) -> Mapping[str, Any]:
        """Where its text is, of reasoning or a message."""
        return {"item_id": self.item["id"], "output_index": self.place, "content_index": 0}

    def written(self, status: str) -> Json:
        if self.item["type"] == "message":
            return message_item(self.item["id"], self.text, self.logprobs, status)
        if self.item["type"] == "reasoning":
            return reasoning_item(self.item["id"], self.text, status)
        return {**self.item, "arguments": self.text, "status": status}


class ResponseEvents:
    """Makes the events of one response out of the deltas of an answer, and its `output` with them.

    Reasoning and a message end when another item begins, and a call when another begins and its arguments are complete.
    """

    def __init__(self, begun: ModelResponse, with_logprobs: bool) -> None:
        self._response, self._with_logprobs = begun, with_logprobs
        self._number = 0
        self._writing: _Open | None = None  # reasoning or a message
        self._calls: dict[int, _Open] = {}
        self._ended: set[int] = set()
        self.output: list[Json] = []

    def begin(self) -> list[ResponseEvent]:
        shown = response_object(self._response)
        return [self._event("response.created", response=shown), self._event("response.in_progress", response=shown)]

    def of(self, deltas: Iterable[Delta]) -> list[ResponseEvent]:
        events: list[ResponseEvent] = []
        for delta in deltas:
            if delta.reasoning:
                events += self._reasoning(delta)
            if delta.text or (self._with_logprobs and delta.logprobs and not (delta.tool_call or delta.reasoning)):
                events += self._text(delta)
            if delta.tool_call is not None:
                events += self._call(delta.tool_call)
        return events

    def close(self, incomplete: bool) -> list[ResponseEvent]:
        """Return the events that end the items; of an `incomplete` response the last is incomplete.

        A response without any has an empty message.
        """
        begun = [] if self.output else self._begin("message")
        left = [*([self._writing] if self._writing else []), *self._calls.values()]
        left.sort(key=lambda one: one.place)
        ends = []
        for one in left:
            ends += self._end(one, "incomplete" if incomplete and one is left[-1] else "completed")
        self._writing, self._calls = None, {}
        return [*begun, *ends]

    def so_far(self) -> tuple[Json, ...]:
        items = list(self.output)
        for one in (*([self._writing] if self._writing else []), *self._calls.values()):
            items[one.place] = one.written("in_progress")
        return tuple(items)

    def end(self, response: ModelResponse) -> ResponseEvent:
        status = ResponseStatus.FAILED if response.status is ResponseStatus.CANCELLED else response.status
        return self._event(f"response.{status}", response=response_object(response))

    def error(self, code: str | None, message: str, param: str | None) -> ResponseEvent:
        return self._event("error", code=code, message=message, param=param)

    # ---- items

    def _reasoning(self, delta: Delta) -> list[ResponseEvent]:
        events, item = self._begin("reasoning"), self._writing
        assert item is not None
        item.pieces.append(delta.reasoning)
        return [*events, self._event("response.reasoning_text.delta", **item.part, delta=delta.reasoning)]

    def _text(self, delta: Delta) -> list[ResponseEvent]:
        events, message = self._begin("message"), self._writing
        assert message is not None
        logprobs = logprobs_of(delta.logprobs) if self._with_logprobs else []
        message.pieces.append(delta.text)
        message.logprobs += logprobs
        if delta.text:
            event = self._event("response.output_text.delta", **message.part, delta=delta.text, logprobs=logprobs)
            events.append(event)
        return events

    def _begin(self, kind: str) -> list[ResponseEvent]:
        """Begin reasoning or a message, unless such an item is being written."""
        if self._writing is not None and self._writing.item["type"] == kind:
            return []
        events, place = [*self._end_writing(), *self._end_complete_calls()], len(self.output)
        if kind == "message":
            item = message_item(item_id("msg", self._response.id, place), "", [], "in_progress")
        else:
            item = reasoning_item(item_id("rs", self._response.id, place), "", "in_progress")
        self._writing, part = _Open(place, item), item["content"][0]
        self.output.append(item)
        return [
            *events,
            self._event("response.output_item.added", output_index=place, item={**item, "content": []}),
            self._event("response.content_part.added", **self._writing.part, part=part),
        ]

    def _end_writing(self) -> list[ResponseEvent]:
        ended, self._writing = self._writing, None
        return [] if ended is None else self._end(ended, "completed")

    def _call(self, piece: ToolCallDelta) -> list[ResponseEvent]:
        if piece.index in self._ended:
            return []  # nothing but white space can follow complete arguments
        call = self._calls.get(piece.index)
        events = [] if call is not None else self._begin_call(piece)
        call = self._calls[piece.index]
        if piece.arguments:
            call.pieces.append(piece.arguments)
            at = {"item_id": call.item["id"], "output_index": call.place}
            events.append(self._event("response.function_call_arguments.delta", **at, delta=piece.arguments))
        return events

    def _begin_call(self, piece: ToolCallDelta) -> list[ResponseEvent]:
        events, place = [*self._end_complete_calls(), *self._end_writing()], len(self.output)
        item = call_item(item_id("fc", self._response.id, place), piece.id or "", piece.name or "", "", "in_progress")
        self._calls[piece.index] = _Open(place, item)
        self.output.append(item)
        return [*events, self._event("response.output_item.added", output_index=place, item=item)]

    def _end_complete_calls(self) -> list[ResponseEvent]:
        events = []
        for index in [index for index, call in self._calls.items() if is_json(call.text)]:
            events += self._end(self._calls.pop(index), "completed")
            self._ended.add(index)
        return events

    def _end(self, one: _Open, status: str) -> list[ResponseEvent]:
        text, item = one.text, one.written(status)
        if item["type"] == "function_call":
            at, call = {"item_id": item["id"], "output_index": one.place}, {"name": item["name"], "arguments": text}
            events = [self._event("response.function_call_arguments.done", **at, **call)]
        else:
            ended = (
                self._event("response.reasoning_text.done", **one.part, text=text)
                if item["type"] == "reasoning"
                else self._event("response.output_text.done", **one.part, text=text, logprobs=one.logprobs)
            )
            events = [ended, self._event("response.content_part.done", **one.part, part=item["content"][0])]
        self.output[one.place] = item
        return [*events, self._event("response.output_item.done", output_index=one.place, item=item)]

    def _event(self, type_: str, **data: Any) -> ResponseEvent:
        event = ResponseEvent(type_, {"type": type_, "sequence_number": self._number, **data})
        self._number += 1
        return event
