"""What servers put where the format has no place for it: failures, compression that is none, lengths that are wrong,
numbers from 1, and members beside those that have them.
"""

import json
import logging
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned_answers import answering
from each import each_case
from example_counts import examples
from modelyard import open_platform
from modelyard.backends import Timeouts, UpstreamBackend, offer
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, Message, Role
from modelyard.errors import BackendError, ContextLengthExceeded, ModelyardError, Overloaded
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.parts.upstream.events import EventReader
from upstream_asking import VLLM, ask, ask_on_loop, backend_at, http, text_of

USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
WHOLE = {"choices": [{"index": 0, "message": {"content": "hi there"}, "finish_reason": "stop"}], "usage": USAGE}
BEGUN = {"choices": [{"index": 0, "delta": {"content": "hi there"}}]}
ENDED = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE}
ONCE = Timeouts(retries=0)


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def document(value: Any) -> bytes:
    return http(json.dumps(value).encode())


def stream(*events: bytes) -> bytes:
    return http(b"".join(events), "text/event-stream")


def asked(answer: bytes, asking: Any = ask) -> Any:
    """The deltas of an answer, or the error."""
    with answering(answer) as url, backend_at(url, timeouts=ONCE) as backend:
        try:
            return asking(backend)
        except ModelyardError as error:
            return error


# ---- compression that is none

BODIES = {
    "document": (json.dumps(WHOLE).encode(), "application/json"),
    "indented": (json.dumps(WHOLE, indent=1).encode(), "application/json"),
    "kept alive": (b"\n\n\n" + json.dumps(WHOLE).encode(), "application/json"),
    "with a mark": (b"\xef\xbb\xbf" + json.dumps(WHOLE).encode(), ""),
    "events": (event(BEGUN) + event(ENDED), "text/event-stream"),
    "named events": (b"event: chunk\n" + event(BEGUN) + b"id: 7\n" + event(ENDED), "text/event-stream"),
    "comments": (b": wait\n\n" + event(BEGUN) + event(ENDED), "text/event-stream"),
    "comments, and a document": (b": wait\n\n: wait\n\n" + json.dumps(WHOLE).encode(), "text/event-stream"),
}
ENCODINGS = ["br", "zstd", "compress", "gzip", "chunked", "aws-chunked, utf8", "br, gzip", "x" * 50]


@each_case(("body", "encoding"), [*product(BODIES, ENCODINGS)])
def test_a_body_that_is_only_said_to_be_compressed_is_read(body: str, encoding: str) -> None:
    raw, label = BODIES[body]
    assert text_of(asked(http(raw, label, more=f"content-encoding: {encoding}\r\n"))) == "hi there"


@each_case("encoding", ENCODINGS)
@each_case(
    ("status", "said", "kind"),
    [
        ("400 Bad Request", "this model's maximum context length is 9 tokens", ContextLengthExceeded),
        ("429 Too Many Requests", "slow down", Overloaded),
        ("500 Internal Server Error", "out of order", BackendError),
    ],
)
def test_so_is_what_a_server_says_of_a_failure(encoding: str, status: str, said: str, kind: Any) -> None:
    body = json.dumps({"error": {"message": said}}).encode()
    error = asked(http(body, status=status, more=f"content-encoding: {encoding}\r\n"))
    assert isinstance(error, kind)
    assert said in str(error)


@each_case("raw", [b"\x1b\x0a\x00\xf8", b"{\x8b\x02\x80abc", b"[\x1f\x00", b"\x28\xb5\x2f\xfd\x04"], ids=repr)
def test_what_is_compressed_is_refused_by_its_name(raw: bytes) -> None:
    assert "compressed with 'br'" in str(asked(http(raw, more="content-encoding: br\r\n")))


# ---- failures in a stream

