"""OTLP over HTTP: the spans that exporters of OpenTelemetry send, kept as traced calls."""

import gzip
import zlib
from collections.abc import Sequence
from typing import Any

import attrs

from modelyard.errors import BodyTooLarge, InvalidInput, Problem
from modelyard.http.auth import attribution
from modelyard.http.error_responses import place
from modelyard.http.errors import UnsupportedMedia
from modelyard.http.interface import Auth
from modelyard.http.message import PROTOBUF, Response, json_response
from modelyard.http.route import MAX_EXPORT, Body, Route, RouteCall
from modelyard.http.route import documented_route as declared
from modelyard.parts.traces.http.requests import place_of
from modelyard.parts.traces.http.rpc_status import STATUS
from modelyard.parts.traces.http.spans import MAX_SPANS, RejectedSpan, call_of, spans_in
from modelyard.parts.traces.interface import TRACES
from modelyard.parts.traces.otlp import Message, Unread, numbered, read_json, read_protobuf, within
from modelyard.parts.traces.records import TracedCall


@attrs.frozen
class ExportRequest:
    """The spans of programs, by the resources and the scopes that they came from."""

    resourceSpans: Sequence[Any] | None = None  # noqa: N815 (the protocol's own name)


@attrs.frozen
class PartialSuccess:
    """How many spans were not kept, in digits, and why."""

    rejectedSpans: str  # noqa: N815
    errorMessage: str  # noqa: N815


@attrs.frozen
class ExportAnswer:
    """What came of an export; nothing is said where all spans were kept."""

    partialSuccess: PartialSuccess | None = None  # noqa: N815


def _data(call: RouteCall) -> bytes:
    """Read the body, which may be compressed. Raises `InvalidInput`, `BodyTooLarge`, `UnsupportedMedia`."""
    encoding = (call.headers.text(b"content-encoding") or "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise UnsupportedMedia("a body is compressed with gzip or not at all")
    try:
        file = gzip.GzipFile(fileobj=call.file) if encoding == "gzip" else call.file
        raw = file.read(MAX_EXPORT + 1)
    except (OSError, EOFError, zlib.error):
        raise InvalidInput.at("body", msg="is not whole gzip data, as Content-Encoding says") from None
    if len(raw) > MAX_EXPORT:
        raise BodyTooLarge(MAX_EXPORT)
    return raw


def _place(call: RouteCall) -> tuple[str, str | None]:
    """Return the entity and the project that the headers name, as chat's do or as the trace client's; None for the
    default project.
    """
    named = call.headers.text(b"project_id")
    if named is not None:
        place = place_of(call, named)
        return place["entity"], place["project"]
    booked_on = attribution(call.headers, call.principal)
    return booked_on.entity, booked_on.project or None


def _calls(export: Message) -> tuple[list[TracedCall], list[Unread]]:
    """Return the spans of an export as calls, and those that cannot be kept. Raises `InvalidInput` for too many."""
    calls, unread = list[TracedCall](), list[Unread]()
    for at, sent in enumerate(spans_in(export)):
        if at >= MAX_SPANS:
            raise InvalidInput.at("body", msg=f"has more than {MAX_SPANS} spans; export fewer at once")
        if isinstance(sent, Unread):
            unread.append(sent)
            continue
        try:
            calls.append(call_of(sent.span, sent.origin))
        except RejectedSpan as reason:
            unread.append(Unread(sent.place, str(reason)))
    return calls, unread


def _said(unread: Sequence[Unread]) -> str:
    """Return the reasons, each with its first place."""
    by_reason = dict[str, list[Unread]]()
    for one in unread:
        by_reason.setdefault(one.why, []).append(one)
    return "; ".join(
        f"{place(Problem(first.place, why))}: {why}{f' (and {len(more)} more)' if more else ''}"
        for why, (first, *more) in by_reason.items()
    )


def export_spans(call: RouteCall) -> Response:
    """Keep the spans of programs as traced calls. Sent again, they are the same calls."""
    entity, project = _place(call)
    media = (call.headers.text(b"content-type") or "").partition(";")[0].strip().lower()
    if media not in (PROTOBUF, "application/json", ""):
        raise UnsupportedMedia(f"the body must be a message of OTLP; send Content-Type: {PROTOBUF} or application/json")
    found = read_protobuf(_data(call)) if media == PROTOBUF else read_json(_data(call))
    calls, unread = _calls(found)
    call.platform.compat.traces.calls.record(calls, entity=entity, project=project)
    rejected, said = sum(one.spans for one in unread), _said(unread)
    if media == PROTOBUF:
        answer = within(1, numbered(rejected, said)) if rejected else b""
        return Response(200, [("content-type", PROTOBUF)], answer)
    return json_response({"partialSuccess": PartialSuccess(str(rejected), said)} if rejected else {})


ROUTES: tuple[Route, ...] = tuple(
    declared(
        TRACES,
        Auth.EITHER,
        "POST",
        path,
        export_spans,
        body=Body.EXPORT,
        request=ExportRequest,
        response=ExportAnswer,
        error_format=STATUS,
        operation=operation,
    )
    for path, operation in (("/v1/traces", "export_spans"), ("/agents/otel/v1/traces", "export_agent_spans"))
)
"""Where exporters of OpenTelemetry send traces: the usual path, and that of the trace client's conversations."""
