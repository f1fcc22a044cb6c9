"""Spans of OpenTelemetry as traced calls, by its semantic conventions for generative AI (1.37 and later)."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.formats.json import checked_dumps, loads
from modelyard.parts.traces.otlp import Message, Place, Unread, attributes_of
from modelyard.parts.traces.records import CallEnd, TracedCall

MAX_SPANS = 10_000
"""How many spans a request may have."""

MAX_ATTRIBUTES = 1000
"""How many attributes a span may have, and how many events and links each."""

MAX_ORIGIN = 2**15
"""Bytes of a resource and of a scope in JSON: each call keeps those of its span."""

LONGEST_NAME = 1000

_SPAN_ID = re.compile("(?!0*$)[0-9a-f]{16}")
_ROOT = "0" * 16
"""The parent of a span that has none, as some write it."""

_TRACE_ID = re.compile("(?!0*$)[0-9a-f]{32}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 4_102_444_800 * 10**9
"""The year 2100, in nanoseconds."""

_FAILED = 2
_DETAILS = "gen_ai.client.inference.operation.details"
_REQUEST, _RESPONSE, _USAGE = "gen_ai.request.", "gen_ai.response.", "gen_ai.usage."
_CONVERSATIONS = ("gen_ai.conversation.id", "wandb.thread_id", "session.id")
_INPUTS: Mapping[str, str] = {
    "gen_ai.input.messages": "messages",
    "gen_ai.system_instructions": "system_instructions",
    "gen_ai.tool.definitions": "tools",
    "gen_ai.tool.call.arguments": "arguments",
    "gen_ai.prompt": "prompt",
}
_OUTPUTS: Mapping[str, str] = {"gen_ai.output.messages": "messages", "gen_ai.completion": "completion"}
_RESULT = "gen_ai.tool.call.result"
_USAGE_NAMES: Mapping[str, str] = {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
"""Names of earlier conventions, and those of today."""


class RejectedSpan(Exception):
    """The reason why a span cannot be kept."""


@attrs.frozen
class SentSpan:
    """A span of an export, and where it is. Its origin are the attributes of the resource, and the scope; None if these
    are too large.
    """

    span: Message
    origin: Message | None
    place: Place


def spans_in(export: Message) -> Iterator[SentSpan | Unread]:
    """Yield the spans of an export, and what could not be read."""
    for at, resource in enumerate(export.get("resourceSpans", ())):
        if isinstance(resource, Unread):
            yield resource
            continue
        about = attributes_of(resource.get("resource", {}))
        is_small = _is_small(about)
        for number, scoped in enumerate(resource.get("scopeSpans", ())):
            place = ("resourceSpans", at, "scopeSpans", number, "spans")
            yield from (
                (scoped,) if isinstance(scoped, Unread) else _spans_of(scoped, about if is_small else None, place)
            )


def _spans_of(scoped: Message, about: Message | None, place: Place) -> Iterator[SentSpan | Unread]:
    scope = {**scoped.get("scope", {}), "attributes": attributes_of(scoped.get("scope", {}))}
    origin = {"resource": about, "scope": scope} if about is not None and _is_small(scope) else None
    for at, span in enumerate(scoped.get("spans", ())):
        yield span if isinstance(span, Unread) else SentSpan(span, origin, (*place, at))


def _is_small(value: Message) -> bool:
    try:
        return len(checked_dumps(value)) <= MAX_ORIGIN
    except InvalidInput:
        return False


def call_of(span: Message, origin: Message | None) -> TracedCall:
    """Return a span as a call with the id of the span. Raises `RejectedSpan`."""
    if origin is None:
        raise RejectedSpan(f"the resource and the scope of a span may have {MAX_ORIGIN} bytes each")
    for name in ("attributes", "events", "links"):
        if len(span.get(name, ())) > MAX_ATTRIBUTES:
            raise RejectedSpan(f"a span has at most {MAX_ATTRIBUTES} {name}")
    trace_id, span_id = _id(span, _TRACE_ID, "traceId", "trace_id"), _id(span, _SPAN_ID, "spanId", "span_id")
    parent_id = None if span.get("parentSpanId") == _ROOT else _id(span, _SPAN_ID, "parentSpanId", "parent")
    if not (trace_id and span_id):
        raise RejectedSpan("a span needs a trace_id and a span_id")
    began = _time(span, "startTimeUnixNano")
    if began is None:
        raise RejectedSpan("a span needs a start_time_unix_nano")
    given, said = attributes_of(span), _said(span)
    name = span.get("name", "")[:LONGEST_NAME].replace("\0", "\ufffd")
    operation = _name(said.get("gen_ai.operation.name"))
    call = TracedCall(
        "",
        "",
        span_id,
        trace_id,
        operation or name,
        began,
        parent_id,
        display_name=name if operation else None,
        inputs=_inputs(said),
        attributes=given,
        thread_id=next((found for key in _CONVERSATIONS if (found := _name(said.get(key)))), None),
        more={"otel": _beyond(span, origin)},
    )
    ended = _time(span, "endTimeUnixNano")
    if ended is not None:
        call = call.with_end(CallEnd(span_id, ended, _output(said), _exception(span, given), _summary(said)))
    try:
        parts = ("inputs", "attributes", "output", "summary", "more")
        checked_dumps({part: getattr(call, part) for part in parts})
    except InvalidInput as wrong:
        raise RejectedSpan(f"a span {wrong.problems[0].msg}") from None
    return call


def _id(span: Message, form: re.Pattern[str], name: str, shown: str) -> str | None:
    found: str = span.get(name, "")
    if found and not form.fullmatch(found):
        raise RejectedSpan(f"the {shown} of a span is not one of OpenTelemetry")
    return found or None


def _time(span: Message, name: str) -> datetime | None:
    nanoseconds = span.get(name, 0)
    if not 0 <= nanoseconds < _LATEST:
        raise RejectedSpan("the times of a span are nanoseconds since 1970, before the year 2100")
    return _EPOCH + timedelta(microseconds=nanoseconds // 1000) if nanoseconds else None


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and 0 < len(value) <= 128 and value.isprintable() else None


def _said(span: Message) -> dict[str, Any]:
    """Return the attributes of a span, and those of the event with the conversation that the span lacks."""
    details = [attributes_of(event) for event in span.get("events", ()) if event.get("name") == _DETAILS]
    return {**(details[0] if details else {}), **attributes_of(span)}


def _parsed(value: Any) -> Any:
    """Parse a string if it is a JSON object or list, the form in which these attributes are mostly sent."""
    if not (isinstance(value, str) and value[:1] in ("{", "[")):
        return value
    try:
        return loads(value.encode())
    except InvalidInput:
        return value


def _inputs(said: Mapping[str, Any]) -> dict[str, Any]:
    asked = {key.removeprefix(_REQUEST): value for key, value in said.items() if key.startswith(_REQUEST)}
    return asked | {name: _parsed(said[key]) for key, name in _INPUTS.items() if key in said}


def _output(said: Mapping[str, Any]) -> Any:
    if _RESULT in said:
        return _parsed(said[_RESULT])
    answered = {key.removeprefix(_RESPONSE): value for key, value in said.items() if key.startswith(_RESPONSE)}
    return answered | {name: _parsed(said[key]) for key, name in _OUTPUTS.items() if key in said} or None


def _summary(said: Mapping[str, Any]) -> dict[str, Any]:
    used = {key.removeprefix(_USAGE): value for key, value in said.items() if key.startswith(_USAGE)}
    counts = {_USAGE_NAMES.get(name, name): count for name, count in used.items() if type(count) is int}
    model = said.get(f"{_RESPONSE}model") or said.get(f"{_REQUEST}model")
    if not (counts and isinstance(model, str)):
        return {}
    total = counts.get("input_tokens", 0) + counts.get("output_tokens", 0)
    return {"usage": {model: {"requests": 1, "total_tokens": total, **counts}}}


def _exception(span: Message, given: Mapping[str, Any]) -> str | None:
    """Return the failure of a span: the trace of its exception, or less if there is none."""
    status = span.get("status", {})
    if status.get("code") != _FAILED:
        return None
    raised = [attributes_of(event) for event in span.get("events", ()) if event.get("name") == "exception"]
    last = raised[-1] if raised else {}
    named = ": ".join(str(last[key]) for key in ("exception.type", "exception.message") if last.get(key))
    found = last.get("exception.stacktrace") or named or status.get("message") or given.get("error.type") or "error"
    return str(found).replace("\0", "\ufffd")


def _beyond(span: Message, origin: Message) -> Message:
    """Return the members of a span that a call has no place for."""
    kept: Message = {name: span[name] for name in ("kind", "traceState", "flags", "status") if name in span}
    parts: Message = {
        name: [{**part, "attributes": attributes_of(part)} for part in span[name]]
        for name in ("events", "links")
        if name in span
    }
    return {**origin, **kept, **parts}
