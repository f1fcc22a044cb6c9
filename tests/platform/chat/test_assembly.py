"""Deltas that come several at once and have nothing but text are taken together, which comes to the same."""

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from modelyard.platform.chat.assembly import ResponseAssembler
from modelyard.protocols import Deltas

OTHER: dict[str, list[Any]] = {
    "text": ["", "é", "\ud800", "b" * 9, 3, None],
    "tokens": [0, 2, 9, -1, True, "1"],
    "index": [1, -1, False, "0"],
    "tool_call": [ToolCallDelta(0, "c", "f", "{}")],
    "logprobs": [(TokenLogprob("a", -1.0),), "x"],
    "token_ids": [(7,), (7, 8)],
    "prompt_token_ids": [(7, 8)],
    "finish_reason": [FinishReason.STOP, "stop"],
    "usage": [Usage(1, 1)],
    "prompt_logprobs": [(TokenLogprob("a", -1.0),), "x"],
    "stop_string": ["x", 1],
    "reasoning": ["hm", "\ud800", 3],
}
FOUND = [attrs.evolve(Delta("a", 1), **{name: value}) for name, values in OTHER.items() for value in values]
texts = st.builds(Delta, st.sampled_from(["a", "b", " c"]), st.just(1))


others = st.sampled_from([None, "a", {"text": "a"}, Delta(), *FOUND])


requests = st.builds(
    CompletionRequest,
    st.just("m"),
    st.just((Message(Role.USER, "hello"),)),
    max_tokens=st.sampled_from([1, 3, 50]),
    n=st.sampled_from([1, 1, 2]),
    stop=st.sampled_from([(), (), ("bc",)]),
    streamed=st.booleans(),
)


PLAIN = CompletionRequest("m", (Message(Role.USER, "hello"),), max_tokens=50, streamed=True)


class OneByOne(ResponseAssembler):
    """Takes no deltas together."""

    def _take_texts(self, deltas: Any) -> int:
        return 0


def taken(assembler: ResponseAssembler, given: list[Deltas]) -> Any:
    """What an assembler makes of deltas, up to the first fault."""
    found: list[Any] = []
    try:
        for deltas in given:
            found += [assembler.take(deltas), assembler.done, assembler.details, assembler.report, assembler.shown]
            assembler.shown = []
        found.append(assembler.fold())
    except Exception as fault:
        found.append((type(fault), str(fault)))
    return found, [(choice.tokens, choice.length, choice.deltas, choice.ended) for choice in assembler.choices]


def compare(request: CompletionRequest, several: list[Any]) -> None:
    """Take the same deltas in both ways."""
    indexes = range(request.n)
    assert taken(ResponseAssembler(request, indexes), several) == taken(OneByOne(request, indexes), several)


@given(request=requests, several=st.lists(st.lists(texts | texts | texts | others, max_size=5), max_size=4))
def test_texts_that_are_taken_together_come_to_the_same(request: CompletionRequest, several: list[Any]) -> None:
    compare(request, several)


@each_case("streamed", [False, True])
@each_case("found", FOUND, ids=repr)
def test_every_field_of_a_delta_counts(found: Delta, streamed: bool) -> None:
    text, end = Delta("b", 1), Delta(finish_reason=FinishReason.STOP)
    for most in (1, 2, 50):
        for n in (1, 2):
            request = attrs.evolve(PLAIN, streamed=streamed, max_tokens=most, n=n)
            compare(request, [[text, found], [text, end], [text]])
            compare(request, [[found], [text], [end, text]])


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_an_answer_that_is_too_long_ends_at_the_same_delta(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.platform.chat.assembly.MAX_TEXT", room)
    compare(PLAIN, [[Delta("a", 1)], [Delta("b", 1), Delta("c", 1)]])


def test_texts_are_taken_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.platform.chat.assembly.validate_delta", None)
    assembler = ResponseAssembler(PLAIN, [0])
    assembler.take([Delta("a", 1), Delta("b", 1)])
    assert [delta.text for delta in assembler.choices[0].deltas] == ["a", "b"]


def test_no_field_of_a_delta_is_forgotten() -> None:
    assert OTHER.keys() == {field.name for field in attrs.fields(Delta)}


def test_a_delta_with_nothing_but_usage_is_kept_and_not_shown() -> None:
    assembler = ResponseAssembler(PLAIN, [0])
    assert not assembler.take(Delta(usage=Usage(3, 4)))
    assert (assembler.report, assembler.shown, assembler.produced) == (Usage(3, 4), [], True)
