"""What is recorded is replayed unchanged, whatever was asked and whatever was answered."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends import FixedAnswer
from example_counts import examples
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import (
    CompletionRequest,
    ContentPart,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    TokenLogprob,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    ToolMode,
    Usage,
)
from modelyard.formats.converter import structure_exactly, unstructure
from modelyard.parts.doubles.cassette.cassette import use_cassette
from modelyard.parts.doubles.cassette.redaction import Redactor
from modelyard.parts.doubles.cassette.request_key import request_key, request_of
from modelyard.protocols import ServedModel

ECHO = EchoBackend()
SERVED = ServedModel("echo", ECHO.entries()[0])

texts = st.text(st.characters(), max_size=12)
numbers = st.floats(allow_nan=False, allow_infinity=False)
counts = st.integers(0, 2**40)
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
mappings = st.dictionaries(texts, jsons, max_size=3)


def tuples(of: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(of, max_size=3).map(tuple)


calls = st.builds(ToolCall, texts, texts, texts)
parts = st.builds(ContentPart, texts, texts, mappings)
messages = st.builds(
    Message,
    st.sampled_from(Role),
    st.none() | texts | tuples(parts),
    st.none() | texts,
    tuples(calls),
    st.none() | texts,
)
samplings = st.builds(
    Sampling,
    temperature=numbers,
    top_k=st.none() | st.integers(),
    logit_bias=st.dictionaries(st.integers(), numbers, max_size=3),
    seed=st.none() | st.integers(-(2**32) + 1, 2**32 - 1),
)
requests = st.builds(
    CompletionRequest,
    st.just("echo"),
    st.lists(messages, min_size=1, max_size=3).map(tuple),
    samplings,
    n=st.integers(1, 3),
    max_tokens=st.none() | st.integers(1, 1000),
    stop=tuples(texts),
    logprobs=st.booleans(),
    top_logprobs=st.integers(0, 20),
    tools=tuples(st.builds(Tool, texts, texts, mappings, st.booleans())),
    tool_choice=st.builds(ToolChoice, st.sampled_from(ToolMode), st.none() | texts),
    parallel_tool_calls=st.booleans(),
    response_format=st.builds(ResponseFormat, st.sampled_from(ResponseType), texts, mappings, st.booleans()),
    return_token_ids=st.booleans(),
    streamed=st.booleans(),
    extras=mappings,
)
tokens = st.builds(TokenLogprob, texts, numbers, st.none() | tuples(st.integers(0, 255)), id=st.none() | counts)
deltas = st.builds(
    Delta,
    texts,
    counts,
    st.integers(0, 2),
    st.none() | st.builds(ToolCallDelta, counts, st.none() | texts, st.none() | texts, texts),
    tuples(st.builds(TokenLogprob, texts, numbers, top=tuples(tokens)) | tokens),
    tuples(counts),
    tuples(counts),
    st.none() | st.sampled_from(FinishReason),
    st.none() | st.builds(Usage, counts, counts, counts, counts, st.booleans()),
)


def ask(backend: Any, request: CompletionRequest) -> list[Delta]:
    backend.entries()
    return list(backend.stream(request, SERVED))


def aask(backend: Any, request: CompletionRequest) -> list[Delta]:
    async def collect() -> list[Delta]:
        return [delta async for delta in backend.astream(request, SERVED)]

    return asyncio.run(collect())


@pytest.mark.slow
@examples(50)
@given(requests, st.lists(deltas, max_size=4))
def test_record_then_replay_is_the_identity(request: CompletionRequest, answer: list[Delta]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.jsonl")
        assert ask(use_cassette(path, FixedAnswer(answer), mode="new"), request) == answer
        replay = use_cassette(path)
        assert replay.entries() == ECHO.entries()
        assert replay.capabilities("echo") == ECHO.capabilities("echo")
        assert replay.prompt_tokens(request, SERVED) == ECHO.prompt_tokens(request, SERVED)
        assert ask(replay, request) == answer


@pytest.mark.slow
@examples(15)
@given(requests, st.lists(deltas, max_size=4))
def test_record_then_replay_is_the_identity_on_an_event_loop(request: CompletionRequest, answer: list[Delta]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "c.jsonl")
        assert aask(use_cassette(path, FixedAnswer(answer), mode="new"), request) == answer
        assert aask(use_cassette(path), request) == answer


@pytest.mark.slow
@given(requests)
def test_what_is_kept_of_a_request_is_the_whole_request(request: CompletionRequest) -> None:
    assert request_of(json.loads(json.dumps(request_key(request, SERVED.entry, 7)))) == request


@pytest.mark.slow
@given(deltas)
def test_a_value_is_what_its_json_says(delta: Delta) -> None:
    assert structure_exactly(Delta, json.loads(json.dumps(unstructure(delta)))) == delta


# ---- secrets -----------------------------------------------------------------------------------------------------

CANARY = "sk-canary-0123456789abcdef0123456789"


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=6)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


words = st.text(st.sampled_from("ab ,."), max_size=8)


@pytest.mark.slow
@given(words, words, st.data())
def test_a_secret_is_found_however_a_stream_cuts_it(before: str, after: str, data: st.DataObject) -> None:
    pieces = data.draw(cut(f"{before} {CANARY} {after}"))
    clean = Redactor().pieces(pieces)
    assert len(clean) == len(pieces)
    assert "".join(clean) == f"{before} [redacted] {after}"


@settings(deadline=None)
@given(st.data())
def test_no_piece_of_an_answer_keeps_a_secret(data: st.DataObject) -> None:
    pieces = data.draw(cut(f"it is {CANARY} indeed"))
    answer = [Delta(piece, 1, logprobs=(TokenLogprob(piece, -0.5, tuple(piece.encode()), id=1),)) for piece in pieces]
    answer += [Delta(tool_call=ToolCallDelta(0, arguments=piece)) for piece in pieces]
    clean = Redactor().deltas([attrs.evolve(delta, token_ids=(5,)) for delta in answer])
    texts = ["".join(delta.text for delta in clean)]
    texts.append("".join(delta.tool_call.arguments for delta in clean if delta.tool_call))
    texts.append("".join(entry.token for delta in clean for entry in delta.logprobs))
    texts.append(bytes(byte for delta in clean for entry in delta.logprobs for byte in entry.bytes or ()).decode())
    assert texts == ["it is [redacted] indeed"] * 4
    assert all(delta.token_ids == (0,) for delta, old in zip(clean, answer, strict=True) if delta.text != old.text)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(deltas, max_size=4))
def test_an_answer_without_secrets_is_left_as_it_is(answer: list[Delta]) -> None:
    assert Redactor().deltas(answer) == answer
