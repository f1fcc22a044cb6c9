"""An answer that comes at once is what the same answer is that is assembled: the short ways change nothing."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from each import each_case
from modelyard import open_platform
from modelyard.backends import EchoBackend
from modelyard.clock import SystemClock
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest, Delta, FinishReason, TokenLogprob, ToolCallDelta, Usage
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.errors import ModelyardError
from modelyard.platform.chat import pipeline, short_ways_fast
from modelyard.platform.platform import Platform
from modelyard.platform.usage.booking import close_requests
from modelyard.platform.usage.presence import presence_of
from modelyard.testing.clock import ManualClock

CUT = "cut"
FAIL = "fail"
KEY = Principal("key", "acme", Scope("acme"), "k1", Limits(1000, 2))


class _StoppedClock(SystemClock):
    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic(self) -> float:
        return 1.0


class _Scripted(EchoBackend):
    """Gives these items, and `later` ones when it is asked again; `assembled` gives each in a list, which only an
    assembler takes."""

    def __init__(
        self, items: Sequence[Any], counted: int | None, assembled: bool, later: Sequence[Any] | None = None
    ) -> None:
        super().__init__(("m",), pricing=Pricing("0.001", "0.002", request="0.1"), context_length=50)
        self.items, self.counted, self.assembled = items, counted, assembled
        self.later = items if later is None else later
        self.asked: list[CompletionRequest] = []
        self.closed = 0
        self.platform: Any = None

    def prompt_tokens(self, request: CompletionRequest, model: object) -> Any:
        return self.counted

    def stream(self, request: CompletionRequest, model: object) -> Iterator[Any]:
        self.asked.append(request)
        return _Closed(self)

    def _given(self) -> Iterator[Any]:
        for item in self.items if len(self.asked) == 1 else self.later:
            if item == FAIL:
                raise ZeroDivisionError
            if item == CUT:
                close_requests(self.platform._runtime)
            else:
                yield [item] if self.assembled and type(item) is Delta else item


class _Closed:
    """An iterator that counts how often it is closed."""

    def __init__(self, backend: _Scripted) -> None:
        self.backend, self.items = backend, backend._given()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self.items)

    def close(self) -> None:
        self.backend.closed += 1


PLAIN: dict[str, Any] = {"text": "hello", "tokens": 1, "finish_reason": FinishReason.STOP}
OTHER: dict[str, list[Any]] = {
    "text": ["", "one two three", "\u00e9\U0001f600", "\ud800", 7],
    "tokens": [0, 2, 3, 60, -1, True],
    "index": [1, False],
    "finish_reason": [FinishReason.LENGTH, None, "stop"],
    "usage": [Usage(3, 2), Usage(1, 1, 4), Usage(1, 1, reasoning_tokens=2)],
    "logprobs": [(TokenLogprob("a", 0.0, (97,)),)],
    "token_ids": [(1,)],
    "prompt_token_ids": [(1, 2)],
    "prompt_logprobs": [(TokenLogprob("a", 0.0, (97,)),)],
    "tool_call": [ToolCallDelta(0, "c1", "f", "{}"), ToolCallDelta(1)],
    "stop_string": ["END", 7, "\ud800"],
    "reasoning": ["hm", "\ud800", 7],
}
"""What else a field may have than in an answer that is plain."""

PARAMETERS: dict[str, list[Any]] = {
    "max_tokens": [1, 2, 3, 20, 49, 60],
    "n": [1, 2],
    "stop": ["two", ["l"]],
    "logprobs": [True, False],
    "seed": [7],
    "temperature": [0.0, 1.0],
    "store": [True],
    "project": ["p"],
    "user": ["u"],
    "tools": [[{"type": "function", "function": {"name": "f"}}]],
}


def one_of(choices: dict[str, list[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Nothing, or one of these."""
    single = [st.fixed_dictionaries({name: st.sampled_from(values)}) for name, values in choices.items()]
    return st.one_of(st.just({}), *single)


deltas = st.builds(lambda one, two: Delta(**PLAIN | one | two), one_of(OTHER), one_of(OTHER))
extras = st.one_of(deltas, st.sampled_from([CUT, FAIL, None, "x", ()]))
items = st.one_of(st.tuples(deltas), st.tuples(deltas, extras), st.lists(extras, max_size=3))
options = st.one_of(
    one_of(PARAMETERS),
    st.fixed_dictionaries({}, optional={name: st.sampled_from(values) for name, values in PARAMETERS.items()}),
)
budgets = st.sampled_from([None, None, "0.1", "0.2", "50"])


