"""Bookings that share a transaction: the same ledger and the same totals as each booked alone."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.domain.usage import LedgerEntry, UsageTotal
from modelyard.platform.usage.booking import CompletionBooking, book_together

START = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)


def entry(number: int, project: str, model: str, hours: int, tokens: int) -> LedgerEntry:
    cost = Decimal(tokens) / 1000
    made = START + timedelta(hours=hours)
    return LedgerEntry(f"e{number}", "local", project, "", model, "echo", None, tokens, 0, 1, 0, False, cost, made)


ENTRIES = st.lists(
    st.builds(
        entry,
        st.integers(0, 6),  # some ids come twice: a booking that is repeated
        st.sampled_from(("a", "b")),
        st.sampled_from(("echo", "tuned")),
        st.integers(0, 4),  # before midnight, or after
        st.integers(0, 10**6),
    ),
    max_size=8,
)


def bookings(platform: Platform, entries: list[LedgerEntry]) -> list[CompletionBooking]:
    return [CompletionBooking(platform._runtime, one.id, one, None, lambda _: None) for one in entries]


def kept(platform: Platform) -> tuple[list[Any], list[Any]]:
    store = platform._runtime.store
    ledger = store.read(lambda snapshot: snapshot.page(LedgerEntry, "by_entity", "local", limit=100))
    totals = store.read(lambda snapshot: snapshot.page(UsageTotal, "by_entity", "local", limit=100))
    return ledger, sorted(totals, key=repr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@examples(30)
@given(entries=ENTRIES)
def test_bookings_of_one_transaction_add_up_to_what_each_adds_alone(
    kind: str, tmp_path_factory: pytest.TempPathFactory, empty_yard: bytes, entries: list[LedgerEntry]
) -> None:
    def booked(book: Callable[[Platform, list[CompletionBooking]], None]) -> tuple[list[Any], list[Any]]:
        path: Path | None = None
        if kind == "sqlite":
            path = tmp_path_factory.mktemp("yard") / "yard.db"
            path.write_bytes(empty_yard)
        with open_platform(path, durability="process") as platform:
            for _ in range(2):  # again, as a step may be
                book(platform, bookings(platform, entries))
            return kept(platform)

    def together(platform: Platform, made: list[CompletionBooking]) -> None:
        platform._runtime.store.transact(lambda tx: book_together(tx, made))

    def alone(platform: Platform, made: list[CompletionBooking]) -> None:
        for one in made:
            platform._runtime.store.transact(one.step)

    assert booked(together) == booked(alone)


def test_of_bookings_that_share_a_transaction_each_keeps_its_answer() -> None:
    answers: list[str] = []
    with open_platform() as platform:
        made = bookings(platform, [entry(number, "a", "echo", 0, 1) for number in range(5)])
        for one in made:
            one.keep = lambda tx, id_=one.id: answers.append(id_)  # type: ignore[misc]
        platform._runtime.store.transact(lambda tx: book_together(tx, made))
        assert answers == [one.id for one in made]
        assert len(kept(platform)[0]) == 5


def test_of_bookings_that_share_a_transaction_each_asks_its_budgets() -> None:
    with open_platform() as platform:
        made = bookings(platform, [entry(number, "a", "echo", 0, 1) for number in range(5)])
        asked = [one.after_answer(Decimal(1), "") for one in made]
        platform._runtime.store.transact(lambda tx: book_together(tx, asked))
        assert all(one.admitted for one in asked)
        assert len(kept(platform)[0]) == 5