FAILED = {
    "an event's name": b'event: error\ndata: {"message": "out of order"}\n\n',
    "an event's name, and a code": b'event: error\ndata: {"code": 500, "message": "out of order"}\n\n',
    "an event's name, and the format": b'event: error\ndata: {"error": {"message": "out of order"}}\n\n',
    "an event's name, and text": b"event: error\ndata: out of order\n\n",
    "an event's name, after the data": b"data: out of order\nevent: error\n\n",
    "a field": b'error: {"code": 500, "message": "out of order"}\n\n',
    "a field, and text": b"error: out of order\n\n",
    "a line of JSON": b'{"error": {"message": "out of order"}}\n',
    "lines of JSON": json.dumps({"error": {"message": "out of order"}}, indent=2).encode() + b"\n",
    "lines of JSON in a list": json.dumps({"errors": [{"message": "out of order"}]}, indent=1).encode() + b"\r\n\r\n",
    "lines of JSON, and the end": json.dumps({"error": "out of order"}, indent=0).encode() + b"\ndata: [DONE]\n\n",
    "a line of JSON after a line of the log": b'{ half\n{"error": {"message": "out of order"}}\n',
    "a choice": event({"choices": [{"index": 0, "delta": {}, "error": {"code": 502, "message": "out of order"}}]}),
    "a choice that ends": event(
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": {"message": "out of order"}}]}
    ),
    "a string": event(json.dumps({"error": {"message": "out of order"}})),
}


@each_case("asking", [ask, ask_on_loop])
@each_case("begun", [True, False])
@each_case("form", FAILED)
def test_a_failure_is_told_in_the_server_s_words(form: str, begun: bool, asking: Any) -> None:
    assert "out of order" in str(asked(stream(event(BEGUN) if begun else b": wait\n\n", FAILED[form]), asking))


STRAY = [b"{ half of a line", b'{"half": 1,', b"{'time': 7}", b'{"a": 1} warning', b"{", b"{}}", b'{\n"a": ']


@each_case("asking", [ask, ask_on_loop])
@each_case("end", [b"\n", b"\n\n"])
@each_case("stray", STRAY, ids=repr)
def test_a_line_of_a_log_among_the_events_is_left_out(stray: bytes, end: bytes, asking: Any) -> None:
    answer = stream(event(BEGUN), stray + end, event(ENDED), stray + end)
    assert text_of(asked(answer, asking)) == "hi there"


@each_case("done", [b"[DONE]", b" [DONE] ", b'"[DONE]"', b"[done]"])
@each_case("field", [b"event: error\ndata: ", b"error: "])
def test_an_end_that_is_called_an_error_is_an_end(done: bytes, field: bytes) -> None:
    def ended(*events: bytes) -> str:
        return str(asked(stream(event(BEGUN), *events)))

    assert ended(event(ENDED), field + done + b"\n\n") == ended(event(ENDED), b"data: [DONE]\n\n")
    assert ended(field + done + b"\n\n") == ended(b"data: [DONE]\n\n")


@pytest.mark.parametrize("form", FAILED)
def test_a_complete_answer_is_kept_whatever_comes_after_it(form: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "modelyard"):
        assert text_of(asked(stream(event(BEGUN), event(ENDED), FAILED[form]))) == "hi there"


def test_a_whole_answer_is_kept_though_it_reports_a_failure_and_the_log_tells(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "modelyard"):
        assert text_of(asked(document({**WHOLE, "error": {"message": "the first region was down"}}))) == "hi there"
    assert "the first region was down" in caplog.text
    without = {**WHOLE, "choices": [{"message": {"content": ""}, "finish_reason": "stop"}], "error": "it was down"}
    assert "it was down" in str(asked(document(without)))


@given(st.sampled_from([*FAILED]), st.integers(1, 40), st.sampled_from([b"\n", b"\r\n", b"\r"]))
@examples(60)
def test_failures_are_the_same_however_the_bytes_are_cut(form: str, size: int, newline: bytes) -> None:
    raw = (event(BEGUN) + FAILED[form]).replace(b"\n", newline)
    at_once, cut = EventReader(), EventReader()
    expected = [*at_once.take(raw), *at_once.end()]
    found = [one for at in range(0, len(raw), size) for one in cut.take(raw[at : at + size])]
    assert [*found, *cut.end()] == expected
    assert len(expected) == 2