class _Forgetful(dict[str, Any]):
    """Remembers nothing: what an answer may cost is always reserved first."""

    def __contains__(self, key: object) -> bool:
        return False


class _NoShortWays:
    """What is left where the short ways are taken out."""

    def __init__(self, of: object) -> None:
        pass

    def begun(self, index: int) -> None:
        pass

    def whole(self) -> None:
        pass

    def admitted(self) -> Any:
        yield from ()

    def close(self) -> None:
        pass


def seen_without(*asked: Any) -> object:
    """What becomes of requests without the short ways."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "ShortWays", _NoShortWays)
        return seen(*asked)


def seen(
    backend: _Scripted,
    asked: Sequence[dict[str, Any]],
    budget: str | None,
    limited: bool,
    reserves_first: bool = False,
) -> object:
    """What becomes of these requests: answers, errors, events, the ledger, totals, budgets and counts."""
    numbers, events = count(), []
    fixed: dict[str, Any] = {"clock": _StoppedClock(), "ids": lambda: f"id-{next(numbers):04d}"}
    fixed |= {"randomness": lambda size: b"\1" * size, "observer": events.append, "backend": backend}
    with open_platform(**fixed) as host:
        platform: Platform = host.acting_as(KEY if limited else attrs.evolve(KEY, limits=Limits()))
        backend.platform = host
        presence_of(host._runtime)  # which takes an id
        if reserves_first:
            host._runtime.cache.budgets = _Forgetful()
        meters = host.count_requests()
        if budget is not None:
            host.usage.set_budget(budget, entity="acme")
        outcomes: list[object] = []
        for one in asked:
            host._runtime.cache.closed = False  # a request may have been cut as if its platform was closed
            try:
                outcomes.append(platform.chat.complete(model="m", messages="hello there", **one))
            except ModelyardError as error:
                outcomes.append((type(error), str(error)))
        kept = [*host.usage.list(entity="acme")], [*host.usage.list_budgets()], [*platform.chat.list()]
        totals = host.usage.total(entity="acme", by=("project", "model", "key", "day"))
        cache = host._runtime.cache
        assert (cache.running, cache.bookings) == ({}, {})
        counted = {name: (one.requests, one.cost, one.completion_tokens) for name, one in meters.models.items()}
        return outcomes, events, kept, totals, counted, meters.refusals, backend.asked, backend.closed


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(items, st.lists(options, min_size=1, max_size=2), st.sampled_from([2, 2, None, 49, 50]), budgets, st.booleans())
def test_at_once_or_assembled_it_is_the_same(
    given_items: Sequence[Any], asked: Sequence[dict[str, Any]], counted: int | None, budget: str | None, limited: bool
) -> None:
    quick, slow = (_Scripted(given_items, counted, assembled) for assembled in (False, True))
    assert seen(quick, asked, budget, limited) == seen(slow, asked, budget, limited)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.one_of(st.just([Delta(**PLAIN)]), items),
    st.lists(options, min_size=1, max_size=4),
    st.sampled_from([2, 2, None, 49]),
    budgets,
    st.booleans(),
)
def test_answered_first_or_reserved_first_it_is_the_same(
    given_items: Sequence[Any],
    asked: Sequence[dict[str, Any]],
    counted: int | None,
    budget: str | None,
    assembled: bool,
) -> None:
    one, other = (_Scripted(given_items, counted, assembled) for _ in range(2))
    assert seen(one, asked, budget, limited=False) == seen(other, asked, budget, limited=False, reserves_first=True)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(items, st.lists(options, min_size=1, max_size=3), st.sampled_from([2, 2, None, 49, 50]), budgets, st.booleans())
def test_without_the_short_ways_it_is_the_same(
    given_items: Sequence[Any], asked: Sequence[dict[str, Any]], counted: int | None, budget: str | None, limited: bool
) -> None:
    one, other = (_Scripted(given_items, counted, assembled=False) for _ in range(2))
    assert seen(one, asked, budget, limited) == seen_without(other, asked, budget, limited)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(
    st.one_of(st.just([Delta(**PLAIN)]), items),
    st.one_of(st.just([Delta(**PLAIN)]), items),
    st.integers(2, 4),
    one_of(PARAMETERS),
    budgets,
    st.booleans(),
)
def test_several_choices_at_once_are_what_is_assembled(
    given_items: Sequence[Any],
    later: Sequence[Any],
    n: int,
    more: dict[str, Any],
    budget: str | None,
    limited: bool,
) -> None:
    one, other = (_Scripted(given_items, 2, False, later) for _ in range(2))
    asked = [more | {"n": n}]
    assert seen(one, asked, budget, limited) == seen_without(other, asked, budget, limited)


LATER: list[list[Any]] = [
    [CUT, Delta(**PLAIN)],
    [Delta(**PLAIN), CUT],
    [CUT],
    [FAIL],
    [],
    [Delta("a", 1), Delta(**PLAIN)],
    [Delta(**PLAIN), FAIL],
]


@each_case("later", LATER, ids=str)
@each_case("budget", [None, "50"])
def test_a_later_choice_that_is_not_whole_leaves_all_to_the_general_way(later: list[Any], budget: str | None) -> None:
    for n in (2, 3):
        one, other = (_Scripted([Delta(**PLAIN)], 2, False, later) for _ in range(2))
        assert seen(one, [{"n": n}], budget, False) == seen_without(other, [{"n": n}], budget, False)


@each_case("given_items", [[Delta(**PLAIN)], [CUT, Delta(**PLAIN)], [CUT], [FAIL], [None], []], ids=str)
@each_case("budget", [None, "0.1", "50"])
def test_without_the_short_ways_whatever_comes_first_is_the_same(given_items: list[Any], budget: str | None) -> None:
    one, other = (_Scripted(given_items, 2, assembled=False) for _ in range(2))
    assert seen(one, [{}, {}], budget, False) == seen_without(other, [{}, {}], budget, False)


def alone(choices: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Each of these choices alone."""
    return [{name: value} for name, values in choices.items() for value in values]


