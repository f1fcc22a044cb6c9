"""The laws of a store about records that are added together: as if one by one, but all or none."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.errors import RecordConflict, StoreError
from modelyard.parts.contracts.store_machine import UndoStep
from modelyard.parts.contracts.store_records import keep
from modelyard.parts.contracts.store_settings import changes_version
from modelyard.parts.contracts.store_values import UNKEEPABLE, Colour, Entry, Item, Setting, Specimen, items
from modelyard.protocols import Snapshot, Store, Tx

_quick = settings(max_examples=40, deadline=None, database=None, suppress_health_check=list(HealthCheck))
_MANY = 150
"""Records that no store needs to write at once."""

Answer = tuple[type[Exception] | None, str, list[object]]


def add_each(tx: Tx, records: Sequence[object]) -> None:
    for record in records:
        tx.add(record)


def add_together(tx: Tx, records: Sequence[object]) -> None:
    tx.add_all(records)


def _records(snapshot: Snapshot) -> list[object]:
    return [*snapshot.page(Item, "by_label", limit=1000), *snapshot.page(Entry, "all", limit=1000)]


def _answer(tx: Tx, add: Callable[[Tx, Sequence[object]], None], records: Sequence[object]) -> Answer:
    try:
        add(tx, records)
    except (RecordConflict, ValueError, TypeError) as error:
        return type(error), str(error), _records(tx)
    return None, "", _records(tx)


def _undone(store: Store, step: Callable[[Tx], Answer]) -> Answer:
    answers: list[Answer] = []

    def undone(tx: Tx) -> None:
        answers.append(step(tx))
        raise UndoStep

    with pytest.raises(UndoStep):
        store.transact(undone)
    return answers[-1]


_unkeepable: st.SearchStrategy[object] = st.sampled_from([Item("\ud800", 1), Item("a", 2**63), Item("a", None), 5])  # type: ignore[arg-type]
_entries: st.SearchStrategy[Entry] = st.builds(Entry, id=st.text("abcdefghij", min_size=1, max_size=1))
several: st.SearchStrategy[list[Any]] = (
    st.lists(items, max_size=12, unique_by=(lambda item: (item.shelf, item.number)))
    | st.lists(_entries, max_size=12, unique_by=lambda entry: entry.id)
    | st.lists(items | _entries | _unkeepable, max_size=8)
)
"""Records to be added together: few of the lists are refused, and few are of several classes."""


def _refused_between(before: object, records: Sequence[object], after: object, tx: Tx) -> None:
    tx.add(before)
    with pytest.raises(RecordConflict):
        tx.add_all(records)
    tx.add(after)


class AdditionLaws:
    """Laws of records that are added, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def test_records_added_together_are_those_added_one_by_one_or_none(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Entry("a"))
        before = store.read(_records)

        @_quick
        @given(several)
        def compare(records: list[object]) -> None:
            error, words, kept = _undone(store, lambda tx: _answer(tx, add_each, records))
            together = _undone(store, lambda tx: _answer(tx, add_together, records))
            assert together == (error, words, kept if error is None else before)

        compare()
        assert store.read(_records) == before

    def test_many_records_are_listed_in_the_order_in_which_they_were_added_together(self, store: Store) -> None:
        def step(tx: Tx) -> list[int]:
            tx.add(Entry("first"))
            tx.add_all(entries)
            tx.add(Entry("last"))
            return [tx.get(Entry, name).seq for name in expected]

        entries = [Entry(f"{number * 7 % _MANY:03}", text=str(number)) for number in range(_MANY)]
        expected = ["first", *(entry.id for entry in entries), "last"]
        numbers = store.transact(step)
        assert numbers == sorted({*numbers})
        found = store.read(lambda snapshot: snapshot.page(Entry, "all", limit=1000))
        assert [(entry.id, entry.seq) for entry in found] == list(zip(expected, numbers, strict=True))
        assert found[1:-1] == entries

    def test_one_of_many_that_is_refused_keeps_out_the_others(self, store: Store) -> None:
        keep(store, Item("a", -1, "taken"), Entry("taken", "b"))
        expected = [*store.read(_records)]
        for at in (0, 1, 70, 100, _MANY - 1):
            labels = ["taken" if number == at else str(number) for number in range(_MANY)]
            for records in (
                [Item("a", number, label) for number, label in enumerate(labels)],
                [Entry(label) for label in labels],
            ):
                before, after = Entry(f"before {len(expected)}"), Entry(f"after {len(expected)}")
                store.transact(partial(_refused_between, before, records, after))
                expected += (before, after)
                assert store.read(_records) == expected

    def test_one_that_cannot_be_kept_keeps_out_the_others(self, store: Store) -> None:
        good = [Specimen(f"good {number}") for number in range(6)]
        for values in UNKEEPABLE:
            with pytest.raises((ValueError, TypeError, StoreError)):
                store.transact(lambda tx, v=values: tx.add_all([*good, Specimen("bad", **v)]))  # type: ignore[misc]
        with pytest.raises(TypeError):
            store.transact(lambda tx: tx.add_all([Colour.RED] * 6))
        keep(store, *good)

    def test_no_record_is_added_together_with_none(self, store: Store) -> None:
        store.transact(lambda tx: tx.add_all([]))
        assert store.read(_records) == []

    def test_records_with_settings_added_together_change_the_version(self, store: Store) -> None:
        assert changes_version(store, lambda tx: tx.add_all([Setting(str(number)) for number in range(6)]))