# ---- lengths that are wrong


@st.composite
def miscounted(draw: st.DrawFn) -> bytes:
    """A whole answer with another length than it has, or with something after it."""
    body = json.dumps(WHOLE).encode() + draw(st.sampled_from([b"", b"\n", b"  \r\n"]))
    kind, head = draw(st.integers(0, 2)), b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    if kind == 0:
        return head + b"content-length: %d\r\n\r\n" % (len(body) + draw(st.integers(1, 500))) + body
    if kind == 1:
        return (
            head
            + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(body)
            + body
            + draw(st.sampled_from([b"", b"\r\n"]))
        )
    return head + b"content-length: %d\r\n\r\n" % len(body) + body + draw(st.binary(max_size=30))


@examples(60)
@given(miscounted(), st.sampled_from([ask, ask_on_loop]))
def test_a_whole_answer_is_read_though_its_length_is_wrong(answer: bytes, asking: Any) -> None:
    assert text_of(asked(answer, asking)) == "hi there"


@each_case("size", [1, 60, len(json.dumps(WHOLE)) - 1])
def test_a_part_of_one_is_not(size: int) -> None:
    cut = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n" + json.dumps(WHOLE).encode()[:size]
    assert "broke the connection off" in str(asked(cut))


# ---- numbers and members


def read(count: int, *chunks: Any) -> list[Delta]:
    """The deltas of chunks that may be taken in the short way, as those of a stream are."""
    request = CompletionRequest("m", (Message(Role.USER, "go"),), n=count, streamed=True)
    reader, found = AnswerReader(request), []
    for chunk in chunks:
        raw = json.dumps(chunk).encode()
        found += reader.take_texts([raw], 0) or reader.take(chunk, raw)
    return [*found, *reader.end(finished=True)]


def texts_of(deltas: list[Delta]) -> dict[int, str]:
    found: dict[int, str] = {}
    for delta in deltas:
        found[delta.index] = found.get(delta.index, "") + delta.text
    return found


@given(st.lists(st.lists(st.text("abc", min_size=1), min_size=1, max_size=4), min_size=2, max_size=4), st.randoms())
@examples(40)
def test_choices_that_are_numbered_from_1_are_all_there(texts: list[list[str]], random: Any) -> None:
    streams = [
        [
            *({"index": at, "delta": {"content": piece}} for piece in pieces),
            {"index": at, "delta": {}, "finish_reason": "stop"},
        ]
        for at, pieces in enumerate(texts, 1)
    ]
    chunks = []
    while any(streams):
        chunks.append({"choices": [random.choice([one for one in streams if one]).pop(0)]})
    whole = {
        "choices": [
            {"index": at, "message": {"content": "".join(pieces)}, "finish_reason": "stop"}
            for at, pieces in enumerate(texts, 1)
        ]
    }
    # Two pieces of which the second begins with the first may be a text that grows; a whole answer has no pieces.
    expected = sorted("".join(pieces) for pieces in texts)
    assert sorted(texts_of(read(len(texts), whole)).values()) == expected
    grows = any(len(pieces) > 1 and pieces[1].startswith(pieces[0]) for pieces in texts)
    assert grows or sorted(texts_of(read(len(texts), *chunks)).values()) == expected


CALL = {"id": "a", "type": "function", "function": {"name": "pay", "arguments": '{"sum": 1}'}}


@each_case("member", ["message", "delta"])
@each_case(
    "choice",
    [
        {"tool_calls": [CALL]},
        {"tool_calls": {"0": CALL}},
        {"tool_calls": {"0": {**CALL, "function": json.dumps(CALL["function"])}}},
        {"function_call": CALL["function"]},
    ],
    ids=["beside", "by number", "as text", "older"],
)
def test_a_call_beside_the_message_is_a_call(member: str, choice: Any) -> None:
    found = read(1, {"choices": [{"index": 0, member: {"content": None}, **choice, "finish_reason": "tool_calls"}]})
    assert [(one.tool_call.name, one.tool_call.arguments) for one in found if one.tool_call] == [("pay", '{"sum": 1}')]
    assert found[-1].finish_reason is FinishReason.TOOL_CALLS


