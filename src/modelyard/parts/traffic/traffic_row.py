"""A conversation that was asked and answered, as it is collected, and where it was stored."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

import attrs

from modelyard.domain.completion import Message, Tool
from modelyard.domain.record import EMPTY
from modelyard.parts.traces.records import Feedback

Source = Literal["chat", "responses", "traces"]
SOURCES: tuple[Source, ...] = ("chat", "responses", "traces")


@attrs.frozen
class TrafficRow:
    """A conversation that was answered, its answer last.

    `id` is that of a stored completion or response, or the reference of a traced call. `feedback` is what was said of
    it: of the completion or response by its id, of a call that returned it, and of the calls around that.
    """

    id: str
    source: Source
    entity: str
    model: str
    created_at: datetime
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    metadata: Mapping[str, Any] = EMPTY
    checkpoint_id: str | None = None
    completion_id: str = ""
    feedback: tuple[Feedback, ...] = ()

    @property
    def answer(self) -> Message:
        """The answer."""
        return self.messages[-1]


@attrs.frozen
class LeftOut:
    """Something that was stored, but is not a conversation to learn from, and why."""

    reason: str


Found = TrafficRow | LeftOut


@attrs.frozen
class StoredAnswer:
    """The conversations of one stored record, one for each of its answers, and its place among those of its source."""

    source: Source
    place: tuple[Any, ...]
    found: tuple[Found, ...]
