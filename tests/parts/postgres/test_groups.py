"""Steps that share a transaction: their outcomes are those of the same steps one after the other."""

from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from functools import partial
from itertools import count
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.contracts.store_machine import (
    Action,
    Expected,
    UndoStep,
    actions,
    apply_to_model,
    apply_to_store,
    sorted_items,
)
from modelyard.parts.contracts.store_records import all_items
from modelyard.parts.contracts.store_values import Counter, Entry, Item, Sale, Tally, tally_of
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.postgres.wire import Wire
from modelyard.protocols import Tx
from modelyard.stores.pending_steps import PendingStep
from modelyard.testing import CONTRACT_RECORDS

LISTED = "list"
Plan = tuple[list[Action | str], bool]

steps: st.SearchStrategy[Plan] = st.tuples(st.lists(actions | st.just(LISTED), max_size=4), st.booleans())


@pytest.fixture
def store(yard_address: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as store:
        yield store


def run(store: PostgresStore, *wanted: Any) -> list[Any]:
    """Run steps as one group, and return what each returned or raised."""
    group: list[PendingStep[Any]] = [PendingStep(step, durable=True) for step in wanted]
    store._writer.run(group)
    assert all(call.settled for call in group)
    return [call.value if call.error is None else call.error for call in group]


def test_a_group_is_as_its_steps_one_after_the_other(store: PostgresStore) -> None:
    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(steps, min_size=1, max_size=4), min_size=1, max_size=3))
    def compare(groups: list[list[Plan]]) -> None:
        store.transact(lambda tx: [tx.remove(Item, i.shelf, i.number) for i in tx.page(Item, "by_label", limit=1000)])
        model: Expected = {}
        for group in groups:
            answers = run(store, *[_step(*plan) for plan in group])
            for (chosen, undone), answer in zip(group, answers, strict=True):
                after = dict(model)
                expected = [_expected(after, action) for action in chosen]
                if undone:
                    assert isinstance(answer, UndoStep)
                    assert answer.args[0] == expected
                else:
                    assert answer == expected
                    model = after
            assert all_items(store) == sorted_items([*model.values()], "by_label")

    compare()


def _step(chosen: list[Action | str], undone: bool) -> Any:
    def step(tx: Tx) -> list[object]:
        found = [_listed(tx) if action == LISTED else apply_to_store(tx, action) for action in chosen]
        if undone:
            raise UndoStep(found)
        return found

    return step


def _listed(tx: Tx) -> list[Item]:
    return tx.page(Item, "by_label", limit=1000)


def _expected(model: Expected, action: Action | str) -> object:
    return sorted_items([*model.values()], "by_label") if action == LISTED else apply_to_model(model, action)


def test_sums_are_added_without_a_question_and_are_those_of_the_steps_one_by_one(store: PostgresStore) -> None:
    adding = st.tuples(st.sampled_from("ab"), st.sampled_from(["add", "see", "remove", "replace"]), st.integers(-3, 3))
    step = st.tuples(st.lists(adding, max_size=4), st.booleans())

    @settings(max_examples=60, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.lists(step, min_size=1, max_size=4), min_size=1, max_size=3))
    def compare(groups: list[list[Any]]) -> None:
        store.transact(lambda tx: [tx.remove(Tally, t.name, t.day) for t in tx.page(Tally, "by_day", "day 0")])
        model: dict[str, Tally] = {}
        for group in groups:
            answers = run(store, *[partial(_sum, _sales(actions), undone) for actions, undone in group])
            for (actions_, undone), answer in zip(group, answers, strict=True):
                after = dict(model)
                expected = [_summed(after, *action) for action in actions_]
                assert answer == ("undone" if undone else expected) or (undone and isinstance(answer, UndoStep))
                model = model if undone else after
            found = store.read(lambda snapshot: snapshot.page(Tally, "by_day", "day 0"))
            assert found == [model[name] for name in sorted(model)]

    compare()


_ids = count()


def _sales(actions: list[Any]) -> list[tuple[str, Sale]]:
    """What is done, and what is sold: a step that runs again sells the same."""
    return [(what, Sale(str(next(_ids)), name, 0, Decimal(cents) / 1000)) for name, what, cents in actions]


def _sum(actions: list[tuple[str, Sale]], undone: bool, tx: Tx) -> list[object]:
    seen: list[object] = []
    for what, sale in actions:
        if what == "add":
            seen.append(tx.add(sale))
            continue
        found = tx.find(Tally, "key", sale.name, "day 0")
        if found is not None and what == "remove":
            tx.remove(Tally, sale.name, "day 0")
        if found is not None and what == "replace":
            tx.replace(tally_of(sale))
        seen.append(found)
    if undone:
        raise UndoStep
    return seen


