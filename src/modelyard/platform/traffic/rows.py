"""What was stored, read as conversations: completions, responses and traced calls, each with its source."""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.completion import (
    Choice,
    Completion,
    FinishReason,
    Message,
    Role,
    StoredCompletion,
    Tool,
)
from modelyard.domain.identity import Principal
from modelyard.domain.record import EMPTY
from modelyard.domain.response import ModelResponse, ResponseStatus
from modelyard.domain.trace import Feedback, TracedCall
from modelyard.errors import InvalidInput, NotFound
from modelyard.formats.chat.messages import RecordedMessage, RecordedTool, message_of, tool_of
from modelyard.formats.converter import structure
from modelyard.formats.json import dumps, loads, without_nulls
from modelyard.platform.chat.service import Chat
from modelyard.platform.responses.service import Responses
from modelyard.platform.runtime import Runtime
from modelyard.platform.traces.call_query import CallOrder, CallQuery
from modelyard.platform.traces.service import Traces

Source = Literal["chat", "responses", "traces"]
SOURCES: tuple[Source, ...] = ("chat", "responses", "traces")

MOST_PARENTS = 100
"""So many calls above one are searched for feedback."""

_WHOLE = (FinishReason.STOP, FinishReason.TOOL_CALLS)


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
class TrafficReader:
    """The stored answers that a principal may see, in one project or in all; traced calls in one."""

    runtime: Runtime
    principal: Principal
    entity: str
    project: str | None

    def rows(self, source: Source) -> Iterator[Found]:
        """Yield what one interface has stored, the newest first, read batch by batch. Raises `Forbidden`."""
        place: dict[str, Any] = {"entity": self.entity, "project": self.project}
        if source == "chat":
            for completion in Chat(self.runtime, self.principal).list(**place, order="desc"):
                yield from _readable(partial(_of_completion, completion))
        elif source == "responses":
            responses = Responses(self.runtime, self.principal)
            for response in responses.list(**place, order="desc"):
                yield from _readable(partial(_of_response, response, responses))
        else:
            newest = CallQuery(sort=(CallOrder("started_at", lambda call: call.started_at, descending=True),))
            for call in Traces(self.runtime, self.principal).calls.query(newest, **place):
                if call.completion_id is not None:
                    yield from _readable(partial(_of_call, call))

    def with_feedback(self, row: TrafficRow) -> TrafficRow:
        """Return the row with what was said of it."""
        traces = Traces(self.runtime, self.principal)
        place: dict[str, Any] = {"entity": self.entity, "project": self.project}
        calls = [*traces.calls.of_completion(row.completion_id, **place)]
        refs = dict.fromkeys([row.id, *(ref for call in calls for ref in self._refs(traces, call))])
        return attrs.evolve(
            row, feedback=tuple(said for ref in refs for said in traces.feedback.list(ref=ref, **place))
        )

    def _refs(self, traces: Traces, call: TracedCall) -> Iterator[str]:
        """Yield the reference of a call and those of the calls around it."""
        for _ in range(MOST_PARENTS):
            yield call.ref
            if call.parent_id is None:
                return
            try:
                call = traces.calls.get(call.parent_id, entity=call.entity, project=call.project)
            except NotFound:
                return


def _readable(read: Callable[[], Iterator[Found]]) -> Iterator[Found]:
    """Yield what can be read; a conversation that cannot, as one whose beginning is gone, is left out."""
    try:
        yield from [*read()]
    except InvalidInput:
        yield LeftOut("unreadable")


def _of_completion(stored: StoredCompletion) -> Iterator[Found]:
    request = _plain({name: stored.request[name] for name in ("messages", "tools") if name in stored.request})
    messages = structure(tuple[Message, ...], request.get("messages", []))
    tools = structure(tuple[Tool, ...], request.get("tools", []))
    answers = structure(Completion, _plain(stored.answer)).choices
    for choice in answers if messages else ():
        yield _row(choice, messages, tools, stored, "chat", stored.id, stored.id)
    if not messages:
        yield LeftOut("no messages")


def _of_response(stored: ModelResponse, responses: Responses) -> Iterator[Found]:
    if stored.status is not ResponseStatus.COMPLETED:
        yield LeftOut("not finished")
        return
    messages, given = responses.messages(stored.id), _plain(stored.parameters)
    if given.get("instructions") is not None:
        messages = (Message(Role.SYSTEM, given["instructions"]), *messages)
    tools = tuple(
        Tool(one["name"], one.get("description") or "", one.get("parameters") or {}, bool(one.get("strict")))
        for one in given.get("tools") or ()
    )
    choice = Choice(0, messages[-1], FinishReason.STOP)
    yield _row(choice, messages[:-1], tools, stored, "responses", stored.id, stored.id)


def _of_call(call: TracedCall) -> Iterator[Found]:
    inputs, output = without_nulls(_plain(call.inputs)), without_nulls(_plain(call.output["value"]))
    asked, choices = inputs.get("messages"), output.get("choices")
    if call.exception is not None or not asked or not isinstance(choices, list):
        yield LeftOut("no messages")
        return
    messages = tuple(map(message_of, structure(tuple[RecordedMessage, ...], asked)))
    tools = tuple(map(tool_of, structure(tuple[RecordedTool, ...], inputs.get("tools", []))))
    model = inputs.get("model", output.get("model"))
    for at, one in enumerate(choices):
        read = structure(_TracedChoice, one)
        reason = FinishReason.STOP if read.finish_reason in _WHOLE else FinishReason.LENGTH
        choice = Choice(at, message_of(read.message), reason)
        yield _row(choice, messages, tools, call, "traces", call.ref, call.completion_id or "", str(model))


@attrs.frozen
class _TracedChoice:
    message: RecordedMessage
    finish_reason: str = FinishReason.STOP.value


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
    if choice.finish_reason not in _WHOLE:
        return LeftOut("not finished")
    if answer.role is not Role.ASSISTANT or not (answer.text or answer.tool_calls):
        return LeftOut("no answer")
    if isinstance(stored, TracedCall):
        metadata, when, checkpoint = stored.attributes, stored.started_at, None
    else:
        model, metadata = stored.model, stored.metadata
        when, checkpoint = stored.created_at, stored.checkpoint_id
    all_messages = (*messages, answer)
    return TrafficRow(id, source, stored.entity, model, when, all_messages, tools, metadata, checkpoint, completion_id)


def _plain(value: Any) -> Any:
    """Return what a record holds as plain JSON data."""
    return loads(dumps(value))
