"""What strangers reported of tools that serve, a row a report: what is sent, and what must come out."""

import gzip
import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import attrs
import httpx
import pytest

from modelyard import EchoBackend, Pricing, ScriptedBackend, open_platform
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, call, discover, offer
from modelyard.errors import ModelyardError
from modelyard.protocols import Capabilities
from modelyard.testing import HttpxTransport

PRICE = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.01"), input_cache_read=Decimal("0.0001"))
CAN = attrs.evolve(VLLM, token_ids=False, prompt_logprobs=False)
PROMPT = [{"role": "user", "content": "hello"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("get_weather", "get_time")]
CALLS = [("get_weather", '{"city":"Paris"}'), ("get_time", '{"tz":"JST"}')]

# ---- what servers send -----------------------------------------------------------------------------------------------


def reply(body: Any, status: str = "200 OK", kind: str = "application/json", more: str = "") -> bytes:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = f"content-type: {kind}\r\n" if kind else ""
    return f"HTTP/1.1 {status}\r\n{kind}{more}content-length: {len(raw)}\r\n\r\n".encode() + raw


def lines(*chunks: Any, done: bytes = b"data: [DONE]\n\n") -> bytes:
    return (
        b"".join(one if isinstance(one, bytes) else b"data: %s\n\n" % json.dumps(one).encode() for one in chunks) + done
    )


def stream(*chunks: Any, done: bytes = b"data: [DONE]\n\n", kind: str = "text/event-stream", more: str = "") -> bytes:
    return reply(lines(*chunks, done=done), kind=kind, more=more)


def chunk(delta: Any = None, reason: Any = None, **members: Any) -> Any:
    return {"choices": [{"index": 0, "delta": delta or {}, "finish_reason": reason, **members}]}


def usage(prompt: Any = 10, completion: Any = 2, **members: Any) -> Any:
    return {"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": completion, **members}}


def whole(message: Any = None, reason: Any = "stop", counts: Any = None) -> Any:
    said = {"content": "hi there"} if message is None else message
    counted = usage()["usage"] if counts is None else counts
    return {"choices": [{"index": 0, "message": said, "finish_reason": reason}], "usage": counted}


def piece(place: Any, id_: Any = None, name: Any = None, arguments: Any = None) -> Any:
    function = {key: one for key, one in (("name", name), ("arguments", arguments)) if one is not None}
    return {"function": function} | ({} if place == "none" else {"index": place}) | ({"id": id_} if id_ else {})


def calls(*pieces: Any) -> Any:
    return chunk({"tool_calls": list(pieces)})


def both(*places: Any) -> list[Any]:
    """Two calls, each in a chunk of its own, at these places."""
    return [calls(piece(at, id_, *one)) for at, id_, one in zip(places, "ab", CALLS, strict=True)]


HI = [chunk({"content": "hi"}), chunk({"content": " there"})]
END = [chunk({}, "stop"), usage()]
CALLED = [chunk({}, "tool_calls"), usage()]
PLAIN = [*HI, *END]


@attrs.frozen
class Came:
    text: str
    calls: Sequence[tuple[str, str]]
    reason: str
    bill: tuple[int, int, int, bool]
    cost: Decimal


def ask(url: str, streamed: bool, retries: int = 1, **request: Any) -> Came:
    timeouts = Timeouts(retries=retries, backoff=0.001, first_token=60, between_tokens=60)
    model = offer("m", context_length=4096, pricing=PRICE, capabilities=CAN)
    with UpstreamBackend(url, models=[model], timeouts=timeouts) as backend, open_platform(backend=backend) as yard:
        given: Any = {"model": "m", "messages": PROMPT, **request}
        if streamed:
            with yard.chat.stream(**given) as deltas:
                list(deltas)
                completion = deltas.completion
        else:
            completion = yard.chat.complete(**given)
        (choice,), (row,) = completion.choices, yard.usage.list()
        made = [(one.name, one.arguments) for one in choice.message.tool_calls]
        bill = row.prompt_tokens, row.completion_tokens, row.cached_tokens, row.estimated
        return Came(choice.message.text, made, str(choice.finish_reason), bill, row.cost)


# ---- texts -----------------------------------------------------------------------------------------------------------

