"""Log-probabilities stand next to their text, whether they come with it, before it or after it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from canned_answers import answering
from example_counts import examples
from modelyard.backends import Timeouts
from modelyard.backends.deltas import one_by_one
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role, token_bytes
from modelyard.errors import BackendError
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.platform.chat.assembly import fold_choice
from modelyard.platform.chat.delta_checks import validate_delta
from upstream_asking import backend_at, http, request_of, served

ASKED = CompletionRequest("m", (Message(Role.USER, "go"),), max_tokens=99, logprobs=True, streamed=True)
TOKENS = st.lists(st.text("ab é🙂", min_size=1, max_size=4), min_size=1, max_size=8)
USAGE = {"prompt_tokens": 10, "completion_tokens": 2}


def entries_of(tokens: Sequence[bytes], begin: int = 0) -> dict[str, Any]:
    return {
        "content": [
            {"token": raw.decode(errors="replace"), "logprob": -float(begin + at), "bytes": list(raw)}
            for at, raw in enumerate(tokens)
        ]
    }


def chunk(content: str = "", logprobs: Any = None, reason: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "logprobs": logprobs, "finish_reason": reason}]}


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], str, list[dict[str, Any]]]:
    """Tokens, their text, and chunks in which texts and log-probabilities come in any steps of their own."""
    text = "".join(draw(TOKENS))
    raw = text.encode()
    cuts = sorted({0, len(raw), *draw(st.lists(st.integers(0, len(raw)), max_size=6))})
    tokens = [raw[start:end] for start, end in pairwise(cuts)]
    chunks, at, said = [], 0, 0
    steps = draw(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=8))
    for more, further in [*steps, (99, 99)]:
        chunks.append(chunk(text[said : said + further], entries_of(tokens[at : at + more], at) if more else None))
        at, said = min(len(tokens), at + more), min(len(text), said + further)
    return tokens, text, chunks


def read(chunks: Sequence[Any], request: CompletionRequest = ASKED) -> list[Delta]:
    reader = AnswerReader(request)
    found = [delta for one in chunks for delta in reader.take(one, b"{}")]
    return [*found, *reader.end(finished=True)]


@pytest.mark.slow
@given(streams(), st.sampled_from(["stop", "length"]))
@example(([b"hi", b" there"], "hi there", [chunk("hi there"), chunk("", entries_of([b"hi", b" there"]))]), "stop")
@examples(200)
def test_each_piece_of_text_has_the_log_probabilities_of_its_tokens(given: Any, reason: str) -> None:
    tokens, text, chunks = given
    found = read([*chunks, chunk("", None, reason), {"choices": [], "usage": USAGE}])
    for delta in found:
        validate_delta(delta, 1)
        assert b"".join(map(token_bytes, delta.logprobs)) == delta.text.encode()
    choice = fold_choice(0, found, True)
    assert choice.message.text == text
    assert choice.logprobs is not None
    assert [(token_bytes(one), one.logprob) for one in choice.logprobs] == [
        (raw, -float(at)) for at, raw in enumerate(tokens)
    ]


@pytest.mark.parametrize("last", [chunk("", entries_of([b"hi", b" there"]), "stop"), None])
def test_those_of_a_whole_stream_may_come_at_its_end(canned: Any, either: Any, last: Any) -> None:
    message = {"index": 0, "message": {"content": "hi there"}, "finish_reason": "stop"}
    whole = {"choices": [{**message, "logprobs": entries_of([b"hi", b" there"])}]}
    chunks = [chunk("hi"), chunk(" there"), last or whole]
    body = b"".join([b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks]) + b"data: [DONE]\n\n"
    with backend_at(canned(http(body, "text/event-stream"))) as backend:
        deltas = either(backend, streamed=True, logprobs=True)
    assert [(delta.text, [one.token for one in delta.logprobs]) for delta in deltas if delta.text] == [
        ("hi there", ["hi", " there"])
    ]


def test_tokens_in_a_spelling_of_their_own_go_on_as_they_come() -> None:
    found = read([chunk("hi", entries_of([b"_hi"])), chunk(" there", entries_of([b"_there"])), chunk("", None, "stop")])
    assert [(delta.text, len(delta.logprobs)) for delta in found] == [("hi", 1), (" there", 1), ("", 0)]


@pytest.mark.parametrize(("reason", "texts"), [("stop", ["hi", ""]), ("length", ["hi", "</s>"])])
def test_a_token_that_no_text_follows_keeps_its_log_probability(reason: str, texts: list[str]) -> None:
    found = read([chunk("hi", entries_of([b"hi"])), chunk("", entries_of([b"</s>"])), chunk("", None, reason)])
    assert [one.token for delta in found for one in delta.logprobs] == texts


def test_ids_may_come_after_their_text() -> None:
    later = {"choices": [{"index": 0, "delta": {}, "token_ids": [7, 8], "finish_reason": "stop"}]}
    request = CompletionRequest("m", (Message(Role.USER, "go"),), return_token_ids=True, streamed=True)
    found = read([chunk("hi there"), later], request)
    assert [(delta.text, delta.token_ids) for delta in found] == [("hi there", (7, 8)), ("", ())]


@pytest.mark.parametrize("wanted", [{"logprobs": True}, {"return_token_ids": True}], ids=["logprobs", "ids"])
@pytest.mark.parametrize("member", ["content", "reasoning"])
@pytest.mark.parametrize("failure", [b"", b"error: boom\n\n"], ids=["cut", "failed"])
def test_text_that_waits_for_its_details_is_paid_for_when_they_do_not_come(
    wanted: dict[str, Any], member: str, failure: bytes
) -> None:
    begun = {"choices": [{"index": 0, "delta": {member: "hi there"}}]}
    raw = b"data: " + json.dumps(begun).encode() + b"\n\n" + failure
    spent: list[Delta] = []
    with answering(http(raw, "text/event-stream")) as url, backend_at(url, timeouts=Timeouts(retries=0)) as backend:
        deltas = one_by_one(backend.stream(request_of(streamed=True, **wanted), served(backend)))
        with pytest.raises(BackendError):
            spent.extend(deltas)
    (usage,) = (delta.usage for delta in spent if delta.usage is not None)
    assert (usage.completion_tokens, usage.estimated) == (2, True)
