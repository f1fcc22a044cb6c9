"""Spans of OpenTelemetry over HTTP: they are calls like others, by the conventions for generative AI."""

import gzip
import json
from typing import Any

import attrs
import pytest
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from each import each_case
from example_counts import examples
from http_client import Answer, Client, client_of
from modelyard import open_platform
from modelyard.domain.canonical import canonical_json
from modelyard.errors import StoreBusy
from modelyard.http.route import MAX_EXPORT
from modelyard.parts.traces.http.spans import MAX_ATTRIBUTES, MAX_ORIGIN, MAX_SPANS
from modelyard.parts.traces.otlp import within

PATH, OTHER = "/v1/traces", "/agents/otel/v1/traces"
TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
PROTOBUF = ("content-type", "application/x-protobuf")
BEGAN = 1772443800_000000000


@pytest.fixture(autouse=True)
def nothing_left(client: Any) -> Any:
    yield
    for place in ({}, {"project": "support"}):
        kept = client.platform.compat.traces.calls
        kept.delete([one.id for one in kept.list(entity="acme", **place)], entity="acme", **place)


def value(given: Any) -> Any:
    names = {bool: "boolValue", int: "intValue", float: "doubleValue", str: "stringValue"}
    if isinstance(given, list):
        return {"arrayValue": {"values": [value(item) for item in given]}}
    return {names[type(given)]: str(given) if type(given) is int else given}


def pairs(given: dict[str, Any]) -> list[Any]:
    return [{"key": key, "value": value(one)} for key, one in given.items()]


def span(said: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    times = {"startTimeUnixNano": str(BEGAN), "endTimeUnixNano": str(BEGAN + 1_500_000_000)}
    return {"traceId": TRACE, "spanId": SPAN, "name": "s", **times, "attributes": pairs(said or {}), **more}


def export(*spans: Any, resource: dict[str, Any] | None = None) -> dict[str, Any]:
    about = {"attributes": pairs(resource or {})}
    return {"resourceSpans": [{"resource": about, "scopeSpans": [{"scope": {"name": "lib"}, "spans": list(spans)}]}]}


def send(client: Client, *spans: Any, status: int = 200, headers: Any = (), **more: Any) -> Any:
    answer = client.send("POST", PATH, export(*spans), headers=headers, **more)
    assert answer.status == status, answer.raw
    return answer.json


def data(value: Any) -> Any:
    """What a call holds, as JSON data."""
    return json.loads(canonical_json(value))


def calls(client: Client, **place: str) -> list[Any]:
    return list(client.platform.compat.traces.calls.list(entity="acme", **place))


CHAT = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "echo",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.response.model": "echo-1",
    "gen_ai.response.id": "chatcmpl-1",
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.usage.input_tokens": 4,
    "gen_ai.usage.output_tokens": 2,
    "gen_ai.conversation.id": "conv-1",
    "gen_ai.input.messages": '[{"role": "user", "parts": [{"type": "text", "content": "hi"}]}]',
    "gen_ai.output.messages": '[{"role": "assistant", "parts": []}]',
}


def test_a_chat_span_is_a_call_with_all_that_the_conventions_say(client: Any) -> None:
    link = {"traceId": TRACE, "spanId": PARENT}
    sent = span(CHAT, name="chat echo", parentSpanId=PARENT, kind=3, links=[link], status={"code": 1})
    answer = client.send("POST", PATH, export(sent, resource={"service.name": "shop"}))
    assert (answer.status, answer.raw, answer.headers["content-type"]) == (200, b"{}", "application/json")
    (call,) = calls(client)
    assert (call.id, call.trace_id, call.parent_id, call.thread_id) == (SPAN, TRACE, PARENT, "conv-1")
    assert (call.op, call.display_name, call.status, call.latency) == ("chat", "chat echo", "success", 1.5)
    assert call.started_at.isoformat() == "2026-03-02T09:30:00+00:00"
    assert data(call.inputs) == {
        "model": "echo",
        "temperature": 0.5,
        "messages": [{"role": "user", "parts": [{"type": "text", "content": "hi"}]}],
    }
    assert data(call.output)["value"] == {
        "model": "echo-1",
        "id": "chatcmpl-1",
        "finish_reasons": ["stop"],
        "messages": [{"role": "assistant", "parts": []}],
    }
    used = {"requests": 1, "input_tokens": 4, "output_tokens": 2, "total_tokens": 6}
    assert (data(call.summary), call.completion_id) == ({"usage": {"echo-1": used}}, "chatcmpl-1")
    assert data(call.attributes) == CHAT
    kept = data(call.more)["otel"]
    assert (kept["resource"], kept["scope"]["name"], kept["kind"]) == ({"service.name": "shop"}, "lib", 3)
    assert kept["links"] == [{**link, "attributes": {}}]
    asked = {"$expr": {"$eq": [{"$getField": "attributes.gen_ai.request.model"}, {"$literal": "echo"}]}}
    found = client.send("POST", "/calls/stream_query", {"project_id": "acme/default", "query": asked}, auth="Basic")
    assert [one["id"] for one in found.lines] == [SPAN]


