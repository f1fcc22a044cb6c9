"""The laws of a store about totals: each is the sum of what was added, for every reader and in every order."""

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.contracts.store_machine import UndoStep
from modelyard.parts.contracts.store_records import keep
from modelyard.parts.contracts.store_values import Sale, Tally, tally_of
from modelyard.protocols import Snapshot, Store, Tx

_quick = settings(max_examples=30, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_PENNY = Decimal("0.000000000000000000000000000000001")

sales: st.SearchStrategy[list[Sale]] = st.lists(
    st.builds(
        Sale,
        st.integers(0, 99).map(str),
        st.sampled_from(["a", "a\0", "ä", "b", ""]),
        st.integers(0, 80),
        st.decimals(-1000, 1000, places=9),
    ),
    max_size=40,
    unique_by=lambda sale: sale.id,
)


def tallies(store: Store, day: str = "day 0") -> list[Tally]:
    return store.read(lambda snapshot: snapshot.page(Tally, "by_day", day))


def _expected(added: Sequence[Sale]) -> dict[tuple[str, str], Tally]:
    totals: dict[tuple[str, str], Tally] = {}
    for sale in added:
        one = tally_of(sale)
        key = (one.name, one.day)
        totals[key] = totals[key] + one if key in totals else one
    return totals


class TotalLaws:
    def test_a_record_is_added_to_its_total_exactly(self, store: Store) -> None:
        penny = Sale("1", amount=_PENNY)

        def step(tx: Tx) -> list[Tally]:
            tx.add(penny)
            seen = tx.get(Tally, "a", "day 0")
            tx.add(Sale("2", amount=Decimal(1000000000)))
            tx.add(Sale("3", "b"))
            return [seen, tx.get(Tally, "a", "day 0")]

        both = Decimal("1000000000.000000000000000000000000000000001")
        assert store.transact(step) == [Tally("a", "day 0", 1, _PENNY), Tally("a", "day 0", 2, both)]
        keep(store, Sale("4", hour=23, amount=Decimal("-0.5")), Sale("5", hour=24))
        assert tallies(store) == [
            Tally("a", "day 0", 3, Decimal("999999999.500000000000000000000000000000001")),
            Tally("b", "day 0", 1),
        ]
        assert tallies(store, "day 1") == [Tally("a", "day 1", 1)]

    def test_a_total_is_undone_with_the_step(self, store: Store) -> None:
        keep(store, Sale("1"))

        def step(tx: Tx) -> None:
            for id_, name in enumerate("abb", 2):
                tx.add(Sale(str(id_), name))
            raise UndoStep

        with pytest.raises(UndoStep):
            store.transact(step)
        assert tallies(store) == [Tally("a", "day 0", 1)]

    def test_a_refused_record_adds_nothing(self, store: Store) -> None:
        keep(store, Sale("1"))
        wrong = [Sale("1"), Sale("2", hour=2**63), Sale("2", amount=Decimal("NaN")), Sale("2", "\ud800")]

        def step(tx: Tx) -> list[Tally]:
            for one in wrong:
                with pytest.raises((RecordConflict, ValueError)):
                    tx.add(one)
                with pytest.raises((RecordConflict, ValueError)):
                    tx.add_all([*(Sale(f"more {at}", "b") for at in range(70)), one])
            return tx.page(Tally, "by_day", "day 0")

        assert store.transact(step) == [Tally("a", "day 0", 1)] == tallies(store)

    def test_records_that_are_added_together_are_added_up(self, store: Store) -> None:
        store.transact(lambda tx: tx.add_all([Sale(str(at), "ab"[at % 2]) for at in range(101)]))
        assert tallies(store) == [Tally("a", "day 0", 51), Tally("b", "day 0", 50)]

    def test_what_is_replaced_or_removed_stays_in_its_total(self, store: Store) -> None:
        keep(store, Sale("1", amount=Decimal(2)), Sale("2", amount=Decimal(3)))
        store.transact(lambda tx: tx.replace(Sale("1", amount=Decimal(200))))
        store.transact(lambda tx: tx.remove(Sale, "2"))
        keep(store, Sale("2", amount=Decimal(4)))
        assert tallies(store) == [Tally("a", "day 0", 3, Decimal(9))]

    def test_a_total_is_replaced_as_it_is_now(self, store: Store) -> None:
        def step(tx: Tx) -> list[int]:
            tx.add(Sale("1"))
            seen = tx.get(Tally, "a", "day 0")
            tx.add(Sale("2"))
            tx.replace(seen)
            return [seen.count, tx.get(Tally, "a", "day 0").count]

        assert store.transact(step) == [1, 1]
        keep(store, Sale("3"))
        store.transact(lambda tx: tx.replace(Tally("a", "day 0", 10)))
        keep(store, Sale("4"))
        assert tallies(store) == [Tally("a", "day 0", 11)]

    def test_a_total_that_was_added_to_is_there(self, store: Store) -> None:
        keep(store, Sale("1"))
        with pytest.raises(RecordConflict):
            keep(store, Tally("a", "day 0", 7))
        with pytest.raises(RecordNotFound):
            store.transact(lambda tx: tx.replace(Tally("b", "day 0")))
        store.transact(lambda tx: tx.remove(Tally, "a", "day 0"))
        assert tallies(store) == []
        with pytest.raises(RecordNotFound):
            store.transact(lambda tx: tx.remove(Tally, "a", "day 0"))
        keep(store, Tally("a", "day 0", 5), Sale("2"))
        assert tallies(store) == [Tally("a", "day 0", 6)]

    def test_every_reading_shows_the_sums_of_what_was_added(self, store: Store) -> None:
        @_quick
        @given(sales, st.integers(1, 5), st.booleans())
        def compare(added: list[Sale], limit: int, descending: bool) -> None:
            store.transact(_remove_all)
            for sale in added:
                keep(store, sale)
            expected = _expected(added)
            by_day = defaultdict[str, list[Tally]](list)
            for key in sorted(expected, reverse=descending):
                by_day[key[1]].append(expected[key])
            assert store.read(lambda snapshot: _shown(snapshot, expected, limit, descending)) == by_day

        compare()


def _remove_all(tx: Tx) -> None:
    for sale in tx.page(Sale, "all", limit=1000):
        tx.remove(Sale, sale.id)
    for day in range(4):
        for tally in tx.page(Tally, "by_day", f"day {day}"):
            tx.remove(Tally, tally.name, tally.day)


def _shown(
    snapshot: Snapshot, expected: dict[tuple[str, str], Tally], limit: int, descending: bool
) -> dict[str, list[Tally]]:
    shown: dict[str, list[Tally]] = {}
    for day in {day for _, day in expected}:
        after, found = None, list[Tally]()
        while page := snapshot.page(Tally, "by_day", day, after=after, limit=limit, descending=descending):
            found += page
            after = (page[-1].name,)
        shown[day] = found
        names = snapshot.select(Tally, ["count", "name"], "by_day", day, descending=descending)
        assert names == [(one.count, one.name) for one in found]
        assert snapshot.count(Tally, "by_day", day) == len(found)
    for key, tally in expected.items():
        assert snapshot.get(Tally, *key) == tally == snapshot.find(Tally, "key", *key)
    return shown
