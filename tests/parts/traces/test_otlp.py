"""OTLP read by this platform is what the protocol's own classes read."""

import base64
import json
import math
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from google.rpc.status_pb2 import Status
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from each import each_case
from example_counts import examples
from modelyard.errors import InvalidInput
from modelyard.parts.traces import otlp
from modelyard.parts.traces.http.spans import SentSpan, spans_in
from modelyard.parts.traces.otlp import Unread, attributes_of, numbered, plain, read_json, read_protobuf, within

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = st.recursive(
    st.one_of(
        st.just({}),
        st.fixed_dictionaries({"string_value": TEXT}),
        st.fixed_dictionaries({"bool_value": st.booleans()}),
        st.fixed_dictionaries({"int_value": st.integers(-(2**63), 2**63 - 1)}),
        st.fixed_dictionaries({"double_value": st.floats(allow_nan=True)}),
        st.fixed_dictionaries({"bytes_value": st.binary(max_size=8)}),
    ),
    lambda inner: st.one_of(
        st.fixed_dictionaries({"array_value": st.fixed_dictionaries({"values": st.lists(inner, max_size=3)})}),
        st.fixed_dictionaries(
            {
                "kvlist_value": st.fixed_dictionaries(
                    {"values": st.lists(st.fixed_dictionaries({"key": TEXT, "value": inner}), max_size=3)}
                )
            }
        ),
    ),
    max_leaves=6,
)
ATTRIBUTES = st.lists(st.fixed_dictionaries({"key": TEXT, "value": VALUES}), max_size=3)
FIXED = st.integers(0, 2**64 - 1)
SPANS = st.fixed_dictionaries(
    {
        "trace_id": st.binary(min_size=16, max_size=16),
        "span_id": st.binary(min_size=8, max_size=8),
        "parent_span_id": st.binary(max_size=8),
        "name": TEXT,
        "kind": st.integers(0, 5),
        "flags": st.integers(0, 2**32 - 1),
        "start_time_unix_nano": FIXED,
        "dropped_attributes_count": st.integers(0, 2**32 - 1),
        "attributes": ATTRIBUTES,
        "events": st.lists(
            st.fixed_dictionaries({"time_unix_nano": FIXED, "name": TEXT, "attributes": ATTRIBUTES}), max_size=2
        ),
        "links": st.lists(st.fixed_dictionaries({"trace_id": st.binary(max_size=16), "trace_state": TEXT}), max_size=2),
        "status": st.fixed_dictionaries({"code": st.integers(0, 2), "message": TEXT}),
    }
)
EXPORTS = st.builds(
    lambda spans, attributes, name: ExportTraceServiceRequest(
        resource_spans=[
            {"resource": {"attributes": attributes}, "scope_spans": [{"scope": {"name": name}, "spans": spans}]}
        ]
    ),
    st.lists(SPANS, max_size=2),
    ATTRIBUTES,
    TEXT,
)
TIMES = ("startTimeUnixNano", "endTimeUnixNano")
LEFT_OUT = ("droppedAttributesCount", "droppedEventsCount", "droppedLinksCount", "schemaUrl")