NO_DELTA = {"choices": [{"index": 0, "finish_reason": None, "content_filter_results": {}}]}
TEXTS: dict[str, tuple[bytes, str]] = {
    "a notice of a filter without a delta": (stream(*HI, NO_DELTA, *END), "hi there"),
    "a delta that is null": (stream(HI[0], {"choices": [{"index": 0, "delta": None}]}, HI[1], *END), "hi there"),
    "the reason eos_token": (stream(*HI, chunk({}, "eos_token"), usage()), "hi there"),
    "the reason STOP": (stream(*HI, chunk({}, "STOP"), usage()), "hi there"),
    "an empty reason each time": (stream(*[chunk(one["choices"][0]["delta"], "") for one in HI], *END), "hi there"),
    "line separators in a text": (stream(chunk({"content": "a\u2028b\x85c"}), *END), "a\u2028b\x85c"),
    "half an emoji in each chunk": (
        stream(chunk({"content": "\ud83d"}), chunk({"content": "\ude00"}), *END),
        "\U0001f600",
    ),
    "data without a space": (stream(lines(*PLAIN).replace(b"data: ", b"data:"), done=b""), "hi there"),
    "carriage returns": (stream(lines(*PLAIN).replace(b"\n", b"\r\n"), done=b""), "hi there"),
    "comments and heartbeats": (stream(b": ping\n\ndata:\n\nevent: ping\ndata: ping\n\n", *PLAIN), "hi there"),
    "an event in two lines of data": (
        stream(b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"hi there"}}]}\n\n', *END),
        "hi there",
    ),
    "no [DONE]": (stream(*PLAIN, done=b""), "hi there"),
    "[done] in lower case": (stream(*PLAIN, done=b"data: [done]\n\n"), "hi there"),
    "no line after the last event": (stream(lines(*HI, END[0], done=b"")[:-2], done=b""), "hi there"),
    "a stream called plain text": (stream(*PLAIN, kind="text/plain; charset=utf-8"), "hi there"),
    "a stream without a type": (stream(*PLAIN, kind=""), "hi there"),
    "a document for a stream": (reply(whole()), "hi there"),
    "a stream in gzip": (
        reply(gzip.compress(lines(*PLAIN)), kind="text/event-stream", more="content-encoding: gzip\r\n"),
        "hi there",
    ),
    "a member that comes twice": (stream(b'data: {"id":1,"id":2,"choices":[]}\n\n', *PLAIN), "hi there"),
    "NaN in a member that no one reads": (
        stream(b'data: {"choices":[],"timings":{"tps":NaN}}\n\n', *PLAIN),
        "hi there",
    ),
    "a byte order mark": (stream(b"\xef\xbb\xbf", *PLAIN), "hi there"),
    "thinking as a part": (
        stream(chunk({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}), *PLAIN),
        "hi there",
    ),
}
DOCUMENTS: dict[str, tuple[bytes, str]] = {
    "the reason eos": (reply(whole(reason="eos")), "hi there"),
    "a stream for a document": (stream(*PLAIN), "hi there"),
    "a document in gzip": (
        reply(gzip.compress(json.dumps(whole()).encode()), more="content-encoding: gzip\r\n"),
        "hi there",
    ),
    "created": (reply(whole(), "201 Created"), "hi there"),
    "not authoritative": (reply(whole(), "203 Non-Authoritative Information"), "hi there"),
    "a seed beyond 64 bits": (reply({**whole(), "seed": 15478239417263476000}), "hi there"),
    "a byte order mark": (reply(b"\xef\xbb\xbf" + json.dumps(whole()).encode()), "hi there"),
    "content in parts": (
        reply(whole({"content": [{"type": "text", "text": "hi"}, {"type": "text", "text": " there"}]})),
        "hi there",
    ),
    "no message": (reply({"choices": [{"index": 0, "finish_reason": "length"}], "usage": {"prompt_tokens": 10}}), ""),
}


@pytest.mark.parametrize(("streamed", "what"), [*((True, one) for one in TEXTS), *((False, one) for one in DOCUMENTS)])
def test_an_answer_is_read_however_it_is_written(canned: Any, streamed: bool, what: str) -> None:
    sent, text = (TEXTS if streamed else DOCUMENTS)[what]
    assert ask(canned(sent), streamed).text == text


# ---- calls -----------------------------------------------------------------------------------------------------------

