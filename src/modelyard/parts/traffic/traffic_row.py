"""A conversation that was asked and answered, as it is collected, and the place where it was stored."""

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

    `id` is the id of a stored completion or response, or the reference of a traced call. `feedback` is the feedback on
    the completion or response, on a call that returned it, and on the calls around that call. `variant` is the version
    of a variant that answered, such as "variants/acme/desk/support@3".
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
    variant: str = ""

    @property
    def answer(self) -> Message:
        """The last message, which is the answer."""
        return self.messages[-1]


@attrs.frozen
class LeftOut:
    """Something that was stored, but is not a conversation to learn from, and why."""

    reason: str


Found = TrafficRow | LeftOut


@attrs.frozen
class StoredAnswer:
    """The conversations of one stored record, one for each of its answers, and its place among the records of its
    source.
    """

    source: Source
    place: tuple[Any, ...]
    found: tuple[Found, ...]
