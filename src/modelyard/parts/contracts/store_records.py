"""The laws of a store about records: its operations, its listings and the values that it stores."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.domain.record import KEY
from modelyard.errors import RecordConflict, RecordNotFound, StoreError
from modelyard.parts.contracts.store_machine import Window, names_of_columns, sorted_items, windows
from modelyard.parts.contracts.store_values import ITEM, UNKEEPABLE, Colour, Item, Specimen, items, specimens
from modelyard.protocols import Snapshot, Store, Tx
from modelyard.stores.conversions_fast import MAX_INDEXED

_quick = settings(max_examples=25, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def keep(store: Store, *records: object) -> None:
    def step(tx: Tx) -> None:
        for record in records:
            tx.add(record)

    store.transact(step)


def clear(store: Store, chosen: Sequence[Item]) -> None:
    def step(tx: Tx) -> None:
        for item in chosen:
            tx.remove(Item, item.shelf, item.number)

    store.transact(step)


def all_items(store: Store) -> list[Item]:
    return store.read(lambda snapshot: snapshot.page(Item, "by_label", limit=1000))


class RecordLaws:
    """Laws of single records, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    # ---- operations ----

    def test_what_was_added_is_got(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        assert store.read(lambda snapshot: snapshot.get(Item, "a", 1)) == Item("a", 1, "x")

    def test_get_of_a_missing_key_raises(self, store: Store) -> None:
        keep(store, Item("a", 1))
        for key in (("a", 2), ("b", 1), ("\ud800", 1), ("a", 2**70)):
            with pytest.raises(RecordNotFound):
                store.read(lambda snapshot, key=key: snapshot.get(Item, *key))  # type: ignore[misc]

    def test_what_is_indexed_is_bounded(self, store: Store) -> None:
        longest = "\u00e9" * (MAX_INDEXED // 2)
        keep(store, Item(longest, 1, longest), Specimen("s", text=longest * 100))
        assert store.read(lambda snapshot: snapshot.get(Item, longest, 1)).label == longest
        for item in (Item(longest + "x", 2), Item("a", 2, longest + "x")):
            with pytest.raises(ValueError, match="1000 bytes"):
                keep(store, item)
        with pytest.raises(ValueError, match="1000 bytes"):
            store.transact(lambda tx: tx.replace(Item(longest, 1, longest + "x")))
        assert store.read(lambda snapshot: snapshot.find(Item, KEY, longest + "x", 2)) is None
        assert all_items(store) == [Item(longest, 1, longest)]

    def test_a_taken_key_is_refused(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        with pytest.raises(RecordConflict):
            keep(store, Item("a", 1, "y"))
        assert all_items(store) == [Item("a", 1, "x")]

    def test_a_taken_unique_key_is_refused_when_adding(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Item("b", 1, "x"))
        with pytest.raises(RecordConflict):
            keep(store, Item("a", 2, "x"))
        assert all_items(store) == [Item("a", 1, "x"), Item("b", 1, "x")]

    def test_a_taken_unique_key_is_refused_when_replacing(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Item("a", 2, "y"))
        with pytest.raises(RecordConflict):
            store.transact(lambda tx: tx.replace(Item("a", 2, "x")))
        assert all_items(store) == [Item("a", 1, "x"), Item("a", 2, "y")]

    def test_records_without_a_label_do_not_conflict_and_are_not_found_by_it(self, store: Store) -> None:
        keep(store, Item("a", 1), Item("a", 2))
        assert store.read(lambda snapshot: snapshot.find(Item, "label", "a", None)) is None
        assert len(all_items(store)) == 2

    def test_find_by_a_unique_key(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Item("b", 2, "x"))
        assert store.read(lambda snapshot: snapshot.find(Item, "label", "b", "x")) == Item("b", 2, "x")
        assert store.read(lambda snapshot: snapshot.find(Item, "label", "b", "y")) is None

    def test_find_by_the_key(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        assert store.read(lambda snapshot: snapshot.find(Item, KEY, "a", 1)) == Item("a", 1, "x")
        assert store.read(lambda snapshot: snapshot.find(Item, KEY, "a", 2)) is None

    def test_replace_puts_the_whole_record_and_frees_its_unique_key(self, store: Store) -> None:
        keep(store, Item("a", 1, "x", rank=5))
        store.transact(lambda tx: tx.replace(Item("a", 1, "y", colour=Colour.BLUE)))
        keep(store, Item("a", 2, "x"))
        assert all_items(store) == [Item("a", 2, "x"), Item("a", 1, "y", colour=Colour.BLUE)]

    def test_replace_and_remove_of_a_missing_record_raise(self, store: Store) -> None:
        with pytest.raises(RecordNotFound):
            store.transact(lambda tx: tx.replace(Item("a", 1)))
        with pytest.raises(RecordNotFound):
            store.transact(lambda tx: tx.remove(Item, "a", 1))

    def test_remove_frees_every_key(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        store.transact(lambda tx: tx.remove(Item, "a", 1))
        assert all_items(store) == []
        keep(store, Item("a", 1, "x"))
        assert all_items(store) == [Item("a", 1, "x")]

    def test_a_step_sees_what_it_wrote(self, store: Store) -> None:
        def step(tx: Tx) -> tuple[Any, ...]:
            tx.add(Item("a", 1, "x"))
            tx.replace(attrs.evolve(tx.get(Item, "a", 1), label="y"))
            tx.replace(attrs.evolve(tx.get(Item, "a", 1), rank=3))
            tx.add(Item("a", 2, "x"))
            tx.remove(Item, "a", 2)
            return tx.find(Item, "label", "a", "y"), tx.count(Item, "by_shelf", "a"), tx.page(Item, "by_shelf", "a")

        kept = Item("a", 1, "y", rank=3)
        assert store.transact(step) == (kept, 1, [kept])

    def test_a_step_that_makes_a_record_anew_replaces_the_new_one(self, store: Store) -> None:
        first, second = Item("a", 1, rank=1), Item("a", 1, rank=2)

        def step(tx: Tx) -> Item:
            tx.replace(tx.get(Item, "a", 1))
            tx.remove(Item, "a", 1)
            tx.add(second)
            tx.replace(first)
            return tx.get(Item, "a", 1)

        keep(store, first)
        assert store.transact(step) == first

    def test_a_record_that_was_not_declared_is_refused(self, store: Store) -> None:
        for use in (lambda tx: tx.add(Colour.RED), lambda tx: tx.get(Colour, 1)):
            with pytest.raises(TypeError):
                store.transact(use)

    # ---- listings ----

    def test_pages_are_sorted_and_cursors_visit_every_record_once(self, store: Store) -> None:
        @_quick
        @given(st.lists(items, unique_by=(lambda i: (i.shelf, i.number), _label_of)))
        def walk(chosen: list[Item]) -> None:
            keep(store, *chosen)
            for index in ITEM.indexes:
                for descending in (False, True):
                    self._walk(store, chosen, index, descending)
            clear(store, chosen)

        walk()

    def _walk(self, store: Store, chosen: Sequence[Item], index: str, descending: bool) -> None:
        for where in {_where_of(item, index) for item in chosen}:
            group = [item for item in chosen if _where_of(item, index) == where]
            expected = sorted_items(group, index, descending)
            assert self._visited(store, index, where, descending) == expected
            assert store.read(lambda snapshot, w=where: snapshot.count(Item, index, *w)) == len(expected)  # type: ignore[misc]

    def _visited(self, store: Store, index: str, where: tuple[object, ...], descending: bool) -> list[Item]:
        visited: list[Item] = []

        def next_page(snapshot: Snapshot) -> list[Item]:
            after = ITEM.cursor(index, visited[-1]) if visited else None
            return snapshot.page(Item, index, *where, after=after, limit=2, descending=descending)

        while page := store.read(next_page):
            visited += page
        return visited

    def test_a_cursor_outlives_its_record(self, store: Store) -> None:
        keep(store, Item("a", 1), Item("a", 2), Item("a", 3))
        store.transact(lambda tx: tx.remove(Item, "a", 2))
        after = ITEM.cursor("by_shelf", Item("a", 2))
        page = store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a", after=after))
        assert page == [Item("a", 3)]

    def test_what_no_record_can_have_matches_none(self, store: Store) -> None:
        keep(store, Item("a", 1))
        for shelf in ("b", "\ud800"):
            assert store.read(lambda snapshot, s=shelf: snapshot.page(Item, "by_shelf", s)) == []  # type: ignore[misc]
            assert store.read(lambda snapshot, s=shelf: snapshot.count(Item, "by_shelf", s)) == 0  # type: ignore[misc]

    def test_select_gives_the_named_columns_of_the_same_page(self, store: Store) -> None:
        @_quick
        @given(st.lists(items, unique_by=(lambda i: (i.shelf, i.number), _label_of)), windows, names_of_columns)
        def look(chosen: list[Item], window: Window, names: list[str]) -> None:
            keep(store, *chosen)
            page, selected = store.read(lambda snapshot: (window.page(snapshot), window.select(snapshot, names)))
            clear(store, chosen)
            assert selected == [tuple(getattr(item, name) for name in names) for item in page]

        look()

    def test_select_sees_what_its_step_wrote(self, store: Store) -> None:
        def step(tx: Tx) -> tuple[Any, ...]:
            tx.add(Item("a", 1, "x", rank=1))
            tx.add(Item("a", 2, "y"))
            tx.replace(attrs.evolve(tx.get(Item, "a", 2), rank=2))
            tx.remove(Item, "a", 1)
            return tuple(tx.select(Item, ("rank", "label"), "by_shelf", "a"))

        assert store.transact(step) == ((2, "y"),)

    def test_a_limit_is_kept_and_a_negative_one_refused(self, store: Store) -> None:
        keep(store, Item("a", 1), Item("a", 2))
        assert store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a", limit=0)) == []
        assert len(store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a", limit=2**80))) == 2
        with pytest.raises(ValueError, match="limit"):
            store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a", limit=-1))
        with pytest.raises(ValueError, match="limit"):
            store.read(lambda snapshot: snapshot.select(Item, ("number",), "by_shelf", "a", limit=-1))

    # ---- values ----

    def test_every_value_comes_back_equal(self, store: Store) -> None:
        @_quick
        @given(specimens)
        def round_trip(specimen: Specimen) -> None:
            keep(store, specimen)
            kept = store.read(lambda snapshot: snapshot.get(Specimen, specimen.id))
            assert kept == specimen
            for field in attrs.fields(Specimen):
                value = getattr(specimen, field.name)
                assert isinstance(value, dict) or type(getattr(kept, field.name)) is type(value)
            ((*selected, _),) = store.read(
                lambda snapshot: snapshot.select(Specimen, (*_FIELDS, "id"), "by_colour", specimen.maybe_colour)
            )
            assert list(map(type, selected)) == [type(getattr(kept, name)) for name in _FIELDS]
            assert tuple(selected) == attrs.astuple(kept, recurse=False)
            store.transact(lambda tx: tx.remove(Specimen, specimen.id))

        round_trip()

    def test_what_cannot_be_kept_is_refused_and_changes_nothing(self, store: Store) -> None:
        keep(store, Specimen("there"))
        for values in UNKEEPABLE:
            with pytest.raises((ValueError, TypeError, StoreError)):
                keep(store, Specimen("new", **values))
            with pytest.raises((ValueError, TypeError, StoreError)):
                store.transact(lambda tx, v=values: tx.replace(Specimen("there", **v)))  # type: ignore[misc]
        assert store.read(lambda snapshot: snapshot.get(Specimen, "there")) == Specimen("there")
        with pytest.raises(RecordNotFound):
            store.read(lambda snapshot: snapshot.get(Specimen, "new"))

    def test_times_come_back_in_utc(self, store: Store) -> None:
        at = datetime(2026, 3, 1, 1, 30, tzinfo=timezone(timedelta(hours=2)))
        keep(store, Specimen("s", at=at))
        kept = store.read(lambda snapshot: snapshot.get(Specimen, "s")).at
        assert (kept, kept.tzinfo) == (at, UTC)

    def test_nothing_inside_a_record_can_change(self, store: Store) -> None:
        given_mapping: dict[str, Any] = {"inner": {"list": [1, {"deep": 2}]}, "flat": 1}
        keep(store, Specimen("s", mapping=given_mapping))
        given_mapping["inner"]["list"].append(3)
        given_mapping["flat"] = 2
        mapping: Any = store.read(lambda snapshot: snapshot.get(Specimen, "s")).mapping
        ((selected,),) = store.read(lambda snapshot: snapshot.select(Specimen, ("mapping",), "by_colour", None))
        for found in (mapping, selected):
            assert found == {"inner": {"list": (1, {"deep": 2})}, "flat": 1}
            for target in (found, found["inner"], found["inner"]["list"][1]):
                with pytest.raises(TypeError):
                    target["new"] = 1


_FIELDS = [field.name for field in attrs.fields(Specimen)]


def _where_of(item: Item, index: str) -> tuple[object, ...]:
    return tuple(getattr(item, name) for name in ITEM.indexes[index].where)


def _label_of(item: Item) -> tuple[object, ...]:
    return (item.shelf, item.label) if item.label is not None else (item.shelf, item.number, None)
