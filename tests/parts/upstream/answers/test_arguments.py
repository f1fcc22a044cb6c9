"""Arguments are the same whether a server sends their pieces, or with each piece all that came before it."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.parts.upstream.answers.arguments import Arguments, may_begin_json

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", '{"', '{"a":']), inner),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["a", "b", '{"']), values, min_size=1, max_size=3)
texts = st.builds(json.dumps, objects, ensure_ascii=st.booleans())


def pieces_of(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % len(text) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


def read(pieces: list[str]) -> str:
    arguments = Arguments()
    return "".join([*map(arguments.take, pieces), arguments.end()])


@given(texts, st.lists(st.integers(0, 200), max_size=9))
@example('{"a": {"a": 1}}', [5])
@example('{"{": 1}', [2])
def test_the_pieces_of_arguments_are_joined(text: str, cuts: list[int]) -> None:
    assert read(pieces_of(text, cuts)) == text


@given(texts, st.lists(st.integers(0, 200), max_size=9), st.booleans())
@example('{"a": 1}', [5], True)
def test_arguments_that_repeat_what_came_before_are_read_once(text: str, cuts: list[int], twice: bool) -> None:
    pieces = pieces_of(text, cuts)
    grown = ["".join(pieces[: at + 1]) for at in range(len(pieces))]
    assert read([one for one in grown for _ in range(1 + (twice and one != text))]) == text


@given(texts, st.integers(0, 200))
@example('{"a": "\\ud83d\\ude00"}', 15)
@example('{"a": "\\u001f"}', 11)
@example('{"a": 1e+16}', 9)
def test_the_beginning_of_json_may_become_it(text: str, cut: int) -> None:
    assert may_begin_json(text[: cut % (len(text) + 1)])


@each_case("text", ['{"a"{', "{{", '{"a":{"a": 1}{', "}", '{"a": x', '{"a":1} {', "{1", '{"a":1 b'])
def test_what_is_no_beginning_of_json(text: str) -> None:
    assert not may_begin_json(text)


@each_case(
    ("pieces", "text"),
    [
        (['{"a":', '{"a": 1}'], '{"a": 1}'),
        (['{"a":', '{"a": 1}', "}"], '{"a":{"a": 1}}'),
        (["city=", "city=Paris"], "city=city=Paris"),
        (["{", "{", '{"a"', '{"a": 1}'], '{"a": 1}'),
        (["", '{"a": 1', "", '{"a": 1}', ""], '{"a": 1}'),
        (["[" * 100_000, "[" * 100_001], "[" * 200_001),
    ],
    ids=["one of two", "an object within", "no JSON", "one piece again", "empty pieces", "deep"],
)
def test_what_is_uncertain_is_known_at_last(pieces: list[Any], text: str) -> None:
    assert read(pieces) == text
