"""Steps of different domains run at the same time, and numbers are committed in their order all the same."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest

from modelyard.parts.contracts.store_values import Counter, Entry
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import DomainStep, Store, Tx
from modelyard.testing import CONTRACT_RECORDS
from polling import until


@pytest.fixture
def stores(yard_address: str) -> Iterator[list[Store]]:
    with (
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as one,
        closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as other,
    ):
        yield [one, other]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


def waits_or_ends(address: str, future: "Future[Any]") -> bool:
    """Wait until a step elsewhere has ended, or waits for a lock. Return whether it has ended."""
    with psycopg.connect(address, autocommit=True) as connection:
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        until(lambda: future.done() or connection.execute(waiting).fetchone()[0])
    return future.done()


def test_steps_of_different_domains_do_not_wait_for_each_other(
    stores: list[Store], pool: ThreadPoolExecutor, yard_address: str
) -> None:
    ended = []

    def outer(tx: Tx) -> None:
        tx.add(Counter("a"))
        tx.find(Counter, "key", "b")  # so that the transaction has begun
        inner = DomainStep(lambda tx: tx.add(Counter("b")), [("counter", "b")])
        ended.append(waits_or_ends(yard_address, pool.submit(stores[1].transact, inner)))

    stores[0].transact(DomainStep(outer, [("counter", "a")]))
    assert ended[0] is True


@pytest.mark.parametrize("inner", [[("counter", "a")], [("counter", "b"), ("counter", "a")], None])
def test_steps_of_the_same_domain_or_of_everything_wait(
    stores: list[Store], pool: ThreadPoolExecutor, yard_address: str, inner: Any
) -> None:
    ended: list[Any] = []

    def outer(tx: Tx) -> None:
        tx.find(Counter, "key", "a")
        if not ended:
            step = DomainStep(lambda tx: tx.add(Counter("a")), inner or ())
            future = pool.submit(stores[1].transact, step if inner else step.step)
            ended.extend([waits_or_ends(yard_address, future), future])

    stores[0].transact(DomainStep(outer, [("counter", "a")]))
    assert ended[0] is False
    ended[1].result()


def test_numbers_are_committed_in_their_order(stores: list[Store], pool: ThreadPoolExecutor, yard_address: str) -> None:
    ended: list[Any] = []

    def early(tx: Tx) -> None:
        tx.add(Entry("early", "a"))
        tx.count(Entry, "by_topic", "a")  # so that it has drawn its number
        if not ended:
            late = DomainStep(lambda tx: tx.add(Entry("late", "b")), [("topic", "b")])
            future = pool.submit(stores[1].transact, late)
            ended.extend([waits_or_ends(yard_address, future), future])

    stores[0].transact(DomainStep(early, [("topic", "a")]))
    assert ended[0] is False, "a later number could be seen before an earlier one"
    ended[1].result()
    assert [entry.id for entry in stores[0].read(lambda s: s.page(Entry, "all"))] == ["early", "late"]


def test_a_key_that_two_domains_add_at_once_is_taken_once(
    stores: list[Store], pool: ThreadPoolExecutor, yard_address: str
) -> None:
    """It is against the rules of domains, and still no record is lost or made up."""
    ended: list[Any] = []

    def first(tx: Tx) -> None:
        tx.add(Counter("shared", 1))
        tx.count(Entry, "all")
        if not ended:
            second = DomainStep(lambda tx: tx.add(Counter("shared", 2)), [("counter", "b")])
            future = pool.submit(stores[1].transact, second)
            ended.extend([waits_or_ends(yard_address, future), future])

    outcomes = []
    for outcome in (lambda: stores[0].transact(DomainStep(first, [("counter", "a")])), lambda: ended[1].result()):
        try:
            outcome()
            outcomes.append("added")
        except Exception as error:
            outcomes.append(type(error).__name__)
    assert sorted(outcomes) == ["RecordConflict", "added"]
