"""A search for histories in which a store and a plain dictionary disagree."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from modelyard.domain.record import KEY
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.contracts.store_values import ITEM, Colour, Item, items, shelves
from modelyard.protocols import Snapshot, Store, Tx

Expected = dict[tuple[str, int], Item]
Action = tuple[str, Item]

actions: st.SearchStrategy[Action] = st.tuples(st.sampled_from(["add", "replace", "remove"]), items)


class UndoStep(Exception):
    """Ends a step that the machine undoes."""


def sorted_items(chosen: Sequence[Item], index: str, descending: bool = False) -> list[Item]:
    """Sort items as a page of this index does: None first, enums by their value, the key last."""

    def rank(value: Any) -> tuple[bool, Any]:
        return value is not None, value.value if isinstance(value, Colour) else value

    return sorted(chosen, key=lambda item: [rank(v) for v in ITEM.cursor(index, item)], reverse=descending)


def apply_to_model(model: Expected, action: Action) -> type[Exception] | None:
    """Apply an action to a dictionary as a store would; return the error if it is refused."""
    verb, item = action
    key = (item.shelf, item.number)
    if verb != "add" and key not in model:
        return RecordNotFound
    if verb == "add" and key in model:
        return RecordConflict
    if verb == "remove":
        del model[key]
        return None
    labelled = [other for at, other in model.items() if at != key and item.label is not None]
    if any((other.shelf, other.label) == (item.shelf, item.label) for other in labelled):
        return RecordConflict
    model[key] = item
    return None


def apply_to_store(tx: Tx, action: Action) -> type[Exception] | None:
    verb, item = action
    try:
        if verb == "add":
            tx.add(item)
        elif verb == "replace":
            tx.replace(item)
        else:
            tx.remove(Item, item.shelf, item.number)
    except (RecordConflict, RecordNotFound) as error:
        return type(error)
    return None


@attrs.frozen
class Window:
    index: str
    after: Item
    limit: int
    descending: bool

    @property
    def where(self) -> list[Any]:
        return [getattr(self.after, name) for name in ITEM.indexes[self.index].where]

    @property
    def _after(self) -> Mapping[str, Any]:
        cursor = ITEM.cursor(self.index, self.after)
        return {"after": cursor, "limit": self.limit, "descending": self.descending}

    def page(self, snapshot: Snapshot) -> list[Item]:
        return snapshot.page(Item, self.index, *self.where, **self._after)

    def select(self, snapshot: Snapshot, names: Sequence[str]) -> list[tuple[Any, ...]]:
        return snapshot.select(Item, names, self.index, *self.where, **self._after)

    def of(self, model: Expected) -> list[Item]:
        group = [i for i in model.values() if [getattr(i, n) for n in ITEM.indexes[self.index].where] == self.where]
        ranked = sorted_items([*group, self.after], self.index, self.descending)
        cursor = ITEM.cursor(self.index, self.after)
        following = ranked[ranked.index(self.after) :]
        return [item for item in following if ITEM.cursor(self.index, item) != cursor][: self.limit]


windows: st.SearchStrategy[Window] = st.builds(
    Window,
    index=st.sampled_from(sorted(ITEM.indexes)),
    after=items,
    limit=st.integers(0, 3),
    descending=st.booleans(),
)
names_of_columns: st.SearchStrategy[list[str]] = st.lists(
    st.sampled_from([field.name for field in attrs.fields(Item)]), min_size=1, max_size=4
)


class StoreMachine(RuleBasedStateMachine):
    """Steps of several operations, some undone, compared with the same operations on a dictionary. See
    `machine_over`."""

    open_store: Callable[[], Store]
    reopen_store: Callable[[Store], Store]
    close_store: Callable[[Store], None]

    def __init__(self) -> None:
        super().__init__()
        self.store: Store = self.open_store()
        self.model: Expected = {}

    def teardown(self) -> None:
        self.close_store(self.store)

    @rule(chosen=st.lists(actions, max_size=4), durable=st.booleans())
    def step(self, chosen: list[Action], durable: bool) -> None:
        """Run a step in which each operation succeeds or is refused as it should be."""
        answers = self.store.transact(lambda tx: [apply_to_store(tx, action) for action in chosen], durable)
        assert answers == [apply_to_model(self.model, action) for action in chosen]

    @rule(chosen=st.lists(actions, max_size=4))
    def step_that_raises(self, chosen: list[Action]) -> None:
        def step(tx: Tx) -> None:
            for action in chosen:
                apply_to_store(tx, action)
            raise UndoStep

        try:
            self.store.transact(step)
        except UndoStep:
            return
        raise AssertionError("the store swallowed what its step raised")

    @rule(chosen=st.lists(items, min_size=1, max_size=6))
    def add_together(self, chosen: list[Item]) -> None:
        """Add several at once, or none of them if one is refused."""
        model = {**self.model}
        errors = [error for item in chosen if (error := apply_to_model(model, ("add", item))) is not None]

        def step(tx: Tx) -> bool:
            """Return whether they were added; the step itself is not undone."""
            try:
                tx.add_all(chosen)
            except RecordConflict:
                return False
            return True

        added = self.store.transact(step)
        assert added is not bool(errors)
        self.model = model if added else self.model

    @rule(changes=st.lists(st.tuples(items, st.none() | st.integers(-1, 1)), max_size=3))
    def read_and_replace(self, changes: list[tuple[Item, int | None]]) -> None:
        """Read a record and replace it by another version, as most steps do."""
        found = [item for item, _ in changes if (item.shelf, item.number) in self.model]
        ranks = {(item.shelf, item.number): rank for item, rank in changes}

        def step(tx: Tx) -> None:
            for item in found:
                old = tx.get(Item, item.shelf, item.number)
                tx.replace(attrs.evolve(old, rank=ranks[item.shelf, item.number]))

        self.store.transact(step)
        for item in found:
            key = (item.shelf, item.number)
            self.model[key] = attrs.evolve(self.model[key], rank=ranks[key])

    @rule(shelf=shelves, number=st.integers(-1, 2))
    def get(self, shelf: str, number: int) -> None:
        expected = self.model.get((shelf, number))
        assert self.store.read(lambda snapshot: snapshot.find(Item, KEY, shelf, number)) == expected
        try:
            assert self.store.read(lambda snapshot: snapshot.get(Item, shelf, number)) == expected
        except RecordNotFound:
            assert expected is None

    @rule(shelf=shelves, label=st.none() | st.sampled_from(["", "x", "y", "\x00"]))
    def find(self, shelf: str, label: str | None) -> None:
        """Find by unique key; None finds nothing."""
        same = [i for i in self.model.values() if label is not None and (i.shelf, i.label) == (shelf, label)]
        assert self.store.read(lambda snapshot: snapshot.find(Item, "label", shelf, label)) == next(iter(same), None)

    @rule(window=windows)
    def page(self, window: Window) -> None:
        """Read a page after any cursor."""
        assert self.store.read(window.page) == window.of(self.model)

    @rule(window=windows, names=names_of_columns)
    def select(self, window: Window, names: list[str]) -> None:
        """Read some columns of a page after any cursor."""
        expected = [tuple(getattr(item, name) for name in names) for item in window.of(self.model)]
        assert self.store.read(lambda snapshot: window.select(snapshot, names)) == expected

    @rule()
    def reopen(self) -> None:
        """Reopen the store, if possible; everything must still be there."""
        self.store = self.reopen_store(self.store)

    @invariant()
    def holds_what_the_dictionary_holds(self) -> None:
        """Compare everything, in order, and the counts."""
        expected = sorted_items(list(self.model.values()), "by_label")
        assert self.store.read(lambda snapshot: snapshot.page(Item, "by_label")) == expected
        assert self.store.read(lambda snapshot: snapshot.count(Item, "by_label")) == len(expected)


def _same(store: Store) -> Store:
    return store


def machine_over(open_store: Callable[[], Store], reopen_store: Callable[[Store], Store] = _same) -> type[StoreMachine]:
    """Create a machine for hypothesis' `run_state_machine_as_test`. `open_store` opens an empty store with
    `CONTRACT_RECORDS`; `reopen_store` closes one and opens its records again."""
    return _machine(open_store, reopen_store, lambda store: store.close())


def machine_on(store: Store) -> type[StoreMachine]:
    """Create a machine for one store, which is emptied before each history and stays open."""
    return _machine(lambda: _emptied(store), _same, lambda store: None)


def _machine(
    open_store: Callable[[], Store], reopen_store: Callable[[Store], Store], close_store: Callable[[Store], None]
) -> type[StoreMachine]:
    members = {
        "open_store": staticmethod(open_store),
        "reopen_store": staticmethod(reopen_store),
        "close_store": staticmethod(close_store),
    }
    return type("StoreMachineOver", (StoreMachine,), members)


def _emptied(store: Store) -> Store:
    def step(tx: Tx) -> None:
        for item in tx.page(Item, "by_label", limit=1000):
            tx.remove(Item, item.shelf, item.number)

    store.transact(step)
    return store