def theirs(value: Any, name: str = "") -> Any:
    """The JSON form of a message as OTLP has it, with integers in the place of their digits."""
    if isinstance(value, dict):
        return {key: theirs(member, key) for key, member in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [theirs(item) for item in value]
    if name in ("traceId", "spanId", "parentSpanId"):
        return base64.b64decode(value).hex()
    return int(value) if name in ("intValue", "startTimeUnixNano", "timeUnixNano") else value


@pytest.mark.slow
@examples(50)
@given(EXPORTS)
def test_protobuf_and_json_are_read_as_the_protocols_own_classes_read_them(export: Any) -> None:
    shown = theirs(MessageToDict(export, use_integers_for_enums=True))
    assert read_protobuf(export.SerializeToString()) == shown
    if all(0 <= number < 2**63 for number in fixed(shown)):
        assert read_json(json.dumps(shown).encode()) == shown


def fixed(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        for key, member in value.items():
            yield from fixed(member, key)
    elif isinstance(value, list):
        for item in value:
            yield from fixed(item)
    elif name.endswith("UnixNano"):
        yield value


@pytest.mark.slow
@examples(100)
@given(EXPORTS, st.data())
def test_bytes_that_are_no_message_are_refused_or_read_as_another(export: Any, data: Any) -> None:
    raw = bytearray(export.SerializeToString() + b"\x00")
    for _ in range(data.draw(st.integers(0, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_protobuf(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    except InvalidInput as refused:
        assert refused.problems[0].loc[0] == "body"


@each_case(
    ("raw", "why"),
    [
        (b"\x0a", "whole"),
        (b"\x0a\x05\x00", "whole"),
        (b"\x0a" + b"\xff" * 11, "whole"),
        (b"\x00\x00", "whole"),
        (b"\x0b\x0c", "not a protobuf message"),
        (b"\x0a\x06\x12\x04\x0a\x02\x0a\x00"[:6], "whole"),
    ],
)
def test_what_protobuf_cannot_be_is_refused_by_its_reason(raw: bytes, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        read_protobuf(raw)


def test_fields_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_FIELDS", 3)
    read_protobuf(b"\x0a\x00" * 3)
    with pytest.raises(InvalidInput, match="more than 3 fields"):
        read_protobuf(b"\x0a\x00" * 4)


def test_values_in_one_another_have_a_limit() -> None:
    value = b""
    for _ in range(60):
        value = within(5, within(1, value))
    span = within(9, within(2, value))
    (sent,) = spans_in(read_protobuf(within(1, within(2, within(2, span)))))
    assert isinstance(sent, Unread)
    assert "deeper" in sent.why


@pytest.mark.parametrize(("body", "loc"), [([], ()), ({"resourceSpans": {}}, ("resourceSpans",))])
def test_json_that_is_no_export_is_refused_by_its_place(body: Any, loc: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_json(json.dumps(body).encode())
    assert refused.value.problems[0].loc == ("body", *loc)


AT = ("resourceSpans", 0, "scopeSpans", 0)


@each_case(
    ("resource", "unread"),
    [
        (1, Unread(AT[:2], "must be an object")),
        ({"resource": "x", "scopeSpans": [{"spans": [{}, {}]}]}, Unread((*AT[:2], "resource"), "must be an object", 2)),
        ({"scopeSpans": [{"scope": {"name": []}, "spans": [1]}]}, Unread((*AT, "scope", "name"), "must be one value")),
        ({"scopeSpans": [{"spans": {}}]}, Unread((*AT, "spans"), "must be a list")),
        ({"scopeSpans": [{"spans": [{"name": {}}]}]}, Unread((*AT, "spans", 0, "name"), "must be one value")),
    ],
)
def test_what_cannot_be_read_costs_itself(resource: Any, unread: Unread) -> None:
    good = {"scopeSpans": [{"spans": [{"name": "kept"}]}]}
    found = read_json(json.dumps({"resourceSpans": [resource, good]}).encode())
    assert [one for one in spans_in(found) if isinstance(one, Unread)] == [unread]
    assert [one.span for one in spans_in(found) if isinstance(one, SentSpan)] == [{"name": "kept"}]


@each_case(
    ("sent", "read"),
    [
        ({"intValue": "1.5"}, 1.5),
        ({"intValue": 1.5}, 1.5),
        ({"intValue": 7.0}, 7),
        ({"intValue": "1e3"}, 1000),
        ({"intValue": 10**20}, 1e20),
        ({"intValue": str(2**70)}, 2.0**70),
        ({"intValue": "9" * 400}, "9" * 400),
        ({"intValue": "many"}, "many"),
        ({"boolValue": 1}, 1),
        ({"doubleValue": "x"}, "x"),
        ({"doubleValue": "2.5"}, 2.5),
        ({"doubleValue": 10**400}, "Infinity"),
        ({"doubleValue": math.nan}, "NaN"),
        ({"doubleValue": -math.inf}, "-Infinity"),
        ({"stringValue": 3}, 3),
        ({"stringValue": "a\ud83d \ud83d\ude00"}, "a\ufffd \U0001f600"),
    ],
)
def test_values_of_attributes_are_read_in_any_form(sent: Any, read: Any) -> None:
    attributes = [{"key": "a", "value": sent}]
    found = read_json(json.dumps({"resourceSpans": [{"resource": {"attributes": attributes}}]}).encode())
    assert json.dumps(attributes_of(found["resourceSpans"][0]["resource"])) == json.dumps({"a": read})


@each_case(
    ("span", "read"),
    [
        ({"kind": "SPAN_KIND_CLIENT"}, {"kind": 3}),
        ({"kind": "server", "status": {"code": "STATUS_CODE_ERROR"}}, {"kind": 2, "status": {"code": 2}}),
        ({"kind": "another", "flags": "x"}, {}),
        ({"startTimeUnixNano": 1.5e18, "endTimeUnixNano": "15e17"}, dict.fromkeys(TIMES, 15 * 10**17)),
        ({"name": 3}, {"name": "3"}),
    ],
)
def test_members_of_spans_are_read_in_any_form(span: Any, read: Any) -> None:
    found = read_json(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode())
    assert found["resourceSpans"][0]["scopeSpans"][0]["spans"] == [read]


def test_text_that_is_not_unicode_is_read() -> None:
    name = within(5, b"a\xff\xed\xa0\xbd")
    (sent,) = spans_in(read_protobuf(within(1, within(2, within(2, name)))))
    assert isinstance(sent, SentSpan)
    assert sent.span == {"name": "a\ufffd\ufffd\ufffd\ufffd"}
    (other,) = spans_in(read_json(b'\xef\xbb\xbf{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"\xff"}]}]}]}'))
    assert isinstance(other, SentSpan)
    assert other.span == {"name": "\ufffd"}


def test_values_are_plain_data() -> None:
    pair = {"key": "a", "value": {"kvlistValue": {"values": [{"key": "b", "value": {"doubleValue": "NaN"}}]}}}
    assert attributes_of({"attributes": [pair, {"key": "c"}]}) == {"a": {"b": "NaN"}, "c": None}
    assert plain({"bytesValue": "AAE="}) == "AAE="


@pytest.mark.parametrize(("number", "text"), [(1, "x"), (300, "a" * 200), (2**40, "é")])
def test_answers_are_messages_of_the_protocol(number: int, text: str) -> None:
    answer = ExportTraceServiceResponse.FromString(within(1, numbered(number, text)))
    assert (answer.partial_success.rejected_spans, answer.partial_success.error_message) == (number, text)
    if number < 2**31:
        status = Status.FromString(numbered(number, text))
        assert (status.code, status.message) == (number, text)
