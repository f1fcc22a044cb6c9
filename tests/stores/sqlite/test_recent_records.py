"""Rows that a connection keeps are those of the file, whoever has written since, and whatever was undone."""

from collections.abc import Callable
from contextlib import closing, suppress
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.errors import RecordConflict, RecordNotFound
from modelyard.parts.contracts.store_values import Counter, Specimen, Task
from modelyard.protocols import Tx
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite import recent_records_fast as recent_records
from modelyard.testing import CONTRACT_RECORDS

NAMES = ("a", "b")
Write = Callable[..., None]


def put(tx: Tx, name: str, value: int) -> None:
    (tx.add if tx.find(Counter, "key", name) is None else tx.replace)(Counter(name, value))


def add(tx: Tx, name: str, value: int) -> None:
    tx.add(Counter(name, value))


def replace(tx: Tx, name: str, value: int) -> None:
    tx.replace(Counter(name, value))


def remove(tx: Tx, name: str, value: int) -> None:
    tx.remove(Counter, name)


def put_and_fail(tx: Tx, name: str, value: int) -> None:
    put(tx, name, value)
    raise ZeroDivisionError


def replaced_twice(tx: Tx, name: str, value: int) -> None:
    put(tx, name, value + 1)
    put(tx, name, value)


WRITES: tuple[Write, ...] = (put, add, replace, remove, put_and_fail, replaced_twice)
EARLIER = datetime(2025, 1, 1, tzinfo=timezone(timedelta(hours=3)))
CALL = st.tuples(st.integers(0, 1), st.sampled_from(WRITES), st.sampled_from(NAMES), st.integers(0, 3))
Calls = list[tuple[int, Write, str, int]]


def test_steps_of_two_stores_see_what_either_has_written(path: Path) -> None:
    with (
        closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as one,
        closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as other,
    ):

        @examples(30)
        @given(st.lists(CALL))
        def check(calls: Calls) -> None:
            for which, write, name, value in calls:
                store = (one, other)[which]
                with suppress(RecordConflict, RecordNotFound, ZeroDivisionError):
                    store.transact(partial(write, name=name, value=value))
                assert in_step(one) == in_step(other) == in_read(one)

        check()


def in_step(store: SqliteStore) -> list[Any]:
    return store.transact(lambda tx: [tx.find(Counter, "key", name) for name in NAMES])


def in_read(store: SqliteStore) -> list[Any]:
    return store.read(lambda snapshot: [snapshot.find(Counter, "key", name) for name in NAMES])


def test_a_record_that_was_replaced_is_not_read_from_the_file_again(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Counter("a")))
    store.transact(lambda tx: tx.replace(Counter("a", 1)))
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)
    assert store.transact(lambda tx: tx.get(Counter, "a")) == Counter("a", 1)
    assert not [statement for statement in seen if statement.startswith("SELECT")]


def test_a_kept_row_has_the_values_that_the_file_gives_back(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Specimen("s")))
    values: Any = {"ratio": 2, "names": ["a"], "numbers": [1, 2.5], "mapping": {"k": [1]}, "at": EARLIER}
    changed = attrs.evolve(Specimen("s"), **values, price=Decimal("1.50"), maybe_flag=True)
    store.transact(lambda tx: tx.replace(changed))
    kept = store.transact(lambda tx: tx.get(Specimen, "s"))
    assert repr(kept) == repr(store.read(lambda snapshot: snapshot.get(Specimen, "s")))


def test_a_transaction_that_has_ended_gives_no_kept_record(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Counter("a")))
    ended = store.transact(lambda tx: (tx.get(Counter, "a"), tx))[1]
    for call in (lambda: ended.get(Counter, "a"), lambda: ended.find(Counter, "key", "a")):
        with pytest.raises(RuntimeError, match="has ended"):
            call()


def test_a_record_that_is_replaced_in_the_step_that_reads_it_is_read_once(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Task("t", "new")))
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)
    store.transact(lambda tx: tx.replace(attrs.evolve(tx.get(Task, "t"), state="read")))
    store.transact(lambda tx: tx.replace(attrs.evolve(tx.page(Task, "by_state", "read", limit=1)[0], state="listed")))
    assert len([statement for statement in seen if statement.startswith("SELECT")]) == 2


def test_what_is_kept_for_one_transaction_is_read_again_in_the_next(path: Path) -> None:
    with (
        closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as one,
        closing(SqliteStore(path, CONTRACT_RECORDS, "process")) as other,
    ):
        one.transact(lambda tx: tx.add(Task("t", "new")))
        assert one.transact(lambda tx: tx.get(Task, "t").state) == "new"
        other.transact(lambda tx: tx.replace(Task("t", "changed")))
        assert one.transact(lambda tx: tx.get(Task, "t").state) == "changed"


def test_a_record_that_was_replaced_is_seen_with_its_number_in_the_same_step(store: SqliteStore) -> None:
    store.transact(lambda tx: tx.add(Task("t", "new")))
    number = store.read(lambda snapshot: snapshot.get(Task, "t").seq)
    assert number
    seen = store.transact(lambda tx: (tx.replace(Task("t", "changed")), tx.get(Task, "t")))[1]
    assert (seen.state, seen.seq) == ("changed", number)


def test_few_records_are_kept(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_records, "_MOST", 5)
    for number in range(12):
        store.transact(lambda tx, n=str(number): (tx.add(Counter(n)), tx.replace(Counter(n, 1))))  # type: ignore[misc]
    assert len(store._writer.recent._kept) <= 5


def test_few_records_are_kept_for_one_transaction(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_records, "_MOST", 5)
    names = [str(number) for number in range(12)]
    store.transact(lambda tx: tx.add_all([Task(name) for name in names]))

    def replace_all(tx: Tx) -> None:
        tasks = [tx.get(Task, name) for name in names]
        assert len(store._writer.recent._passing) <= 5
        for task in tasks:
            tx.replace(attrs.evolve(task, state="done"))

    store.transact(replace_all)
    assert store.read(lambda snapshot: snapshot.count(Task, "by_state", "done")) == len(names)