CITY = '{"city":"Paris"}'
IN_PIECES: dict[str, tuple[list[Any], list[tuple[str, str]]]] = {
    "no index": (both("none", "none"), CALLS),
    "an index that is null": (both(None, None), CALLS),
    "one index for both": (both(0, 0), CALLS),
    "an index for the first only": (both(0, "none"), CALLS),
    "both in a chunk, of one index": ([calls(piece(0, "a", *CALLS[0]), piece(0, "b", *CALLS[1]))], CALLS),
    "two entries of one call": (
        [calls(piece(0, "a", "get_weather"), piece(0, arguments='{"city":')), calls(piece(0, arguments='"Paris"}'))],
        CALLS[:1],
    ),
    "the name in a later piece": ([calls(piece(0, "a", None, "")), calls(piece(0, None, *CALLS[0]))], CALLS[:1]),
    "arguments as an object": ([calls(piece(0, "a", "get_weather", {"city": "Paris"}))], CALLS[:1]),
}


@pytest.mark.parametrize("what", IN_PIECES)
def test_calls_are_put_together_and_told_apart(canned: Any, what: str) -> None:
    chunks, made = IN_PIECES[what]
    found = ask(canned(stream(*chunks, *CALLED)), True, tools=TOOLS).calls
    assert [(name, json.loads(arguments)) for name, arguments in found] == [(n, json.loads(a)) for n, a in made]


# ---- bills -----------------------------------------------------------------------------------------------------------

BILLS: dict[str, tuple[list[Any], tuple[int, int, int]]] = {
    "counts that grow": ([usage(10, 0), usage(10, 1), usage(10, 2)], (10, 2, 0)),
    "the prompt first, the answer last": (
        [usage(1000, 0), {"choices": [], "usage": {"completion_tokens": 2}}],
        (1000, 2, 0),
    ),
    "an empty one at the end": ([usage(1000, 2), {"choices": [], "usage": {}}], (1000, 2, 0)),
    "within the choice": ([chunk({}, "stop", usage=usage(1000, 2)["usage"])], (1000, 2, 0)),
    "whole numbers as floats": ([usage(10.0, 2.0)], (10, 2, 0)),
    "numbers as strings": ([usage("10", "2")], (10, 2, 0)),
    "reasoning besides the answer": (
        [usage(32, 9, total_tokens=135, completion_tokens_details={"reasoning_tokens": 94})],
        (32, 103, 0),
    ),
    "reasoning within the answer": (
        [usage(10, 100, total_tokens=110, completion_tokens_details={"reasoning_tokens": 90})],
        (10, 100, 0),
    ),
    "hits of a cache": ([usage(prompt_cache_hit_tokens=8, prompt_cache_miss_tokens=2)], (10, 2, 8)),
    "cached_tokens": ([usage(cached_tokens=8)], (10, 2, 8)),
    "cache_read_input_tokens": ([usage(cache_read_input_tokens=8)], (10, 2, 8)),
    "more cached than there are": ([usage(prompt_tokens_details={"cached_tokens": 50})], (10, 2, 10)),
}


@pytest.mark.parametrize("what", BILLS)
def test_what_a_server_counts_is_what_is_booked(canned: Any, what: str) -> None:
    chunks, (prompt, completion, cached) = BILLS[what]
    came = ask(canned(stream(*HI, chunk({}, "stop"), *chunks)), True)
    assert (came.text, came.bill) == ("hi there", (prompt, completion, cached, False))
    fresh = (prompt - cached) * Decimal("0.001") + cached * Decimal("0.0001")
    assert came.cost == fresh + completion * Decimal("0.01")


@pytest.mark.parametrize("counts", [{}, {"total_tokens": 0}, usage(None, None)["usage"], usage(0, 0)["usage"], "n/a"])
def test_what_is_not_counted_is_estimated(canned: Any, counts: Any) -> None:
    prompt, completion, _, estimated = ask(canned(reply(whole(counts=counts))), False).bill
    assert (prompt > 0, completion > 0, estimated) == (True, True, True)


# ---- failures --------------------------------------------------------------------------------------------------------

BUSY = {"error": {"message": "busy"}}
FAILED: dict[str, tuple[bytes, str]] = {
    "an error amid a stream": (stream(*HI, {"error": {"message": "limit reached", "code": 400}}), "limit reached"),
    "another envelope": (reply({"code": 1113, "msg": "Insufficient balance"}), "Insufficient balance"),
    "a success that is none": (stream({"success": False, "message": "quota is used up"}), "quota is used up"),
    "a list of errors": (reply([{"error": {"message": "Unknown name x"}}], "400 x"), "Unknown name x"),
    "an error in gzip": (
        reply(gzip.compress(json.dumps(BUSY).encode()), "400 x", more="content-encoding: gzip\r\n"),
        "busy",
    ),
    "a stream that breaks off": (stream(*HI, done=b""), "not complete"),
}