@each_case("name", ["thinking_blocks", "thoughts", "thought"])
@each_case("said", ["hm", [{"type": "thinking", "thinking": "hm", "signature": "x"}]], ids=["text", "parts"])
def test_reasoning_has_many_names(name: str, said: Any) -> None:
    for member in ("message", "delta"):
        chunk = {"choices": [{"index": 0, member: {name: said, "content": "yes"}, "finish_reason": "stop"}]}
        assert [one.reasoning for one in read(1, chunk) if one.reasoning] == ["hm"]


@each_case("message", ["hi there", [{"role": "assistant", "content": "hi there"}]], ids=["text", "a list of one"])
def test_a_message_may_be_its_text_or_the_only_one_of_a_list(message: Any) -> None:
    assert text_of(asked(document({"choices": [{"message": message, "finish_reason": "stop"}]}))) == "hi there"


def test_a_delta_may_be_the_only_one_of_a_list() -> None:
    chunks = [{"choices": [{"index": 0, "delta": [{"content": text}]}]} for text in ("hi", " there")]
    assert text_of(asked(stream(*map(event, chunks), event(ENDED)))) == "hi there"


@each_case("name", ["finish_reason", "finishReason", "stop_reason", "done_reason"])
def test_why_a_choice_ends_has_many_names(name: str) -> None:
    text = {"choices": [{"index": 0, "delta": {"content": "hi there"}, name: "MAX_TOKENS"}]}
    apart = [BEGUN, {"choices": [{"index": 0, "delta": {}, name: "MAX_TOKENS"}]}]
    whole = {"choices": [{"message": {"content": "hi there"}, name: "MAX_TOKENS"}]}
    for answer in (stream(event(text)), stream(*map(event, apart)), document(whole)):
        deltas = asked(answer)
        assert text_of(deltas) == "hi there"
        assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_a_document_may_be_written_twice() -> None:
    deltas = asked(document(json.dumps(WHOLE)))
    assert (text_of(deltas), deltas[-1].usage.prompt_tokens) == ("hi there", 5)
    assert "said" in str(asked(document(json.dumps({"error": {"message": "said"}}))))
    assert "status 500: no answer" in str(asked(document("no answer")))


def test_log_probabilities_may_be_a_list_of_their_own() -> None:
    entry = {"token": "hi", "logprob": -0.5}
    (delta, *_) = read(
        1, {"choices": [{"index": 0, "delta": {"content": "hi"}, "logprobs": [entry], "finish_reason": "stop"}]}
    )
    assert [(one.token, one.logprob) for one in delta.logprobs] == [("hi", -0.5)]


@each_case(
    ("answer", "says"),
    [
        (http(b""), "is empty"),
        (http(b" \n"), "is empty"),
        (document({"message": {"content": "hi"}, "done": True}), "the url must be the base"),
        (document({"type": "message", "content": [{"type": "text", "text": "hi"}]}), "the url must be the base"),
        (document({"object": "response", "output": [], "usage": {"input_tokens": 4}}), "the url must be the base"),
        (stream(event({"type": "message_start"}), event({"type": "message_stop"})), "the url must be the base"),
    ],
)
def test_an_answer_in_another_format_is_called_so(answer: bytes, says: str) -> None:
    assert says in str(asked(answer))


def test_an_answer_in_another_format_is_booked_as_it_says() -> None:
    answer = document({"object": "response", "output": [], "usage": {"input_tokens": 40, "output_tokens": 2}})
    model = offer("m", context_length=99, capabilities=VLLM, pricing=Pricing(prompt="1", completion="10"))
    with (
        answering(answer) as url,
        UpstreamBackend(url, models=[model], timeouts=ONCE) as backend,
        open_platform(backend=backend) as yard,
    ):
        with pytest.raises(BackendError, match="the url must be the base"):
            yard.chat.complete(model="m", messages="x")
        assert [str(usage.cost) for usage in yard.usage.list()] == ["60"]