def test_tools_details_and_other_spans_are_calls_too(client: Any) -> None:
    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.arguments": '{"city": "Ulm"}'}
    details = {
        "name": "gen_ai.client.inference.operation.details",
        "attributes": pairs({"gen_ai.input.messages": "[1]", "gen_ai.system_instructions": "no JSON ["}),
    }
    send(
        client,
        span({**tool, "gen_ai.tool.call.result": "[20.5]"}, spanId="1" * 16),
        span({"gen_ai.usage.prompt_tokens": 3, "gen_ai.request.model": "m"}, spanId="2" * 16, events=[details]),
        span({"gen_ai.conversation.id": "x" * 200}, spanId="3" * 16, name="GET /", endTimeUnixNano="0"),
    )
    used, said, plain = calls(client)
    assert (used.op, data(used.inputs)) == ("execute_tool", {"arguments": {"city": "Ulm"}})
    assert data(used.output) == {"value": [20.5]}
    assert data(said.inputs) == {"model": "m", "messages": [1], "system_instructions": "no JSON ["}
    assert data(said.summary)["usage"] == {"m": {"requests": 1, "total_tokens": 3, "input_tokens": 3}}
    assert (plain.op, plain.display_name, plain.status, plain.inputs) == ("GET /", None, "running", {})
    assert plain.thread_id is None


@pytest.mark.parametrize(
    ("more", "exception"),
    [
        ({"status": {"code": 2, "message": "no"}}, "no"),
        ({"status": {"code": 2}, "attributes": pairs({"error.type": "timeout"})}, "timeout"),
        ({"status": {"code": 2}}, "error"),
        ({"status": {"code": 1}}, None),
    ],
)
def test_a_span_that_failed_says_so(client: Any, more: Any, exception: str | None) -> None:
    raised = {"exception.type": "ValueError", "exception.message": "bad"}
    for at, (events, expected) in enumerate(
        [
            ([], exception),
            ([raised], exception and "ValueError: bad"),
            ([raised, {"exception.stacktrace": "Traceback"}], exception and "Traceback"),
        ]
    ):
        sent = [{"name": "exception", "attributes": pairs(one)} for one in events]
        send(client, span(spanId=f"{at + 1:016x}", events=sent, **more))
        assert calls(client)[-1].exception == expected


