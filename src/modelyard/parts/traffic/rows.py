"""Stored records, read as conversations: completions, responses and traced calls, each with its source."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import attrs

from modelyard.domain.completion import Choice, Completion, FinishReason, Message, Role, StoredCompletion, Tool
from modelyard.domain.identity import Principal
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.converter import structure
from modelyard.formats.json import kept_data
from modelyard.parts.responses.conversation import is_expired
from modelyard.parts.responses.records import ModelResponse, ResponseStatus
from modelyard.parts.responses.service import Responses
from modelyard.parts.traces.records import TracedCall
from modelyard.parts.traces.service import Traces
from modelyard.parts.traffic.conversation import WHOLE, conversation_of, tools_of
from modelyard.parts.traffic.traffic_row import Found, LeftOut, Source, StoredAnswer, TrafficRow
from modelyard.platform.paging import cursor_at, get_or_none, iter_index_live, listed_index, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

VERSION = re.compile(r"variants/[^/@]+/[^/@]+/[^/@]+@[0-9]+")
"""The name of a version of a variant, as it is written for every caller."""

MOST_PARENTS = 100
"""So many calls above one are searched for feedback."""


@attrs.frozen
class TrafficReader:
    """The stored answers that a principal may see, in one project or in all; traced calls in one."""

    runtime: Runtime
    principal: Principal
    entity: str
    project: str | None

    def answers(self, source: Source, after: tuple[Any, ...] | None = None) -> Iterator[StoredAnswer]:
        """Yield the stored answers of one interface, the newest first, from a place on, read batch by batch."""
        index, *where = self._index(source)
        cls, read = _READ[source]
        for stored in iter_index_live(self.runtime, cls, index, *where, after=after, descending=True):
            if self.principal.scope.covers(stored.entity, stored.project):
                place = cursor_at(cls, index, stored)
                yield StoredAnswer(source, place, _readable(partial(read, self, stored)))

    def count(self, source: Source) -> int:
        index, *where = self._index(source)
        return self.runtime.store.read(lambda snapshot: snapshot.count(_READ[source][0], index, *where))

    def _index(self, source: Source) -> tuple[str, ...]:
        if source == "traces":
            return ("by_start", *named_place(self.runtime, self.principal, self.entity, self.project))
        return listed_index(self.entity, self.project)

    def with_feedback(self, row: TrafficRow) -> TrafficRow:
        traces = Traces(self.runtime, self.principal)
        place: dict[str, Any] = {"entity": self.entity, "project": self.project}
        calls = [*traces.calls.of_completion(row.completion_id, **place)]
        refs = dict.fromkeys([row.id, *(ref for call in calls for ref in self._refs(traces, call))])
        return attrs.evolve(
            row, feedback=tuple(said for ref in refs for said in traces.feedback.list(ref=ref, **place))
        )

    def _refs(self, traces: Traces, call: TracedCall) -> Iterator[str]:
        for _ in range(MOST_PARENTS):
            yield call.ref
            if call.parent_id is None:
                return
            try:
                call = traces.calls.get(call.parent_id, entity=call.entity, project=call.project)
            except NotFound:
                return


def _readable(read: Callable[[], Iterator[Found]]) -> tuple[Found, ...]:
    """Return the conversations that can be read; others, such as those without their beginning, are left out."""
    try:
        return tuple(read())
    except InvalidInput:
        return (LeftOut("unreadable"),)


def _of_completion(reader: TrafficReader, stored: StoredCompletion) -> Iterator[Found]:
    request = kept_data({name: stored.request[name] for name in ("messages", "tools") if name in stored.request})
    messages = structure(tuple[Message, ...], request.get("messages", []))
    tools = structure(tuple[Tool, ...], request.get("tools", []))
    answers = structure(Completion, kept_data(stored.answer)).choices
    for choice in answers if messages else ():
        yield _row(choice, messages, tools, stored, "chat", stored.id, stored.id)
    if not messages:
        yield LeftOut("no messages")


def _of_response(reader: TrafficReader, stored: ModelResponse) -> Iterator[Found]:
    if is_expired(reader.runtime, stored):
        return
    if stored.status is not ResponseStatus.COMPLETED:
        yield LeftOut("not finished")
        return
    messages = Responses(reader.runtime, reader.principal).messages(stored.id)
    given = kept_data(stored.parameters)
    if given.get("instructions") is not None:
        messages = (Message(Role.SYSTEM, given["instructions"]), *messages)
    choice = Choice(0, messages[-1], FinishReason.STOP)
    yield _row(choice, messages[:-1], tools_of(given.get("tools")), stored, "responses", stored.id, stored.id)


def _of_call(reader: TrafficReader, call: TracedCall) -> Iterator[Found]:
    if call.completion_id is None:
        return
    if call.exception is not None:
        yield LeftOut("no messages")
        return
    model, messages, tools, choices = conversation_of(kept_data(call.inputs), kept_data(call.output["value"]))
    if not messages or not choices:
        yield LeftOut("no messages")
    variant = reader.runtime.store.read(lambda snapshot: _stored_as(snapshot, call))
    for choice in choices if messages else ():
        row = _row(choice, messages, tools, call, "traces", call.ref, call.completion_id, model)
        yield row if isinstance(row, LeftOut) else attrs.evolve(row, variant=variant)


def answered_as(stored: StoredCompletion | ModelResponse) -> str:
    """Return the name of the version of a variant that gave an answer, "" for none."""
    named = (stored.request if isinstance(stored, StoredCompletion) else stored.parameters).get("model")
    return named if isinstance(named, str) and VERSION.fullmatch(named) else ""


def _stored_as(snapshot: Snapshot, call: TracedCall) -> str:
    """Return the version of a variant that gave the answer of a call, if that was stored by the same entity."""
    for cls in (StoredCompletion, ModelResponse):
        stored: Any = get_or_none(snapshot, cls, call.completion_id)
        if stored is not None and stored.entity == call.entity:
            return answered_as(stored)
    return ""


_READ: Mapping[Source, tuple[type[Any], Callable[[TrafficReader, Any], Iterator[Found]]]] = {
    "chat": (StoredCompletion, _of_completion),
    "responses": (ModelResponse, _of_response),
    "traces": (TracedCall, _of_call),
}


def _row(
    choice: Choice,
    messages: tuple[Message, ...],
    tools: tuple[Tool, ...],
    stored: StoredCompletion | ModelResponse | TracedCall,
    source: Source,
    id: str,
    completion_id: str,
    model: str = "",
) -> Found:
    answer = choice.message
    if choice.finish_reason not in WHOLE:
        return LeftOut("not finished")
    if answer.role is not Role.ASSISTANT or not (answer.text or answer.tool_calls):
        return LeftOut("no answer")
    if isinstance(stored, TracedCall):
        metadata, when, checkpoint = stored.attributes, stored.started_at, None
        variant = ""
    else:
        model, metadata = stored.model, stored.metadata
        when, checkpoint, variant = stored.created_at, stored.checkpoint_id, answered_as(stored)
    all_messages = tuple([_without_reasoning(message) for message in (*messages, answer)])
    of = id, source, stored.entity, model, when, all_messages, tools, metadata, checkpoint, completion_id
    return TrafficRow(*of, variant=variant)


def _without_reasoning(message: Message) -> Message:
    """Return the message without reasoning: the collected rows train a model to answer, not to reason as another."""
    return attrs.evolve(message, reasoning=None) if message.reasoning else message
