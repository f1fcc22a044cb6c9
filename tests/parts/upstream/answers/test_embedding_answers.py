"""Embeddings of a server: wherever they stand, with the tokens that it counts under any of its names."""

import base64
import json
import struct
from array import array
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned_answers import answering
from example_counts import examples
from modelyard import open_platform
from modelyard.backends import COMMON, Timeouts, UpstreamBackend, offer
from modelyard.domain.catalogue import Pricing
from modelyard.domain.embedding import EmbeddingResult
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.embeddings.formats import embeddings_json
from modelyard.parts.upstream.answers.embeddings import read_answer
from upstream_asking import http

FLOATS = st.floats(allow_nan=False, allow_infinity=False, width=32)
VECTORS = st.integers(2, 4).flatmap(
    lambda size: st.lists(st.lists(FLOATS, min_size=size, max_size=size), min_size=1, max_size=4)
)
Vectors = list[list[float]]


def of_text(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def of_url_safe_text(vector: list[float]) -> str:
    return of_text(vector).translate(str.maketrans("+/", "-_")).rstrip("=")


def data_of(vectors: Vectors, write: Callable[[list[float]], Any], **more: Any) -> Any:
    return {
        "object": "list",
        "data": [{"index": at, "embedding": write(one)} for at, one in enumerate(vectors)],
        **more,
    }


WRITTEN: Mapping[str, Callable[[Vectors], Any]] = {
    "numbers": lambda vectors: data_of(vectors, list),
    "base64": lambda vectors: data_of(vectors, of_text),
    "base64 for addresses, without padding": lambda vectors: data_of(vectors, of_url_safe_text),
    "numbers as strings": lambda vectors: data_of(vectors, lambda one: [*map(repr, one)]),
    "a list around each": lambda vectors: data_of(vectors, lambda one: [one]),
    "an object around each": lambda vectors: data_of(vectors, lambda one: {"float": one}),
    "values": lambda vectors: {"embeddings": [{"values": one} for one in vectors]},
    "by type": lambda vectors: {"id": "1", "embeddings": {"float": vectors, "int8": None}, "texts": ["a"]},
    "lists": lambda vectors: {"model": "m", "embeddings": vectors},
    "lists alone": lambda vectors: vectors,
    "objects alone": lambda vectors: [{"index": at, "embedding": one} for at, one in enumerate(vectors)],
    "by number": lambda vectors: {"data": {str(at): {"embedding": one} for at, one in enumerate(vectors)}},
    "enveloped": lambda vectors: {"code": 0, "result": data_of(vectors, list)},
    "enveloped as text": lambda vectors: {"statusCode": 200, "body": json.dumps(data_of(vectors, of_text))},
    "numbered from 1": lambda vectors: {"data": [{"index": at, "embedding": v} for at, v in enumerate(vectors, 1)]},
    "numbered alike": lambda vectors: {"data": [{"index": 0, "embedding": one} for one in vectors]},
    "numbers of another type": lambda vectors: {
        "data": [{"index": str(at), "embedding": one} for at, one in reversed([*enumerate(vectors)])]
    },
    "not numbered": lambda vectors: {"data": [{"embedding": one} for one in vectors]},
}
COUNTED: Mapping[str, Any] = {
    "openai": {"usage": {"prompt_tokens": 7, "total_tokens": 7}},
    "a total": {"usage": {"total_tokens": 7.0}},
    "text": {"usage": {"prompt_tokens": "7"}},
    "anthropic": {"usage": {"input_tokens": 7}},
    "gemini": {"usageMetadata": {"promptTokenCount": 7}},
    "ollama": {"prompt_eval_count": 7},
    "cohere": {"meta": {"billed_units": {"input_tokens": 7}}},
    "bedrock": {"inputTextTokenCount": None, "usage": {"inputTokens": 7}},
    "groq": {"x_groq": {"usage": {"prompt_tokens": 7}}},
}


@examples(60)
@given(VECTORS, st.sampled_from([*WRITTEN]), st.sampled_from([*COUNTED, None]))
def test_vectors_and_counts_are_read_wherever_they_stand(vectors: Vectors, form: str, counted: str | None) -> None:
    answer = json.loads(json.dumps(WRITTEN[form](vectors)))
    tells = isinstance(answer, dict) and counted is not None
    read = read_answer({**answer, **COUNTED[counted or ""]} if tells else answer, len(vectors), len(vectors[0]))
    assert [array("f", one) for one in read.vectors] == [array("f", one) for one in vectors]
    assert read.tokens == (7 if tells else None)


@examples(40)
@given(VECTORS, st.booleans())
def test_an_answer_is_read_as_it_was_written(vectors: Vectors, in_base64: bool) -> None:
    made = EmbeddingResult("id", 'm"odel', tuple(array("f", vector) for vector in vectors), 7)
    read = read_answer(json.loads(embeddings_json(made, in_base64)), len(vectors), len(vectors[0]))
    assert ([array("f", vector) for vector in read.vectors], read.tokens) == ([*made.vectors], 7)


MALFORMED = [
    *({}, {"data": []}, {"data": None}, None, "text", 7, []),
    {"data": [{"index": 0, "embedding": [1.0, 0.0]}, {"index": 0, "embedding": [1.0, 0.0]}]},
    {"data": [{"index": 0, "embedding": [[1.0, 0.0], [0.0, 1.0]]}]},
    *({"data": [{"index": 0, "embedding": wrong}]} for wrong in ("AAA", "AAAA=", "é", [None, 1], ["x", 1], [10**400])),
    {"data": [{"index": 0}]},
]


@pytest.mark.parametrize("answer", MALFORMED, ids=lambda answer: repr(answer)[:40])
def test_a_malformed_answer_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidInput):
        read_answer(answer, 1, 2)


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": -1}, {"prompt_tokens": None}, {"prompt_tokens": 0}, [3]])
def test_a_usage_without_counts_is_none(usage: Any) -> None:
    assert read_answer({"data": [{"index": 0, "embedding": [1.0]}], "usage": usage}, 1, 1).tokens is None


def booked(answer: Any) -> tuple[Any, list[tuple[int, bool]]]:
    """What one input's embedding is, or the error, and what was booked for it."""
    can = attrs.evolve(COMMON, embedding_size=2)
    model = offer("m", context_length=99, capabilities=can, pricing=Pricing(prompt="1"))
    with (
        answering(http(json.dumps(answer).encode())) as url,
        UpstreamBackend(url, models=[model], timeouts=Timeouts(retries=0)) as backend,
        open_platform(backend=backend) as yard,
    ):
        try:
            found: Any = [list(one) for one in yard.embeddings.create(model="m", input="a").vectors]
        except BackendError as error:
            found = error
        return found, [(usage.prompt_tokens, usage.estimated) for usage in yard.usage.list()]


@pytest.mark.parametrize("embedding", [[1.0], [1.0, 2.0, 3.0], [None, 1.0], "AAA", [float("nan"), 1.0], []], ids=repr)
def test_an_answer_that_cannot_be_used_is_booked_as_the_server_has_counted_it(embedding: Any) -> None:
    found, bill = booked({"data": [{"index": 0, "embedding": embedding}], "usage": {"prompt_tokens": 4}})
    assert isinstance(found, BackendError)
    assert bill == [(4, False)]


def test_one_that_counts_nothing_and_has_nothing_is_not_booked() -> None:
    found, bill = booked({"error": {"message": "out of order"}})
    assert "out of order" in str(found)
    assert bill == []