def test_protobuf_and_gzip_are_taken_and_answered_alike(client: Any) -> None:
    message = ExportTraceServiceRequest(
        resource_spans=[
            {
                "scope_spans": [
                    {"spans": [{"trace_id": bytes.fromhex(TRACE), "name": "n", "start_time_unix_nano": BEGAN}]}
                ]
            }
        ]
    )
    kept = message.resource_spans[0].scope_spans[0].spans
    kept.add().CopyFrom(kept[0])
    kept[0].span_id = bytes.fromhex(SPAN)
    raw = gzip.compress(message.SerializeToString())
    for path in (PATH, OTHER, PATH):
        answer = client.send("POST", path, raw=raw, headers=[PROTOBUF, ("content-encoding", "gzip")], check=False)
        assert (answer.status, answer.headers["content-type"]) == (200, "application/x-protobuf")
        said = ExportTraceServiceResponse.FromString(answer.raw).partial_success
        assert (said.rejected_spans, said.error_message) == (
            1,
            "resourceSpans[0].scopeSpans[0].spans[1]: a span needs a trace_id and a span_id",
        )
        assert [one.id for one in calls(client)] == [SPAN]
    kept.pop()
    answer = client.send("POST", PATH, raw=message.SerializeToString(), headers=[PROTOBUF], check=False)
    assert (answer.status, answer.raw) == (200, b"")


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"spanId": "0" * 16}, "span_id"),
        ({"spanId": "xyz"}, "span_id"),
        ({"traceId": "1" * 16}, "trace_id"),
        ({"traceId": ""}, "trace_id"),
        ({"parentSpanId": "12"}, "parent"),
        ({"startTimeUnixNano": "0"}, "start_time"),
        ({"endTimeUnixNano": str(2**63 - 1)}, "times"),
        ({"startTimeUnixNano": -1}, "times"),
        ({"attributes": [{"key": str(at)} for at in range(MAX_ATTRIBUTES + 1)]}, "at most"),
        ({"events": [{}] * (MAX_ATTRIBUTES + 1)}, "at most"),
    ],
)
def test_a_span_that_cannot_be_kept_is_rejected_and_the_others_are_not(client: Any, more: Any, why: str) -> None:
    said = send(client, {**span(), **more}, span(spanId="1" * 16))["partialSuccess"]
    assert said["rejectedSpans"] == "1"
    assert why in said["errorMessage"]
    assert [one.id for one in calls(client)] == ["1" * 16]


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.just("\ud83d"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
MEMBERS = st.sampled_from(
    [*("traceId", "spanId", "parentSpanId", "traceState", "name", "kind", "startTimeUnixNano", "endTimeUnixNano"),
     *("attributes", "events", "links", "status", "flags", "unknown")]
)  # fmt: skip
VALUES = st.dictionaries(
    st.sampled_from(["stringValue", "intValue", "doubleValue", "boolValue", "arrayValue", "kvlistValue", "bytesValue"]),
    ODD,
    max_size=2,
)


@pytest.mark.slow
@examples(60)
@given(
    ODD | st.dictionaries(MEMBERS, ODD, max_size=3).map(lambda odd: {**span(spanId="4" * 16), **odd})
    | VALUES.map(lambda value: span(spanId="4" * 16, attributes=[{"key": "a", "value": value}])),
    st.integers(0, 3),
)  # fmt: skip
def test_one_odd_span_costs_itself_at_most(odd: Any, at: int) -> None:
    with open_platform() as platform:
        client = client_of(platform)
        sent = [span(spanId=f"{number}" * 16) for number in (1, 2, 3)]
        sent.insert(at, odd)
        answer = client.send("POST", PATH, raw=json.dumps(export(*sent)).encode(), check=False)
        assert answer.status == 200, answer.raw
        kept = {one.id for one in platform.compat.traces.calls.list(entity="acme")}
        assert {"1" * 16, "2" * 16, "3" * 16} <= kept
        rejected = answer.json.get("partialSuccess", {})
        assert int(rejected.get("rejectedSpans", 0)) == 4 - len(kept)
        assert not rejected or f"resourceSpans[0].scopeSpans[0].spans[{at}]" in rejected["errorMessage"]


@examples(60)
@given(st.binary(max_size=40), st.integers(0, 3))
def test_one_odd_span_in_protobuf_costs_itself_at_most(odd: bytes, at: int) -> None:
    def written(number: int) -> bytes:
        return within(1, bytes.fromhex(TRACE)) + within(2, bytes([number] * 8)) + b"\x39" + BEGAN.to_bytes(8, "little")

    with open_platform() as platform:
        spans = [written(number) for number in (1, 2, 3)]
        spans.insert(at, odd)
        raw = within(1, within(2, b"".join(within(2, one) for one in spans)))
        answer = client_of(platform).send("POST", PATH, raw=raw, headers=[PROTOBUF], check=False)
        assert answer.status == 200, answer.raw
        kept = {one.id for one in platform.compat.traces.calls.list(entity="acme")}
        assert {"01" * 8, "02" * 8, "03" * 8} <= kept
        said = ExportTraceServiceResponse.FromString(answer.raw).partial_success
        assert said.rejected_spans == 4 - len(kept)


@each_case("character", [*map(chr, range(32))])
def test_a_control_character_that_is_not_escaped_costs_nothing(client: Any, character: str) -> None:
    raw = json.dumps(export(span(name="a~b"))).encode().replace(b"~", character.encode())
    answer = client.send("POST", PATH, raw=raw, check=False)
    assert (answer.status, answer.json) == (200, {})


def test_reasons_are_told_once_with_their_first_place(client: Any) -> None:
    said = send(client, *[span(spanId="x")] * 3, span(name=[]), span(spanId="1" * 16))["partialSuccess"]
    place = "resourceSpans[0].scopeSpans[0].spans"
    assert said == {
        "rejectedSpans": "4",
        "errorMessage": f"{place}[0]: the span_id of a span is not one of OpenTelemetry (and 2 more); "
        f"{place}[3].name: must be one value",
    }


def test_a_parent_of_zeros_is_none(client: Any) -> None:
    send(client, span(parentSpanId="0" * 16))
    assert [(one.id, one.parent_id) for one in calls(client)] == [(SPAN, None)]


def test_a_failure_by_its_name_is_one(client: Any) -> None:
    send(client, span(status={"code": "STATUS_CODE_ERROR", "message": "no"}, kind="SPAN_KIND_CLIENT"))
    (kept,) = calls(client)
    assert (kept.exception, kept.more["otel"]["kind"]) == ("no", 3)


def test_a_large_resource_is_not_kept_with_every_span_of_it(client: Any) -> None:
    answer = client.send("POST", PATH, export(span(), resource={"a": "x" * MAX_ORIGIN}))
    assert "resource" in answer.json["partialSuccess"]["errorMessage"]
    assert calls(client) == []


@pytest.mark.slow
def test_what_is_no_export_is_refused_in_the_encoding_that_was_asked_for(client: Any) -> None:
    def refused(raw: bytes, status: int, *headers: tuple[str, str]) -> Answer:
        answer: Answer = client.send("POST", PATH, raw=raw, headers=headers, check=False)
        assert answer.status == status, answer.raw
        return answer

    assert refused(b"{", 400).json["code"] == 3
    assert refused(b"\xff", 400, PROTOBUF).headers["content-type"] == "application/x-protobuf"
    assert Status.FromString(refused(b"\xff", 400, PROTOBUF).raw).code == 3
    assert "gzip" in refused(b"{}", 400, ("content-encoding", "gzip")).json["message"]
    refused(gzip.compress(b"{}")[:-4], 400, ("content-encoding", "gzip"))
    refused(b"{}", 415, ("content-encoding", "br"))
    refused(b"{}", 415, ("content-type", "text/plain"))
    refused(gzip.compress(b" " * (MAX_EXPORT + 1)), 413, ("content-encoding", "gzip"))
    refused(b" " * (MAX_EXPORT + 1), 413)
    many = json.dumps(export(*[{}] * (MAX_SPANS + 1))).encode()
    assert "export fewer" in refused(many, 400).json["message"]
    assert client.send("POST", PATH, export(), key="").status == 401
    assert calls(client) == []


def test_the_project_is_that_of_the_headers_and_of_the_key(client: Any) -> None:
    for header in (
        ("compat-project", "acme/support"),
        ("openai-project", "acme/support"),
        ("project_id", "acme/support"),
    ):
        send(client, span(), headers=[header])
        assert len(calls(client, project="support")) == 1
        client.platform.compat.traces.calls.delete([SPAN], entity="acme", project="support")
    assert send(client, span(), headers=[("compat-project", "other/x")], status=403)["code"] == 7
    send(client, span(), headers=[("project_id", "other/x")], status=403)
    send(client, span(), headers=[("project_id", "acme")], status=400)
    send(client, span(), headers=[("project_id", "acme/a"), ("project_id", "acme/b")], status=400)
    only = attrs.evolve(client, key=client.platform.keys.create("acme", projects=["support"]).secret)
    send(only, span(), auth="Basic")
    other = client.another("other")
    send(other, span(name="theirs"))
    (mine,) = calls(client, project="support")
    assert (mine.op_name, calls(client)) == ("s", [])
    (theirs,) = client.platform.compat.traces.calls.list(entity="other")
    assert theirs.op_name == "theirs"
    client.platform.compat.traces.calls.delete([SPAN], entity="other")


def test_an_exporter_comes_again_when_the_store_is_busy(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: Any) -> None:
        raise StoreBusy("locked")

    with monkeypatch.context() as patched:
        patched.setattr(client.platform._runtime.store, "transact", busy)
        answer = client.send("POST", PATH, export(span()))
    assert (answer.status, answer.json["code"], "retry-after" in answer.headers) == (503, 14, True)


def test_a_span_around_a_completion_leads_to_its_ledger_row(client: Any) -> None:
    answered = client.chat("one two").json
    send(client, span({"gen_ai.operation.name": "chat", "gen_ai.response.id": answered["id"]}))
    found = client.platform.compat.traces.calls.lineage(SPAN, entity="acme")
    assert found.completion.id == answered["id"]
    (back,) = client.platform.compat.traces.calls.of_completion(answered["id"], entity="acme")
    assert back.id == SPAN
