"""The embeddings format: what is read is what was written, of numbers to their last bit."""

import json
from array import array
from base64 import b64decode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.domain.embedding import EmbeddingRequest, EmbeddingResult
from modelyard.errors import InvalidInput
from modelyard.parts.embeddings.formats import embeddings_json, embeddings_request, read_answer, read_embeddings

FLOATS = st.lists(st.floats(allow_nan=False, allow_infinity=False, width=32), min_size=1, max_size=8)


@examples(80)
@given(st.lists(FLOATS, min_size=1, max_size=4), st.booleans())
def test_an_answer_is_read_as_it_was_written(vectors: list[list[float]], in_base64: bool) -> None:
    made = EmbeddingResult("id", 'm"odel', tuple(array("f", vector) for vector in vectors), 7)
    answer = json.loads(embeddings_json(made, in_base64))
    read = read_answer(answer, len(vectors))
    assert [array("f", vector) for vector in read.vectors] == list(made.vectors)
    assert (read.tokens, answer["model"], answer["usage"]) == (7, 'm"odel', {"prompt_tokens": 7, "total_tokens": 7})


def test_base64_is_of_little_endian_32_bit_floats() -> None:
    made = EmbeddingResult("id", "m", (array("f", [1.0, -2.0]),), 1)
    (shown,) = json.loads(embeddings_json(made, True))["data"]
    assert b64decode(shown["embedding"]) == bytes.fromhex("0000803f000000c0")


@examples(60)
@given(
    st.one_of(
        st.text(min_size=1),
        st.lists(st.text(min_size=1), min_size=1),
        st.lists(st.integers(0, 2**31 - 1), min_size=1),
        st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=1), min_size=1),
    ),
    st.one_of(st.none(), st.integers(1, 65_536)),
)
def test_a_request_is_read_as_it_is_written_for_another_server(given: Any, dimensions: int | None) -> None:
    body = {"model": "m", "input": given, "dimensions": dimensions, "user": "u"}
    request = read_embeddings(body).request
    assert read_embeddings(json.loads(embeddings_request(request, "m", dimensions))).request == request


@each_case(
    ("given", "loc"),
    [
        ("", ("input",)),
        ([], ("input",)),
        (None, ("input",)),
        (5, ("input",)),
        ({}, ("input",)),
        ([""], ("input", 0)),
        (["a", 5], ("input", 1)),
        (["a", "\ud800"], ("input", 1)),
        ([[]], ("input", 0)),
        ([5, "a"], ("input", 1)),
        ([5, True], ("input", 1)),
        ([5, -1], ("input", 1)),
        ([5, 2**31], ("input", 1)),
        ([5, 1.0], ("input", 1)),
        ([[5], [6, None]], ("input", 1, 1)),
        ([["a"]], ("input", 0, 0)),
        ([None], ("input", 0)),
        (["a"] * 2049, ("input",)),
        ([7] * 300_001, ("input",)),
        ([[7] * 200_000, [7] * 100_001], ("input",)),
    ],
)
def test_what_cannot_be_embedded_is_refused_where_it_stands(given: Any, loc: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_embeddings({"model": "m", "input": given}, "body")
    assert [problem.loc for problem in refused.value.problems] == [("body", *loc)]


def test_unknown_parameters_and_bounds_are_named() -> None:
    with pytest.raises(InvalidInput, match=r"body.dimension: .*did you mean 'dimensions'"):
        read_embeddings({"model": "m", "input": "a", "dimension": 5}, "body")
    for wrong in ({"dimensions": 0}, {"dimensions": True}, {"encoding_format": "int8"}, {"user": "u" * 1025}):
        with pytest.raises(InvalidInput) as refused:
            read_embeddings({"model": "m", "input": "a", **wrong})
        assert [problem.loc for problem in refused.value.problems] == [tuple(wrong)]


@each_case(
    "answer",
    [
        {},
        {"data": []},
        {"data": [{"index": 0, "embedding": [1.0]}, {"index": 0, "embedding": [1.0]}]},
        {"data": [{"index": 1, "embedding": [1.0]}]},
        {"data": [{"index": 0, "embedding": "AAA"}]},
        {"data": [{"index": 0, "embedding": "AAAA"}]},
        {"data": [{"index": 0, "embedding": "é"}]},
        {"data": [{"index": 0, "embedding": [None]}]},
        {"data": [{"index": 0}]},
    ],
)
def test_a_malformed_answer_of_a_server_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidInput):
        read_answer(answer, 1)


@each_case("usage", [None, {}, {"prompt_tokens": -1}, {"prompt_tokens": None}, {"prompt_tokens": 0}])
def test_a_usage_without_counts_is_none(usage: Any) -> None:
    assert read_answer({"data": [{"index": 0, "embedding": [1.0]}], "usage": usage}, 1).tokens is None


def test_embeddings_without_an_index_are_in_the_order_of_the_inputs() -> None:
    batch = read_answer({"data": [{"embedding": [1.0]}, {"embedding": [2.0]}], "usage": {"total_tokens": 4.0}}, 2)
    assert ([list(vector) for vector in batch.vectors], batch.tokens) == ([[1.0], [2.0]], 4)


def test_an_answer_may_leave_its_usage_out() -> None:
    assert read_answer({"data": [{"index": 0, "embedding": [1.0]}]}, 1).tokens is None
    assert EmbeddingRequest("m", ("a",)).dimensions is None
