"""Whatever JSON a server answers with: its readers give something, or refuse it, and nothing else."""

import contextlib
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.completion import CompletionRequest, Message, Role, Tool
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.upstream.answers.embeddings import counted_tokens, read_answer
from modelyard.parts.upstream.answers.prompts import PromptAnswerReader
from modelyard.parts.upstream.answers.reader import AnswerBrokenOff, AnswerReader
from modelyard.parts.upstream.answers.values import objects_of, read_values
from modelyard.parts.upstream.errors import Head, failed_inside, refusal, reported
from modelyard.parts.upstream.models import read_list

LONG = "9" * 5000
MEMBERS = [
    *("choices", "message", "delta", "content", "text", "parts", "tool_calls", "function", "arguments", "name", "id"),
    *("function_call", "index", "finish_reason", "logprobs", "top_logprobs", "token", "bytes", "logprob", "token_ids"),
    *("tokens", "token_logprobs", "prompt_logprobs", "decoded_token", "rank", "usage", "prompt_tokens", "model_info"),
    *("completion_tokens", "total_tokens", "completion_tokens_details", "reasoning_tokens", "reasoning_details"),
    *("data", "embedding", "embeddings", "values", "result", "response", "error", "code", "detail", "loc", "status"),
    *("models", "meta", "type", "thinking", "stop_reason", "audio", "0", "1", "\u0663", "\u00b2", LONG, "-1", ""),
]
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.sampled_from([10**400, "x", "12", "\ud83d", "[1,", '{"a": 1}', "stop", "error", LONG, "text", "assistant", ""])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(MEMBERS), inner, max_size=4),
    max_leaves=20,
)


def nested(value: Any, name: str, depth: int) -> Any:
    for _ in range(depth):
        value = {name: value} if name else [value]
    return value


ASKED = CompletionRequest("m", (Message(Role.USER, "x"),), max_tokens=9, n=2, tools=(Tool("look"), Tool("pay")))
TOLD = CompletionRequest("m", (), prompt="x", max_tokens=9, logprobs=True, top_logprobs=2, return_token_ids=True)


def taken(reader: AnswerReader, value: Any) -> None:
    for _ in range(2):
        reader.take(value)
    reader.end(True)


READERS: dict[str, Callable[[Any], Any]] = {
    "chunks": lambda value: taken(AnswerReader(ASKED), value),
    "chunks with details": lambda value: taken(AnswerReader(TOLD), value),
    "prompts": lambda value: taken(PromptAnswerReader(TOLD), value),
    "an answer": lambda value: AnswerReader(ASKED).whole([value]),
    "an answer with details": lambda value: AnswerReader(TOLD).whole([value]),
    "objects": objects_of,
    "embeddings": lambda value: read_answer(value, 1, 1),
    "counts": counted_tokens,
    "failures": lambda value: failed_inside(value, "key") if isinstance(value, dict) else None,
    "reports": lambda value: reported(value, "key"),
    "refusals": lambda value: refusal(Head(400), json.dumps(value).encode(), "key", datetime.now(UTC)),
    "models": read_list,
    "bytes": lambda value: read_values(json.dumps(value).encode()),
}
WRAPPED = [
    lambda value: value,
    lambda value: {"choices": value},
    lambda value: {"choices": [{"index": 0, "message": value, "finish_reason": "stop"}]},
    lambda value: {"choices": [{"index": 0, "delta": {"content": value, "tool_calls": value}, "logprobs": value}]},
    lambda value: {"choices": [{"text": "x", "logprobs": value, "prompt_logprobs": value, "token_ids": value}]},
    lambda value: {"data": value, "usage": value},
    lambda value: {"error": value},
]


@pytest.mark.parametrize("name", READERS)
@given(value=values, wrap=st.sampled_from(WRAPPED))
@example(value={"0": {}, "usage": {}}, wrap=WRAPPED[0])
@example(value={"0": {}, "usage": {}}, wrap=WRAPPED[1])
@example(value={LONG: {}}, wrap=WRAPPED[1])
@example(value=[{LONG: {}}], wrap=WRAPPED[4])
@example(value={"0": {"embedding": [1.0]}, "meta": {}}, wrap=WRAPPED[5])
@examples(60)
def test_any_json_is_read_or_refused(name: str, value: Any, wrap: Callable[[Any], Any]) -> None:
    with contextlib.suppress(InvalidInput, BackendError, AnswerBrokenOff):
        READERS[name](wrap(value))


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("member", ["", "content", "error", "data", "choices", "0"])
def test_so_is_json_that_is_nested_deeply(name: str, member: str) -> None:
    for wrap in WRAPPED:
        with contextlib.suppress(InvalidInput, BackendError, AnswerBrokenOff):
            READERS[name](wrap(nested("x", member, 700)))


@pytest.mark.parametrize(
    "given", [{"0": {"a": 1}, "usage": {}}, {"usage": {}, "0": {"a": 1}}, {"0": {"a": 1}, LONG: {}}], ids=[*"abc"]
)
def test_objects_by_their_numbers_are_told_from_what_stands_among_them(given: Any) -> None:
    assert objects_of(given) == [{"index": 0, "a": 1}]


@pytest.mark.parametrize("first", [True, False])
def test_embeddings_by_their_numbers_are_read_next_to_another_member(first: bool) -> None:
    numbered, others = {"1": {"embedding": [2.0]}, "0": {"embedding": [1.0]}}, {"meta": {"by": "x"}}
    data = {**others, **numbered} if first else {**numbered, **others}
    assert [list(one) for one in read_answer({"data": data}, 2, 1).vectors] == [[1.0], [2.0]]


@pytest.mark.parametrize("first", [True, False])
def test_models_by_their_numbers_are_read_next_to_another_member(first: bool) -> None:
    numbered, others = {"0": {"id": "a"}, "1": {"id": "b"}}, {"total": 2}
    listed = read_list({**others, **numbered} if first else {**numbered, **others})
    assert [model.id for model in listed] == ["a", "b"]
