"""The events of a response in the background, made of what is stored of it, so that they can be read at any time.

An event has the same number whenever it is made: a piece of text has the number of its last character. So a client that
continues after a number misses nothing, and numbers grow, but not by one. A response that begins again, because its
worker was lost, has a new series of events from `response.created` on, with greater numbers.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.domain.record import EMPTY
from modelyard.parts.responses.formats.response import response_object
from modelyard.parts.responses.formats.stream import ResponseEvent
from modelyard.parts.responses.records import ModelResponse, ResponseStatus

SERIES = 10**9
"""How far the numbers of two attempts are apart."""

MOST_EVENTS = 2**53 - 1
"""The greatest number of an event."""

OPEN = "in_progress"
"""The status of an item that is being written."""


class Replay:
    """Makes the events after a number, each once, however often it looks at the response."""

    def __init__(self, after: int = -1) -> None:
        self._last = after

    def of(self, response: ModelResponse, attempt: int) -> list[ResponseEvent]:
        """Return the events that there are now and were not returned before. Attempts count from 1."""
        events = [event for event in _Series(response, (attempt - 1) * SERIES).events(self._last) if event is not None]
        if events:
            self._last = int(events[-1].data["sequence_number"])
        return events


class _Series:
    """The events of one attempt in their order; None stands for an event that is not requested."""

    def __init__(self, response: ModelResponse, first: int) -> None:
        self._response, self._number, self._after = response, first, 0

    def events(self, after: int) -> Iterator[ResponseEvent | None]:
        self._after = after
        yield from self._beginning()
        for place, item in enumerate(self._response.output):
            yield from self._call(place, item) if item["type"] == "function_call" else self._written(place, item)
            if item["status"] == OPEN:
                break  # the next ones follow when this one has ended
        if self._response.ended:
            yield from self._end()

    def _beginning(self) -> Iterator[ResponseEvent | None]:
        queued = attrs.evolve(
            self._response,
            status=ResponseStatus.QUEUED,
            output=(),
            usage=EMPTY,
            error=EMPTY,
            reason="",
            completed_at=None,
        )
        yield self._event("response.created", response=response_object(queued))
        yield self._event("response.queued", response=response_object(queued))
        if self._response.status is not ResponseStatus.QUEUED:
            begun = attrs.evolve(queued, status=ResponseStatus.IN_PROGRESS)
            yield self._event("response.in_progress", response=response_object(begun))

    def _end(self) -> Iterator[ResponseEvent | None]:
        response = self._response
        status = ResponseStatus.FAILED if response.status is ResponseStatus.CANCELLED else response.status
        if response.error:
            error = {"code": response.error.get("code"), "message": response.error.get("message"), "param": None}
            yield self._event("error", **error)
        yield self._event(f"response.{status}", response=response_object(response))

    # ---- items

    def _written(self, place: int, item: Mapping[str, Any]) -> Iterator[ResponseEvent | None]:
        (part,), begun = item["content"], {**item, "status": OPEN, "content": []}
        at = {"item_id": item["id"], "output_index": place, "content_index": 0}
        name, text = f"response.{part['type']}", part["text"]
        logprobs = {name: part[name] for name in ("logprobs",) if name in part}  # of messages
        none: dict[str, Any] = {name: [] for name in logprobs}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        yield self._event("response.content_part.added", **at, part={**part, "text": "", **none})
        yield self._piece(f"{name}.delta", text, **at, **none)
        if item["status"] != OPEN:
            yield self._event(f"{name}.done", **at, text=text, **logprobs)
            yield self._event("response.content_part.done", **at, part=part)
            yield self._event("response.output_item.done", output_index=place, item=item)

    def _call(self, place: int, item: Mapping[str, Any]) -> Iterator[ResponseEvent | None]:
        at, arguments = {"item_id": item["id"], "output_index": place}, item["arguments"]
        begun = {**item, "status": OPEN, "arguments": ""}
        yield self._event("response.output_item.added", output_index=place, item=begun)
        yield self._piece("response.function_call_arguments.delta", arguments, **at)
        if item["status"] != OPEN:
            call = {"name": item["name"], "arguments": arguments}
            yield self._event("response.function_call_arguments.done", **at, **call)
            yield self._event("response.output_item.done", output_index=place, item=item)

    # ---- numbers

    def _event(self, type_: str, **data: Any) -> ResponseEvent | None:
        number, self._number = self._number, self._number + 1
        return self._numbered(type_, number, data)

    def _piece(self, type_: str, text: str, **data: Any) -> ResponseEvent | None:
        """Return the event of a text, as far as it is not known; each of its characters has a number."""
        first, self._number = self._number, self._number + len(text)
        rest = text[max(0, self._after + 1 - first) :]
        return self._numbered(type_, self._number - 1, {**data, "delta": rest}) if rest else None

    def _numbered(self, type_: str, number: int, data: Mapping[str, Any]) -> ResponseEvent | None:
        if number <= self._after:
            return None
        return ResponseEvent(type_, {"type": type_, "sequence_number": number, **data})
