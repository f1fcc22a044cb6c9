"""The laws of a store about a second one over the same records: another object, in this process or in another one."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any

import attrs
import pytest

from modelyard.errors import RecordConflict
from modelyard.parts.contracts.store_order import check_followers, ids, write_entries
from modelyard.parts.contracts.store_records import keep
from modelyard.parts.contracts.store_steps import at_once, increment
from modelyard.parts.contracts.store_values import Counter, Entry, Item
from modelyard.protocols import Snapshot, Store, Tx

TIMES = 25
OpenStore = Callable[[], Store]
How = str | ProcessPoolExecutor


def add_to_empty(number: int, shelf: str) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        if tx.count(Item, "by_shelf", shelf) == 0:
            tx.add(Item(shelf, number))

    return step


def take_one_away(number: int, pair: int) -> Callable[[Tx], None]:
    def step(tx: Tx) -> None:
        both = [tx.get(Counter, f"{name}{pair}") for name in "ab"]
        if all(counter.value for counter in both):
            tx.replace(attrs.evolve(both[number], value=0))

    return step


def fill_shelves(number: int, store: Store) -> None:
    for shelf in range(TIMES):
        store.transact(add_to_empty(number, f"s{shelf}"))


def take_away(number: int, store: Store) -> None:
    for pair in range(TIMES):
        store.transact(take_one_away(number, pair))


def count_up(number: int, store: Store) -> None:
    for _ in range(TIMES):
        store.transact(increment)


def take_keys(number: int, store: Store) -> None:
    for key in range(TIMES):
        try:
            keep(store, Counter(f"key-{key}", number), Item("won", key))
        except RecordConflict:
            assert store.read(partial(value_of, f"key-{key}")) != number


def write_many(number: int, store: Store) -> list[str]:
    return write_entries(store, f"w{number}", TIMES)


def run_on_another(open_store: OpenStore, work: Callable[[Store], Any]) -> Any:
    with closing(open_store()) as store:
        return work(store)


class PairLaws:
    """Laws of two stores on the same records, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def another(self, store: Store) -> OpenStore | None:
        """Return a function that opens another store over the records of `store`, which stays open. It must survive
        pickle, so that another process can call it. None declares that there is no second one."""
        return None

    @pytest.fixture(scope="class")
    @classmethod
    def other_process(cls) -> Iterator[ProcessPoolExecutor]:
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            yield process

    @pytest.fixture(params=["thread", "process"])
    def how(self, request: pytest.FixtureRequest, other_process: ProcessPoolExecutor) -> How:
        return "thread" if request.param == "thread" else other_process

    @contextmanager
    def _workers(self, store: Store, how: How) -> Iterator[Callable[[Callable[[int, Store], Any]], list[object]]]:
        open_store = self.another(store)
        if open_store is None:
            pytest.skip("`another` is not overridden: no second store shares the records of this one")
        if isinstance(how, str):
            with closing(open_store()) as second:
                yield lambda work: at_once([partial(work, 0, store), partial(work, 1, second)])
            return
        how.submit(run_on_another, open_store, ids_of_all).result()  # it has started

        def twice(work: Callable[[int, Store], Any]) -> list[object]:
            elsewhere = how.submit(run_on_another, open_store, partial(work, 1))
            here = at_once([partial(work, 0, store)])
            return [*here, elsewhere.result()]

        yield twice

    def test_steps_of_two_stores_are_serial(self, store: Store, how: How) -> None:
        with self._workers(store, how) as twice:
            keep(store, Counter("c"))
            assert twice(count_up) == [None, None]
        assert store.read(lambda snapshot: snapshot.get(Counter, "c")).value == 2 * TIMES

    def test_no_two_stores_find_the_same_listing_empty(self, store: Store, how: How) -> None:
        with self._workers(store, how) as twice:
            assert twice(fill_shelves) == [None, None]
        counts = [store.read(partial(count_items, f"s{shelf}")) for shelf in range(TIMES)]
        assert counts == [1] * TIMES

    def test_no_step_decides_by_what_another_store_is_changing(self, store: Store, how: How) -> None:
        """The two write different records, so no conflict of writes reveals it (write skew)."""
        with self._workers(store, how) as twice:
            keep(store, *(Counter(f"{name}{pair}", 1) for pair in range(TIMES) for name in "ab"))
            assert twice(take_away) == [None, None]
        left = [sum(store.read(partial(value_of, f"{name}{pair}")) for name in "ab") for pair in range(TIMES)]
        assert left == [1] * TIMES

    def test_a_key_is_taken_once_and_both_stores_see_by_whom(self, store: Store, how: How) -> None:
        with self._workers(store, how) as twice:
            assert twice(take_keys) == [None, None]
        won = store.read(lambda snapshot: snapshot.page(Item, "by_shelf", "won", limit=1000))
        assert [item.number for item in won] == list(range(TIMES))

    def test_what_one_store_has_acknowledged_the_other_sees(self, store: Store) -> None:
        open_store = self.another(store)
        if open_store is None:
            pytest.skip("`another` is not overridden: no second store shares the records of this one")
        with closing(open_store()) as second:
            stores = (store, second)
            for number in range(TIMES):
                step = partial(add_item, number)
                stores[number % 2].transact(step, durable=bool(number % 3))
                assert stores[1 - number % 2].read(partial(count_items, "z")) == number + 1

    def test_a_follower_misses_nothing_of_another_store(self, store: Store) -> None:
        open_store = self.another(store)
        if open_store is None:
            pytest.skip("`another` is not overridden: no second store shares the records of this one")
        with closing(open_store()) as second:
            check_followers([store, second, store, second], [store, second])

    def test_records_of_two_processes_have_one_order(self, store: Store, other_process: ProcessPoolExecutor) -> None:
        with self._workers(store, other_process) as twice:
            keep(store, Entry("first"))
            stored: Any = twice(write_many)
        assert sorted(ids(store, "all")) == sorted(["first", *stored[0], *stored[1]])
        numbers = [entry.seq for entry in store.read(lambda snapshot: snapshot.page(Entry, "all", limit=1000))]
        assert numbers == sorted(set(numbers))


def ids_of_all(store: Store) -> list[str]:
    return ids(store, "all")


def count_items(shelf: str, snapshot: Snapshot) -> int:
    return snapshot.count(Item, "by_shelf", shelf)


def value_of(name: str, snapshot: Snapshot) -> int:
    return snapshot.get(Counter, name).value


def add_item(number: int, tx: Tx) -> None:
    tx.add(Item("z", number))
