"""A store that is sound alone and broken as soon as there is a second one: the laws about two must catch it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from modelyard.domain.record import KEY
from modelyard.errors import RecordConflict
from modelyard.protocols import Store
from modelyard.stores.memory import MemoryStore
from modelyard.testing import CONTRACT_RECORDS, StoreContract
from modelyard.testing.run_twice_store import RunTwiceStore

ALONE = 5.0
"""Seconds after which a store that waits for the other one is alone; then no meeting takes place any more."""


class UnlockedTx:
    """Reads what is committed at each moment (READ COMMITTED), and keeps its own writes until the commit."""

    def __init__(self, store: Store, meeting: threading.Barrier | None) -> None:
        self._store, self._meeting, self.writes, self._own = store, meeting, [], {}

    def get(self, cls: Any, *key: Any) -> Any:
        return self._own.get((cls, key)) or self._seen(lambda view: view.get(cls, *key))

    def add(self, record: Any) -> None:
        if self._store.read(lambda view: view.find(type(record), KEY, *self._key(record))) is not None:
            raise RecordConflict("exists")
        self._write("add", record)

    def replace(self, record: Any) -> None:
        self._write("replace", record)

    def __getattr__(self, verb: str) -> Any:
        return lambda *args, **more: self._seen(lambda view: getattr(view, verb)(*args, **more))

    def _seen(self, query: Any) -> Any:
        """Read, and continue when the other store has read too, or when it reads no more."""
        seen = self._store.read(query)
        if self._meeting is not None:
            with suppress(threading.BrokenBarrierError):
                self._meeting.wait(ALONE)
        return seen

    def _write(self, verb: str, record: Any) -> None:
        self.writes.append((verb, record))
        self._own[type(record), self._key(record)] = record

    def _key(self, record: Any) -> tuple[Any, ...]:
        (declared,) = (one for one in CONTRACT_RECORDS if one.cls is type(record))
        return tuple(getattr(record, name) for name in declared.key)


class ReadCommittedStore(RunTwiceStore):
    """Runs its own steps one after the other, but takes no lock that another store would heed."""

    def __init__(self, shared: Store) -> None:
        super().__init__(shared)
        self._mine = threading.Lock()
        self.meeting: threading.Barrier | None = None

    def transact(self, step: Any, durable: bool = True) -> Any:
        with self._mine:
            tx = UnlockedTx(self._store, self.meeting)
            answer = step(tx)
            self._store.transact(lambda real: [getattr(real, verb)(record) for verb, record in tx.writes])
            return answer

    def close(self) -> None:
        """Leave the records to the other one."""


class Pair(StoreContract):
    """The contract as an author runs it, on a pair of broken stores."""

    def another(self, store: Store) -> Callable[[], Store]:
        def second() -> ReadCommittedStore:
            other = ReadCommittedStore(store._store)  # type: ignore[attr-defined]
            other.meeting = store.meeting = threading.Barrier(2)  # type: ignore[attr-defined]
            return other

        return second


@pytest.fixture
def broken() -> Iterator[Store]:
    shared = MemoryStore(CONTRACT_RECORDS)
    yield ReadCommittedStore(shared)
    shared.close()


def test_it_looks_sound_alone(broken: Store) -> None:
    StoreContract().test_steps_are_serial(broken)
    StoreContract().test_what_was_added_is_got(broken)
    StoreContract().test_a_read_sees_whole_commits_only(broken)


@pytest.mark.parametrize(
    "law",
    [
        "test_steps_of_two_stores_are_serial",
        "test_no_two_stores_find_the_same_listing_empty",
        "test_no_step_decides_by_what_another_store_is_changing",
    ],
)
def test_a_second_store_reveals_it(broken: Store, law: str) -> None:
    with pytest.raises(AssertionError):
        getattr(Pair(), law)(broken, "thread")


class EarlyNumbersStore(RunTwiceStore):
    """Commits some of its steps after later ones, whose numbers are greater: nothing holds the order of appearance."""

    def __init__(self) -> None:
        super().__init__(MemoryStore(CONTRACT_RECORDS))
        self._turn = 0

    def read(self, query: Any) -> Any:
        """Hide the newest record but one from every second read, as a transaction that is still running would."""
        self._turn += 1
        return self._store.read(lambda view: query(_Hiding(view) if self._turn % 2 else view))


class _Hiding:
    def __init__(self, view: Any) -> None:
        self._view = view

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._view, verb)

    def page(self, cls: Any, index: str, *where: Any, **window: Any) -> Any:
        page = self._view.page(cls, index, *where, **window)
        return page[:-2] + page[-1:] if len(page) > 1 else page


def test_records_that_appear_before_what_was_read_are_caught() -> None:
    with pytest.raises(AssertionError):
        StoreContract().test_a_follower_misses_nothing_and_sees_nothing_twice(EarlyNumbersStore())
