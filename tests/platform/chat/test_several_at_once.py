"""What a backend yields at once is answered, streamed, booked and refused as if it came delta by delta."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from decimal import Decimal
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import open_platform
from modelyard.backends.deltas import one_by_one
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason
from modelyard.errors import ModelyardError
from modelyard.platform.platform import Platform
from modelyard.protocols import Deltas, ServedModel

PRICE = Pricing(Decimal("0.1"), Decimal("0.01"))


class Grouped(EchoBackend):
    """Answers with these deltas in groups of these sizes; None stands for each alone, in no list."""

    def __init__(self, deltas: Sequence[Any], sizes: Sequence[int] | None, blocking: bool) -> None:
        super().__init__(pricing=PRICE)
        self.blocking, self.deltas, self.sizes = blocking, deltas, sizes

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        if self.sizes is None:
            yield from self.deltas
            return
        rest = list(self.deltas)
        for size in (*self.sizes, len(rest)):
            taken, rest = rest[:size], rest[size:]
            yield taken if size % 2 else tuple(taken)


class OnALoop(Grouped):
    """The same, asynchronously."""

    async def astream(self, request: CompletionRequest, model: ServedModel) -> AsyncIterator[Deltas]:
        for item in self.stream(request, model):
            yield item


words = st.builds(Delta, st.text("ab é\n", max_size=4), st.integers(0, 3), st.sampled_from([0, 0, 0, 0, 0, 1]))
ends = st.sampled_from([FinishReason.STOP, FinishReason.STOP, FinishReason.LENGTH, None])
nonsense = st.sampled_from([Delta("x", -1), Delta(7, 1), Delta("\ud800", 1), "x", Delta("late", 1)])  # type: ignore[arg-type]


@st.composite
def answers(draw: st.DrawFn) -> list[Any]:
    """The deltas of an answer, which may be broken."""
    deltas: list[Any] = draw(st.lists(words, max_size=6))
    deltas.append(attrs.evolve(draw(words), finish_reason=draw(ends)))
    if draw(st.integers(0, 4)) == 0:
        deltas.insert(draw(st.integers(0, len(deltas))), draw(nonsense))
    return deltas


options = st.fixed_dictionaries(
    {"max_tokens": st.integers(1, 12)},
    optional={"stop": st.sampled_from(["a", "ba", "zz"]), "temperature": st.floats(0, 2), "n": st.just(2)},
)


def whole(platform: Platform, asked: Any) -> object:
    return platform.chat.complete(**asked).choices


def streamed(platform: Platform, asked: Any) -> object:
    with platform.chat.stream(**asked) as stream:
        return [(delta.index, delta.text, delta.finish_reason) for delta in stream], stream.completion is not None


def awaited(platform: Platform, asked: Any) -> object:
    async def main() -> object:
        stream = platform.chat.astream(**asked)
        return [(delta.index, delta.text, delta.finish_reason) async for delta in stream]

    return asyncio.run(main())


def answers_of(backend: EchoBackend, ask: Callable[[Platform, Any], object], asked: Any) -> list[object]:
    """What the caller gets, what is booked, what is left of a budget, and what the observer sees."""
    seen: list[object] = []
    with open_platform(backend=backend, observer=seen.append) as platform:
        platform.usage.set_budget(5)
        try:
            got: object = ask(platform, {"model": "echo", "messages": "hi", **asked})
        except ModelyardError as error:
            got = type(error), str(error)
        budget = platform.usage.get_budget()
        assert budget is not None
        rows = [(row.prompt_tokens, row.completion_tokens, row.cost, row.estimated) for row in platform.usage.list()]
        totals = [attrs.evolve(total, day=None) for total in platform.usage.total(by=("model",))]
        events = [(type(event), getattr(event, "cost", None), getattr(event, "code", None)) for event in seen]
        return [got, rows, totals, budget.reserved, budget.spent, events, platform._runtime.cache.running]


@pytest.mark.slow
@examples(60)
@given(
    answers(),
    st.lists(st.integers(0, 4), max_size=4),
    options,
    st.sampled_from([whole, streamed, awaited]),
    st.sampled_from([Grouped, OnALoop]),
    st.booleans(),
)
def test_groups_change_nothing(
    deltas: list[Any], sizes: list[int], asked: Any, ask: Any, kind: type[Grouped], blocking: bool
) -> None:
    alone = answers_of(Grouped(deltas, None, blocking=False), ask, asked)
    assert answers_of(kind(deltas, sizes, blocking), ask, asked) == alone


def test_a_wrapper_reads_them_one_by_one_and_closes_what_it_wraps() -> None:
    backend = Grouped([Delta("a", 1), Delta("b", 1), Delta("c", 1)], [2], blocking=False)
    request: Any = None
    stream = backend.stream(request, request)
    deltas = one_by_one(stream)
    assert [next(deltas).text, next(deltas).text] == ["a", "b"]
    deltas.close()
    assert list(stream) == []


def test_who_leaves_early_pays_for_what_came_with_what_was_read() -> None:
    backend = Grouped([Delta("a", 1)] * 5, [3], blocking=False)
    with open_platform(backend=backend) as platform:
        with platform.chat.stream(model="echo", messages="hi") as stream:
            next(stream)
        assert [row.completion_tokens for row in platform.usage.list()] == [3]