@each_case("other", alone(OTHER), ids=str)
def test_what_is_not_plain_in_an_answer_is_assembled(other: dict[str, Any]) -> None:
    quick, slow = (_Scripted([Delta(**PLAIN | other)], 2, assembled) for assembled in (False, True))
    assert seen(quick, [{}], None, limited=False) == seen(slow, [{}], None, limited=False)


@each_case("given_items", [[Delta(**PLAIN)], [CUT, Delta(**PLAIN)], [CUT], [FAIL], [None], []], ids=str)
def test_whatever_a_backend_gives_first_a_budget_sees_the_same(given_items: list[Any]) -> None:
    one, other = (_Scripted(given_items, 2, assembled=False) for _ in range(2))
    asked: list[dict[str, Any]] = [{}, {}]
    assert seen(one, asked, "50", limited=False) == seen(other, asked, "50", limited=False, reserves_first=True)


@each_case("parameter", [{}, *alone(PARAMETERS)], ids=str)
def test_every_parameter_of_a_plain_answer_counts(parameter: dict[str, Any]) -> None:
    quick, slow = (_Scripted([Delta(**PLAIN)], 2, assembled) for assembled in (False, True))
    assert seen(quick, [parameter], "50", limited=True) == seen(slow, [parameter], "50", limited=True)


def test_no_field_of_a_delta_is_forgotten() -> None:
    assert OTHER.keys() == {field.name for field in attrs.fields(Delta)}


def test_an_answer_that_comes_at_once_is_not_assembled() -> None:
    delta = Delta(**PLAIN)
    with open_platform(backend=_Scripted([delta], 2, False)) as platform:
        assert platform.chat.complete(model="m", messages="x").text == "hello"
    assert short_ways_fast.is_whole(delta, 1)
    assert not short_ways_fast.is_whole(attrs.evolve(delta, tokens=2), 1)


def test_an_answer_at_once_is_dated_as_its_ledger_row_is() -> None:
    clock = ManualClock(datetime(2026, 1, 1, tzinfo=UTC))

    class Slow(EchoBackend):
        def stream(self, *asked: Any) -> Iterator[Any]:
            clock.advance(seconds=5)
            return super().stream(*asked)

    with open_platform(clock=clock, backend=Slow(("m",))) as platform:
        answer = platform.chat.complete(model="m", messages="hi")
        (entry,) = platform.usage.list()
        assert answer.created == entry.created_at.timestamp() == clock.now().timestamp()
