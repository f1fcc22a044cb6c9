"""The laws of a store about steps, about concurrent callers, and as a whole."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import attrs
import pytest

from modelyard.errors import RecordConflict, RecordNotFound, StoreClosed, StoreError
from modelyard.parts.contracts.store_machine import UndoStep
from modelyard.parts.contracts.store_records import all_items, keep
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.protocols import Snapshot, Store, Tx

A_DAY = 86_400.0


def increment(tx: Tx) -> int:
    counter = tx.get(Counter, "c")
    tx.replace(attrs.evolve(counter, value=counter.value + 1))
    return counter.value + 1


def at_once(actions: Iterable[Callable[[], object]]) -> list[object]:
    chosen = list(actions)
    start = threading.Barrier(len(chosen))

    def run(action: Callable[[], object]) -> object:
        start.wait()
        try:
            return action()
        except Exception as error:  # noqa: BLE001 - the caller checks it
            return error

    with ThreadPoolExecutor(len(chosen)) as pool:
        return list(pool.map(run, chosen))


class StepLaws:
    """Laws of steps, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def reopen(self, store: Store) -> Store | None:
        """Close `store` and open the same records again; return None for a store without durability."""
        return None

    # ---- steps ----

    def test_a_step_answers_and_raises_as_it_does(self, store: Store) -> None:
        refusal = UndoStep("why")
        assert store.transact(lambda tx: "answer") == "answer"
        with pytest.raises(UndoStep) as caught:
            store.transact(lambda tx: _raise(refusal))
        assert caught.value is refusal

    def test_a_step_that_raises_is_undone(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Item("a", 2, "y"))

        def step(tx: Tx) -> None:
            tx.add(Item("a", 3, "z"))
            tx.replace(Item("a", 3, "v"))
            tx.replace(Item("a", 1, "w"))
            tx.remove(Item, "a", 2)
            tx.add(Item("a", 2, "z"))
            raise UndoStep

        with pytest.raises(UndoStep):
            store.transact(step)
        assert all_items(store) == [Item("a", 1, "x"), Item("a", 2, "y")]
        keep(store, Item("a", 3, "w"))

    def test_an_interrupted_step_is_undone_and_the_store_goes_on(self, store: Store) -> None:
        def step(tx: Tx) -> None:
            tx.add(Item("a", 1, "x"))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            store.transact(step)
        keep(store, Item("a", 1, "x"))
        assert all_items(store) == [Item("a", 1, "x")]

    def test_a_refused_verb_changes_nothing_and_the_step_goes_on(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"), Item("a", 2, "y"))

        def step(tx: Tx) -> None:
            with pytest.raises(RecordConflict):
                tx.add(Item("a", 1))
            with pytest.raises(RecordConflict):
                tx.replace(Item("a", 2, "x", rank=1))
            with pytest.raises(RecordNotFound):
                tx.replace(Item("a", 9))
            with pytest.raises(RecordNotFound):
                tx.remove(Item, "a", 9)
            tx.add(Item("a", 3, "z"))

        store.transact(step)
        assert all_items(store) == [Item("a", 1, "x"), Item("a", 2, "y"), Item("a", 3, "z")]

    def test_a_step_may_not_call_its_store(self, store: Store) -> None:
        keep(store, Counter("c"))
        for nested in (lambda: store.transact(increment), lambda: store.read(lambda _: None), store.close):
            with pytest.raises(RuntimeError):
                store.transact(lambda tx, n=nested: n())  # type: ignore[misc]
        assert store.transact(increment) == 1

    def test_a_transaction_is_dead_after_its_step(self, store: Store) -> None:
        leaked: list[Tx] = []
        seen: list[Snapshot] = []

        def raising(tx: Tx) -> None:
            leaked.append(tx)
            raise LookupError

        store.transact(leaked.append)
        ended = [leaked[-1]]
        with pytest.raises(LookupError):
            store.transact(raising)
        ended.append(leaked[-1])
        store.read(seen.append)
        for tx in ended:
            for use in (partial(tx.add, Counter("c")), partial(tx.get, Counter, "c")):
                with pytest.raises(RuntimeError):
                    use()
        with pytest.raises(RuntimeError):
            seen[0].count(Item, "by_label")

    # ---- concurrent callers ----

    def test_steps_are_serial(self, store: Store) -> None:
        keep(store, Counter("c"))
        answers = at_once([lambda: [store.transact(increment) for _ in range(10)]] * 8)
        assert sorted(value for answer in answers for value in answer) == list(range(1, 81))  # type: ignore[attr-defined]
        assert store.read(lambda snapshot: snapshot.get(Counter, "c")).value == 80

    def test_a_step_that_raises_undoes_itself_alone(self, store: Store) -> None:
        def step_of(number: int) -> Callable[[Tx], int]:
            def step(tx: Tx) -> int:
                tx.add(Item("a", number))
                return _raise(UndoStep()) if number % 3 == 0 else number

            return step

        async def together() -> list[object]:
            calls = [store.atransact(step_of(number)) for number in range(60)]
            return await asyncio.gather(*calls, return_exceptions=True)

        by_task = asyncio.run(together())
        by_thread = at_once([lambda n=n: store.transact(step_of(n)) for n in range(60, 72)])  # type: ignore[misc]
        answered = [number for number in range(72) if number % 3]
        assert [answer for answer in (*by_task, *by_thread) if not isinstance(answer, UndoStep)] == answered
        assert [i.number for i in store.read(lambda s: s.page(Item, "by_shelf", "a"))] == answered

    def test_an_outcome_is_told_after_its_commit(self, store: Store) -> None:
        def race(number: int) -> bool:
            """Return whether this caller won; either way it sees at once the commit that decided."""
            won = True
            try:
                keep(store, Item("a", number, "x"))
            except RecordConflict:
                won = False
            winner = store.read(lambda snapshot: snapshot.find(Item, "label", "a", "x"))
            assert winner is not None
            assert (winner.number == number) is won
            return won

        answers = at_once([lambda n=n: race(n) for n in range(8)])  # type: ignore[misc]
        assert sorted(map(str, answers)) == ["False"] * 7 + ["True"]

        async def sees_its_own(number: int) -> bool:
            await store.atransact(lambda tx: tx.add(Item("b", number)))
            return store.read(lambda snapshot: snapshot.find(Item, "key", "b", number)) is not None

        async def together() -> list[bool]:
            return await asyncio.gather(*map(sees_its_own, range(8)))

        assert asyncio.run(together()) == [True] * 8

    def test_a_read_sees_whole_commits_only(self, store: Store) -> None:
        keep(store, Counter("left", 100), Counter("right"))

        def move(tx: Tx) -> None:
            for name, change in (("left", -1), ("right", 1)):
                counter = tx.get(Counter, name)
                tx.replace(attrs.evolve(counter, value=counter.value + change))

        def total(snapshot: Snapshot) -> int:
            return snapshot.get(Counter, "left").value + snapshot.get(Counter, "right").value

        moves = [lambda: [store.transact(move) for _ in range(20)]] * 2
        reads = [lambda: [store.read(total) for _ in range(40)]] * 2
        answers = at_once([*moves, *reads])
        assert answers[2:] == [[100] * 40] * 2

    def test_tasks_and_threads_share_the_store(self, store: Store) -> None:
        keep(store, Counter("c"))

        async def tasks() -> None:
            await asyncio.gather(*(store.atransact(increment) for _ in range(40)))

        at_once([lambda: asyncio.run(tasks()), lambda: asyncio.run(tasks()), *[lambda: store.transact(increment)] * 4])
        assert store.read(lambda snapshot: snapshot.get(Counter, "c")).value == 84

    def test_a_cancelled_caller_leaves_a_whole_step_or_none(self, store: Store) -> None:
        async def cancel() -> None:
            task = asyncio.ensure_future(store.atransact(lambda tx: tx.add(Item("a", 1))))
            await asyncio.sleep(0)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await store.atransact(lambda tx: None)

        asyncio.run(cancel())
        assert all_items(store) in ([], [Item("a", 1)])

    # ---- the store as a whole ----

    def test_undurable_records_are_seen_at_once(self, store: Store) -> None:
        store.transact(lambda tx: tx.add(Item("a", 1)), durable=False)
        assert all_items(store) == [Item("a", 1)]
        store.sync()
        assert all_items(store) == [Item("a", 1)]

    def test_records_outlive_the_store(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        store.transact(lambda tx: tx.add(Item("a", 2)), durable=False)
        again = self.reopen(store)
        if again is None:
            pytest.skip("`reopen` is not overridden: this store keeps its records for as long as it is open")
        assert again.read(lambda snapshot: snapshot.page(Item, "by_shelf", "a")) == [Item("a", 1, "x"), Item("a", 2)]
        again.close()

    def test_a_backup_overwrites_nothing_and_changes_nothing(self, store: Store) -> None:
        keep(store, Item("a", 1, "x"))
        with TemporaryDirectory() as folder:
            taken, new = Path(folder, "taken"), Path(folder, "new")
            taken.write_bytes(b"mine")
            with pytest.raises((FileExistsError, StoreError)):
                store.backup(str(taken))
            assert taken.read_bytes() == b"mine"
            with suppress(StoreError):
                store.backup(str(new))
                assert new.exists(), "a store without backups raises StoreError"
        assert all_items(store) == [Item("a", 1, "x")]

    def test_the_time_is_that_of_a_wall_clock(self, store: Store) -> None:
        for seen in (store.read(lambda snapshot: snapshot.time), store.transact(lambda tx: tx.time)):
            assert isinstance(seen, float)
            assert abs(seen - time.time()) < A_DAY

    def test_check_tells_the_durability_in_force(self, store: Store) -> None:
        facts = store.check()
        assert facts["durability"] == store.durability
        assert store.durability in ("power", "process", "none")
        assert facts["engine"]

    def test_a_closed_store_says_so(self, store: Store) -> None:
        store.close()
        store.close()
        calls: list[Callable[[], object]] = [
            lambda: store.transact(increment),
            lambda: store.read(lambda snapshot: None),
            lambda: asyncio.run(store.atransact(increment)),
            store.check,
            store.sync,
        ]
        for call in calls:
            with pytest.raises(StoreClosed):
                call()


def _raise(error: Exception) -> Any:
    raise error