def _summed(model: dict[str, Tally], name: str, what: str, cents: int) -> object:
    tally, found = Tally(name, "day 0", 1, Decimal(cents) / 1000), model.get(name)
    if what == "add":
        model[name] = tally if found is None else found + tally
        return None
    if found is not None and what == "remove":
        del model[name]
    if found is not None and what == "replace":
        model[name] = tally
    return found


def test_sums_of_a_step_that_raises_are_taken_from_those_of_the_others(store: PostgresStore) -> None:
    steps = [partial(_sum, _sales([("a", "add", 1)]), undone) for undone in (False, True, False)]
    *_, last = run(store, *steps)
    assert last == [None]
    assert store.read(lambda snapshot: snapshot.get(Tally, "a", "day 0")).count == 2


def test_sums_of_a_group_travel_once(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = _count_trips(monkeypatch)
    run(store, *[partial(_sum, _sales([("a", "add", 1)]), False) for _ in range(50)])
    assert len(trips) == 1
    assert store.read(lambda snapshot: snapshot.get(Tally, "a", "day 0")).count == 50


def test_a_step_whose_guess_was_wrong_runs_again_and_others_stay(store: PostgresStore) -> None:
    store.transact(lambda tx: tx.add(Item("a", 1, "x")))

    def conflicting(tx: Tx) -> str:
        try:
            tx.add(Item("a", 2, "x"))
        except RecordConflict:
            return "refused"
        return "added"

    def raising(tx: Tx) -> None:
        conflicting(tx)
        raise UndoStep(conflicting(tx))

    first, second, third = run(store, conflicting, lambda tx: tx.add(Item("b", 1)), raising)
    assert (first, second, third.args) == ("refused", None, ("refused",))
    assert [item.shelf for item in all_items(store)] == ["b", "a"]


def test_a_group_travels_in_as_many_round_trips_as_one_step(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.transact(lambda tx: [tx.add(Counter(f"c{n}")) for n in range(50)])
    trips = _count_trips(monkeypatch)

    def append(number: int) -> Any:
        def step(tx: Tx) -> int:
            counter = tx.get(Counter, f"c{number}")
            tx.replace(attrs.evolve(counter, value=counter.value + 1))
            tx.add(Entry(f"e{number}"))
            return counter.value

        return step

    assert run(store, *[append(number) for number in range(50)]) == [0] * 50
    assert len(trips) == 2
    assert store.read(lambda snapshot: snapshot.count(Entry, "all")) == 50
    assert [store.read(lambda s, n=n: s.get(Counter, f"c{n}")).value for n in (0, 49)] == [1, 1]


def test_replacements_of_one_record_are_one_statement(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.transact(lambda tx: tx.add(Counter("c")))
    sent: list[str] = []
    round_trip = PipelinedConnection.round_trip
    monkeypatch.setattr(
        PipelinedConnection,
        "round_trip",
        lambda self, statements: (sent.extend(sql for sql, _ in statements), round_trip(self, statements))[1],
    )

    def increment(tx: Tx) -> int:
        counter = tx.get(Counter, "c")
        tx.replace(attrs.evolve(counter, value=counter.value + 1))
        return counter.value

    assert run(store, *[increment] * 20) == [*range(20)]
    assert len([sql for sql in sent if sql.startswith("UPDATE")]) == 1
    assert store.read(lambda snapshot: snapshot.get(Counter, "c")).value == 20


def test_a_lone_append_takes_one_round_trip_and_a_lone_read_too(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    trips = _count_trips(monkeypatch)
    run(store, lambda tx: tx.add(Entry("a")))
    assert len(trips) == 1
    store.read(lambda snapshot: snapshot.get(Entry, "a"))
    assert len(trips) == 1  # without a transaction


def test_a_query_of_several_statements_sees_one_snapshot(store: PostgresStore, yard_address: str) -> None:
    store.transact(lambda tx: tx.add(Counter("c", 1)))
    looked = []
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as other:

        def query(snapshot: Any) -> list[int]:
            first = snapshot.get(Counter, "c").value
            looked.append(first)
            if len(looked) == 2:  # the first time it begins as if it were one statement
                other.transact(lambda tx: tx.replace(Counter("c", 2)))
            return [first, snapshot.get(Counter, "c").value]

        assert store.read(query) == [1, 1]
        assert store.read(query) == [2, 2]


def test_a_missing_record_is_not_asked_for_twice(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    trips = _count_trips(monkeypatch)

    def step(tx: Tx) -> None:
        for _ in range(3):
            with pytest.raises(RecordNotFound):
                tx.get(Counter, "missing")

    store.transact(step)
    assert len(trips) == 2  # the question, and the end


def _count_trips(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    trips: list[int] = []
    many = Wire.many
    monkeypatch.setattr(Wire, "many", lambda self, *statements: (trips.append(1), many(self, *statements))[1])
    return trips
