"""The laws of a store about steps that stay in domains: no caller can see whether it runs them at once."""

from collections.abc import Callable

import attrs
import pytest

from modelyard.errors import RecordConflict
from modelyard.parts.contracts.store_order import check_followers
from modelyard.parts.contracts.store_pairs import How, PairLaws
from modelyard.parts.contracts.store_records import keep
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.protocols import DomainStep, Store, Tx

TIMES = 25
NAMES = ("a", "b")


def add_to(*names: str) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        for name in names:
            counter = tx.get(Counter, name)
            tx.replace(attrs.evolve(counter, value=counter.value + 1))

    return DomainStep(step, [("counter", name) for name in names])


def move_one(tx: Tx) -> None:
    first, second = (tx.get(Counter, name) for name in NAMES)
    tx.replace(attrs.evolve(first, value=first.value - 1))
    tx.replace(attrs.evolve(second, value=second.value + 1))
    tx.add(Item("totals", tx.count(Item, "by_shelf", "totals"), rank=first.value + second.value))


def change_counters(number: int, store: Store) -> None:
    for time in range(TIMES):
        store.transact(add_to(NAMES[(number + time) % 2]), durable=time % 2 == 0)
        store.transact(add_to(*NAMES))
        if time % 5 == 0:
            store.transact(move_one)


class DomainLaws(PairLaws):
    """Laws of records that stay with one entity, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def test_a_step_within_a_domain_is_a_step(self, store: Store) -> None:
        keep(store, Counter("a"), Item("shelf", 1))
        store.transact(add_to("a"))
        with pytest.raises(RecordConflict):
            store.transact(DomainStep(lambda tx: tx.add(Counter("a")), [("counter", "a")]))
        seen = store.transact(DomainStep(lambda tx: tx.count(Item, "by_shelf", "shelf"), [("counter", "a")]))
        assert (seen, store.read(lambda snapshot: snapshot.get(Counter, "a")).value) == (1, 1)

    def test_steps_of_domains_and_of_everything_are_serial(self, store: Store, how: How) -> None:
        with self._workers(store, how) as twice:
            keep(store, *(Counter(name) for name in NAMES))
            assert twice(change_counters) == [None, None]
        kept = [store.read(lambda snapshot, n=name: snapshot.get(Counter, n)).value for name in NAMES]  # type: ignore[misc]
        assert sum(kept) == 2 * 3 * TIMES
        assert kept[1] - kept[0] == 2 * 2 * TIMES // 5
        totals = store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "totals"))
        assert [item.number for item in totals] == [*range(2 * TIMES // 5)]
        assert sorted(item.rank or 0 for item in totals) == [item.rank or 0 for item in totals]

    def test_a_follower_misses_nothing_of_steps_of_different_domains(self, store: Store) -> None:
        open_store = self.another(store)
        stores = [store] if open_store is None else [store, open_store()]
        check_followers([*stores, *stores], stores, within=True)
        for other in stores[1:]:
            other.close()
