"""Rows that are asked in place: side by side, sharing transactions, and each answerable for itself alone."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.evaluation.run import Outcome, Prediction
from modelyard.domain.events import CompletionBooked
from modelyard.domain.usage import LedgerEntry
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.platform.evaluations.result import EvaluationResult
from modelyard.platform.platform import Platform
from modelyard.testing.clock import ManualClock

PRICE = Pricing(Decimal(1), Decimal(1))


@attrs.define
class Counting:
    """A store that counts how many ledger entries and predictions each of its transactions has brought."""

    store: Any
    brought: list[tuple[int, int]] = attrs.field(factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def transact(self, step: Callable[[Any], Any], durable: bool = True) -> Any:
        before = self._kept()
        try:
            return self.store.transact(step, durable)
        finally:
            ledger, predictions = self._kept()
            self.brought.append((ledger - before[0], predictions - before[1]))

    def _kept(self) -> tuple[int, int]:
        def count(snapshot: Any) -> tuple[int, int]:
            ledger = len(snapshot.page(LedgerEntry, "by_entity", "local", limit=1000))
            return ledger, len(snapshot.page(Prediction, "by_entity", "local", limit=1000))

        return self.store.read(count)  # type: ignore[no-any-return]


@pytest.fixture
def clock() -> ManualClock:
    """Stands still until a test moves it."""
    return ManualClock()


@pytest.fixture
def opened(tmp_path: Path, clock: ManualClock) -> Iterator[Callable[[Any], Platform]]:
    platforms: list[Platform] = []

    def open_with(backend: Any) -> Platform:
        platforms.append(open_platform(tmp_path / "yard.db", durability="process", backend=backend, clock=clock))
        platforms[0]._runtime = attrs.evolve(platforms[0]._runtime, store=Counting(platforms[0]._runtime.store))
        return platforms[0]

    yield open_with
    platforms[0].close()


def run(platform: Platform, count: int, model: str = "echo", **options: Any) -> EvaluationResult:
    rows = [{"prompt": f"row{at}", "expected": f"row{at}"} for at in range(count)]
    return platform.evaluations.run("e", model, rows, project="p", **options)


def brought(platform: Platform) -> list[tuple[int, int]]:
    store = platform._runtime.store
    assert isinstance(store, Counting)
    return [both for both in store.brought if both != (0, 0)]


def test_rows_that_finish_together_are_booked_and_stored_together(opened: Callable[[Any], Platform]) -> None:
    platform = opened(EchoBackend(pricing=PRICE))
    assert run(platform, 10, concurrency=4).score == 1.0
    assert brought(platform) == [(4, 4), (6, 6)]
    assert platform.usage.total()[0].cost == 20


@pytest.mark.parametrize(("concurrency", "commits"), [(1, [1, 64, 64, 21]), (8, [8, 64, 64, 14])])
def test_as_many_rows_as_are_committed_together_wait_for_no_further_one(
    opened: Callable[[Any], Platform], concurrency: int, commits: list[int]
) -> None:
    platform = opened(EchoBackend())
    run(platform, 150, concurrency=concurrency)
    assert brought(platform) == [(count, count) for count in commits]


def test_rows_wait_a_twentieth_of_a_second_after_a_commit_for_others_and_those_of_a_slow_model_for_none(
    opened: Callable[[Any], Platform], clock: ManualClock
) -> None:
    def answer(request: CompletionRequest) -> str:
        clock.advance(0.02 if request.messages[-1].text < "row4" else 0.06)
        return "x"

    platform = opened(ScriptedBackend(answer))
    run(platform, 8, "scripted", concurrency=1)
    assert [predictions for _, predictions in brought(platform) if predictions] == [1, 3, 1, 1, 1, 1]


def test_a_failed_row_waits_for_no_other(opened: Callable[[Any], Platform]) -> None:
    def model(row: Any) -> str:
        if row["prompt"] in ("row2", "row3"):
            raise ValueError(row["prompt"])
        return "x"

    platform = opened(EchoBackend())
    run(platform, 6, model, concurrency=1)
    assert brought(platform) == [(0, 1), (0, 2), (0, 1), (0, 2)]


def test_rows_under_a_budget_are_booked_before_the_next_request(opened: Callable[[Any], Platform]) -> None:
    platform = opened(EchoBackend(pricing=PRICE))
    platform.usage.set_budget(50)
    assert run(platform, 6, concurrency=1, max_tokens=30).score == 1.0
    assert [both for both in brought(platform) if both[1]] == [(1, 1)] * 6


def test_what_has_finished_before_an_interrupt_is_stored(opened: Callable[[Any], Platform]) -> None:
    def model(row: Any) -> str:
        if row["prompt"] == "row5":
            raise KeyboardInterrupt
        return "x"

    platform = opened(EchoBackend())
    with pytest.raises(KeyboardInterrupt):
        run(platform, 9, model, concurrency=1)
    assert brought(platform) == [(0, 1), (0, 4)]


def test_a_refused_budget_is_an_error_of_one_row_and_the_others_are_booked_once(
    opened: Callable[[Any], Platform],
) -> None:
    platform = opened(EchoBackend(pricing=PRICE))
    platform.usage.set_budget(5)
    result = run(platform, 8, concurrency=4, max_tokens=1)
    outcomes = [row.outcome for row in result.rows]
    assert outcomes == [*[Outcome.SCORED] * 2, *[Outcome.MODEL_ERROR] * 6]
    assert all("budget" in row.detail for row in result.errors)
    budget = platform.usage.get_budget()
    assert budget is not None
    assert (budget.spent, budget.reserved) == (4, 0)
    assert platform.usage.total()[0].requests == 2


def test_an_interrupt_books_what_was_produced_and_makes_no_row(opened: Callable[[Any], Platform]) -> None:
    def answer(request: CompletionRequest) -> str:
        if request.messages[-1].text == "row2":
            raise KeyboardInterrupt
        return "x"

    platform = opened(ScriptedBackend(answer))
    with pytest.raises(KeyboardInterrupt):
        run(platform, 4, "scripted", concurrency=4)
    assert brought(platform) == [(2, 0)]
    (stopped,) = platform.evaluations.runs.list(project="p")
    assert (stopped.state, stopped.reason) == ("failed", "interrupted")


def test_an_interrupt_while_an_answer_is_scored_books_it_all_the_same(opened: Callable[[Any], Platform]) -> None:
    def scorer(output: Any, row: Any) -> bool:
        raise KeyboardInterrupt

    platform = opened(EchoBackend(pricing=PRICE))
    with pytest.raises(KeyboardInterrupt):
        platform.evaluations.run("e", "echo", [{"prompt": "one"}] * 3, scorer, project="p", concurrency=2)
    assert brought(platform) == [(2, 0)]


def test_what_a_model_that_may_wait_has_answered_is_booked_at_once(opened: Callable[[Any], Platform]) -> None:
    class Waiting(EchoBackend):
        blocking = True

    platform = opened(Waiting(pricing=PRICE))
    assert run(platform, 2, concurrency=1).score == 1.0
    assert brought(platform) == [(1, 0), (0, 1)] * 2


def test_a_booking_is_announced_after_it_is_stored(tmp_path: Path) -> None:
    reported: list[tuple[str, bool]] = []

    def observer(event: object) -> None:
        if isinstance(event, CompletionBooked):
            kept = platform._runtime.store.read(lambda snapshot: snapshot.find(LedgerEntry, "key", event.completion_id))
            reported.append((event.project, kept is not None))

    with open_platform(tmp_path / "yard.db", backend=EchoBackend(), observer=observer) as platform:
        run(platform, 3, concurrency=2)
    assert reported == [("p", True)] * 3
