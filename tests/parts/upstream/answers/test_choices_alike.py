"""Several choices that a server numbers alike are told apart by what it sends besides, or the answer is an error."""

import json
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, Pricing, open_platform
from modelyard.backends import UpstreamBackend, offer
from modelyard.domain.completion import CompletionRequest, Delta, Message, Role
from modelyard.errors import BackendError, InvalidInput
from modelyard.parts.upstream.answers.reader import AnswerReader
from upstream_asking import VLLM, backend_at, http

USAGE = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 2}}
PIECES = st.lists(st.text("abc é", min_size=1, max_size=3), min_size=1, max_size=4)
TEXTS = st.lists(
    PIECES.filter(lambda pieces: len(pieces) < 3 or not all(b.startswith(a) for a, b in pairwise(pieces))),
    min_size=2,
    max_size=4,
)
"""Texts of which each piece is new: three that each begin with the one before are one that grows."""


def asked(count: int) -> CompletionRequest:
    return CompletionRequest("m", (Message(Role.USER, "go"),), n=count, max_tokens=99, streamed=True)


def chunk(id_: str | None, delta: Any, reason: Any = None, **members: Any) -> dict[str, Any]:
    named = {} if id_ is None else {"id": id_}
    return {**named, "choices": [{"delta": delta, "finish_reason": reason, **members}]}


def stream_of(pieces: Sequence[str], id_: str | None, **members: Any) -> list[dict[str, Any]]:
    """The chunks of one choice, which begin with its role."""
    said = [chunk(id_, {"content": piece}, **members) for piece in pieces]
    return [chunk(id_, {"role": "assistant", "content": ""}, **members), *said, chunk(id_, {}, "stop", **members)]


def read(chunks: Sequence[Any], count: int, noted: list[str] | None = None) -> list[Delta]:
    reader = AnswerReader(asked(count), noted.append if noted is not None else lambda what: None)
    found: list[Delta] = []
    for one in chunks:
        raw = json.dumps(one).encode()
        found += reader.take_texts([raw], 0) or reader.take(one, raw)
    return [*found, *reader.end(finished=True)]


def texts_of(deltas: Sequence[Delta], count: int) -> list[str]:
    return ["".join(delta.text for delta in deltas if delta.index == index) for index in range(count)]


@pytest.mark.slow
@given(TEXTS, st.sampled_from([0, None]), st.booleans(), st.randoms())
@examples(60)
def test_those_with_ids_of_their_own_are_told_apart_in_any_order(
    texts: list[list[str]], index: Any, in_turns: bool, random: Any
) -> None:
    streams = [stream_of(pieces, f"id-{at}", index=index) for at, pieces in enumerate(texts)]
    chunks: list[Any] = [stream.pop(0) for stream in streams] if in_turns else []
    while any(streams):
        chunks.append(
            random.choice([one for one in streams if one] if in_turns else [next(filter(None, streams))]).pop(0)
        )
    noted: list[str] = []
    found = read([*chunks, USAGE], len(texts), noted)
    assert texts_of(found, len(texts)) == ["".join(pieces) for pieces in texts]
    assert ["alike" in what for what in noted] == [True]


@given(TEXTS, st.sampled_from([None, "one"]))
@examples(30)
def test_those_that_follow_each_other_are_told_apart_by_their_ends(texts: list[list[str]], id_: str | None) -> None:
    chunks = [one for pieces in texts for one in stream_of(pieces, id_, index=0)]
    assert texts_of(read([*chunks, USAGE], len(texts)), len(texts)) == ["".join(pieces) for pieces in texts]


@given(TEXTS, st.randoms())
@examples(30)
def test_those_that_are_numbered_are_as_they_are_numbered(texts: list[list[str]], random: Any) -> None:
    streams = [stream_of(pieces, f"id-{at}", index=at) for at, pieces in enumerate(texts)]
    chunks = []
    while any(streams):
        chunks.append(random.choice([one for one in streams if one]).pop(0))
    noted: list[str] = []
    assert texts_of(read([*chunks, USAGE], len(texts), noted), len(texts)) == ["".join(one) for one in texts]
    assert noted == []


def test_an_id_for_each_chunk_tells_nothing_apart() -> None:
    pieces = [chunk(f"id-{at}", {"content": piece}, index=0) for at, piece in enumerate("abc")]
    end = chunk("id-3", {}, "stop", index=0)
    with pytest.raises(InvalidInput, match="1 of 2 choices are missing"):
        read([*pieces, end, USAGE], 2)


@pytest.mark.parametrize("streamed", [False, True])
def test_what_cannot_be_told_apart_is_refused_and_booked(canned: Any, streamed: bool) -> None:
    said = [chunk("id", {"content": piece}, index=0) for piece in "abcd"]
    events = [*said, chunk("id", {}, "stop", index=0), USAGE]
    lines = "".join(f"data: {json.dumps(one)}\n\n" for one in events) + "data: [DONE]\n\n"
    price = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.01"))
    model = offer("odd", context_length=1000, pricing=price, capabilities=VLLM)
    url = canned(http(lines.encode(), "text/event-stream"))

    def ask(yard: Platform) -> None:
        if not streamed:
            yard.chat.complete(model="odd", messages="go", n=2)
        with yard.chat.stream(model="odd", messages="go", n=2) as deltas:
            list(deltas)

    with UpstreamBackend(url, models=[model]) as backend, open_platform(backend=backend) as yard:
        with pytest.raises(BackendError, match="1 of 2 choices are missing"):
            ask(yard)
        (booked,) = yard.usage.list()
    assert (booked.prompt_tokens, booked.completion_tokens, booked.cost) == (10, 2, Decimal("0.03"))


def test_whole_answers_that_follow_each_other_are_told_apart_by_their_ids(canned: Any, either: Any) -> None:
    message = [{"role": "assistant", "content": text} for text in ("one", "two")]
    both = [
        {"id": f"id-{at}", "choices": [{"index": 0, "message": one, "finish_reason": "stop"}]}
        for at, one in enumerate(message)
    ]
    with backend_at(canned(http(json.dumps(both).encode()))) as backend:
        assert texts_of(either(backend, n=2), 2) == ["one", "two"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5), st.integers(1, 4), st.booleans())
@examples(60)
def test_whole_choices_are_never_joined(numbers: list[int], count: int, as_text: bool) -> None:
    """Of more than were requested, the first by their numbers or, if some are alike, by their places."""
    texts = [f"text {at}" for at in range(len(numbers))]
    said = [{"text": text} if as_text else {"message": {"content": text}} for text in texts]
    choices = [{"index": number, **one, "finish_reason": "stop"} for number, one in zip(numbers, said, strict=True)]
    reader = AnswerReader(asked(count))
    if len(numbers) < count:
        with suppress(InvalidInput):
            reader.whole([{"choices": choices}])
        return
    differ = len(set(numbers)) == len(numbers)
    wanted = [text for _, text in sorted(zip(numbers, texts, strict=True))] if differ else texts
    assert texts_of(reader.whole([{"choices": choices}]), count) == wanted[:count]