@pytest.mark.parametrize("what", FAILED)
def test_a_failure_says_what_the_server_said(canned: Any, what: str) -> None:
    sent, words = FAILED[what]
    with pytest.raises(ModelyardError, match=re.escape(words)) as failed:
        ask(canned(sent), b"event-stream" in sent, retries=0)
    assert "\ufffd" not in str(failed.value)


@pytest.mark.parametrize("status", ["429 x", "502 x", "520 x", "522 x", "524 x", "529 x", "530 x"])
def test_faults_of_a_server_are_tried_again(canned: Any, status: str) -> None:
    long_ago = "retry-after: Wed, 21 Oct 2015 07:28:00 GMT\r\n"
    assert ask(canned(reply(BUSY, status, more=long_ago), reply(whole())), False).text == "hi there"


# ---- other routes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ([{"index": 1, "embedding": [3, 4]}, {"index": 0, "embedding": "AACAPwAAAEA="}], [[1, 2], [3, 4]]),
        ([{"embedding": [1, 2]}, {"embedding": [3, 4]}], [[1, 2], [3, 4]]),
    ],
)
def test_embeddings_come_in_order(canned: Any, data: Any, wanted: Any) -> None:
    model = offer("e", context_length=9, pricing=PRICE, capabilities=Capabilities(embedding_size=2, completions=False))
    url = canned(reply({"data": data, "usage": {"prompt_tokens": 4}}))
    with UpstreamBackend(url, models=[model]) as backend, open_platform(backend=backend) as yard:
        assert [[*one] for one in yard.embeddings.create(model="e", input=["a", "b"]).vectors] == wanted


def test_a_bare_list_of_models_is_one(canned: Any) -> None:
    found = discover(canned(reply([{"id": "m", "context_length": 50}])), pricing={"m": Pricing()})
    assert [one.entry.id for one in found] == ["m"]


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
SPOKEN = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "yo"}]}
ANSWERED = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "42"}]}
SENT: list[tuple[str, str, Any, int]] = [
    (
        "no content next to calls",
        "chat/completions",
        [*PROMPT, {"role": "assistant", "content": None, "tool_calls": [CALL]}, ANSWERED],
        200,
    ),
    ("half an emoji", "chat/completions", [{"role": "user", "content": "\ud83d"}], 400),
    (
        "an empty item of reasoning",
        "responses",
        [{"type": "reasoning", "id": "r", "summary": None}, *PROMPT, SPOKEN, *PROMPT],
        200,
    ),
]


@pytest.mark.parametrize(("what", "path", "given", "status"), SENT)
def test_a_request_is_read_or_refused(what: str, path: str, given: Any, status: int) -> None:
    member = "messages" if path == "chat/completions" else "input"
    with open_platform(backend=EchoBackend(["org/m"])) as yard:
        headers = {"authorization": f"Bearer {yard.keys.create().secret}", "content-type": "application/json"}
        with httpx.Client(transport=HttpxTransport(yard), base_url="http://x", headers=headers) as client:
            body = json.dumps({"model": "org/m", member: given})
            assert client.post(f"/v1/{path}", content=body).status_code == status
            assert [client.get(f"/v1/models/{name}").status_code for name in ("org/m", "org%2Fm")] == [200, 200]


NUMBER: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
    "additionalProperties": False,
}
NAMES = {"type": "object", "additionalProperties": {"type": "integer"}, "propertyNames": {"enum": ["a", "b"]}}


@pytest.mark.parametrize(
    ("answer", "asked"),
    [
        ('{"a": "no"}', {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NUMBER}}}),
        ('{"c": 1}', {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": NAMES}}}),
        (
            call("f", z=1),
            {"tools": [{"type": "function", "function": {"name": "f", "parameters": NUMBER, "strict": True}}]},
        ),
    ],
)
def test_a_scripted_answer_fits_what_was_asked(answer: Any, asked: Any) -> None:
    with (
        open_platform(backend=ScriptedBackend([answer])) as yard,
        pytest.raises(ModelyardError, match="valid under its schema"),
    ):
        yard.chat.complete(model="scripted", messages="x", **asked)
