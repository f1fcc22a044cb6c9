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
from modelyard.domain.embedding import EmbeddingResult
from modelyard.errors import InvalidInput
from modelyard.parts.embeddings.formats import embeddings_json, embeddings_request, read_embeddings


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
