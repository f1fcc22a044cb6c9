"""The laws of a store about records that are taken like the jobs of a queue, and about notifications."""

import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial

import attrs
import pytest

from modelyard.parts.contracts.store_pairs import PairLaws
from modelyard.parts.contracts.store_records import keep
from modelyard.parts.contracts.store_values import Task
from modelyard.protocols import DomainStep, Snapshot, Store, Tx

TASKS = 40
_PATIENCE = 30.0


class _Undone(Exception):
    """Ends a step that is to be undone."""


def take_task(name: str, tx: Tx) -> str | None:
    task = tx.take(Task, "by_state", "open")
    if task is None:
        return None
    tx.replace(attrs.evolve(tx.get(Task, task.id), state="taken", by=name))
    return task.id


def take_all(number: int, store: Store) -> list[str]:
    taken: list[str] = []
    while (found := store.transact(DomainStep(partial(take_task, f"w{number}"), ()), durable=False)) is not None:
        taken.append(found)
    return taken


def open_tasks(snapshot: Snapshot) -> list[str]:
    return [task.id for task in snapshot.page(Task, "by_state", "open", limit=1000)]


class QueueLaws(PairLaws):
    """Laws of records that many take from, as a part of `modelyard.parts.contracts.store.StoreContract`."""

    def test_records_are_taken_in_order(self, store: Store) -> None:
        keep(store, *(Task(name) for name in ("b", "a", "c")), Task("d", state="closed"))
        take: Callable[[Tx], str | None] = partial(take_task, "me")
        steps: list[Callable[[Tx], str | None]] = [DomainStep(take, ()), take, DomainStep(take, ()), take]
        assert [store.transact(step) for step in steps] == ["b", "a", "c", None]
        assert store.read(lambda snapshot: snapshot.get(Task, "a")).by == "me"

    def test_a_step_takes_the_same_record_until_it_has_changed_its_place(self, store: Store) -> None:
        keep(store, Task("a"), Task("b"))

        def step(tx: Tx) -> list[str | None]:
            first, again = tx.take(Task, "by_state", "open"), tx.take(Task, "by_state", "open")
            assert first is not None
            assert first == again
            return [take_task("me", tx), take_task("me", tx), take_task("me", tx)]

        assert store.transact(DomainStep(step, ())) == ["a", "b", None]

    def test_no_record_has_values_that_cannot_be_kept(self, store: Store) -> None:
        keep(store, Task("a"))
        assert store.transact(lambda tx: tx.take(Task, "by_state", "\ud800")) is None

    def test_what_was_taken_and_left_as_it_is_is_free_after_the_step(self, store: Store) -> None:
        keep(store, Task("a"), Task("b"))
        look: DomainStep[Task | None] = DomainStep(lambda tx: tx.take(Task, "by_state", "open"), ())
        assert [task.id for _ in range(2) if (task := store.transact(look))] == ["a", "a"]

    def test_a_step_that_is_undone_gives_back_what_it_took(self, store: Store) -> None:
        keep(store, Task("a"))

        def undone(tx: Tx) -> None:
            take_task("nobody", tx)
            raise _Undone

        with pytest.raises(_Undone):
            store.transact(DomainStep(undone, ()))
        assert store.transact(DomainStep(partial(take_task, "me"), ())) == "a"
        assert store.read(lambda snapshot: snapshot.get(Task, "a")).by == "me"

    @pytest.mark.parametrize("how", ["thread", "process"])
    def test_no_two_stores_take_the_same_record_and_none_is_left(self, store: Store, how: str) -> None:
        with self._workers(store, how) as twice:
            keep(store, *(Task(f"t{number:03}") for number in range(TASKS)))
            first, second = twice(take_all)
        assert isinstance(first, list)
        assert isinstance(second, list)
        assert sorted(first + second) == [f"t{number:03}" for number in range(TASKS)]
        assert [*first, *second] == sorted(first) + sorted(second)
        assert store.read(open_tasks) == []

    def test_a_commit_wakes_those_who_have_subscribed(self, store: Store) -> None:
        self._check_waking(store, store)

    def test_a_commit_wakes_those_who_have_subscribed_at_another_store(self, store: Store) -> None:
        open_store = self.another(store)
        if open_store is None:
            pytest.skip("`another` is not overridden: no second store shares the records of this one")
        with closing(open_store()) as other:
            self._check_waking(store, other)

    def _check_waking(self, store: Store, other: Store) -> None:
        woken = threading.Event()
        subscription = other.subscribe("tasks", woken.set)
        for number in range(3):
            woken.clear()
            store.transact(partial(_add_and_notify, f"n{number}"))
            while not other.read(partial(_has_task, f"n{number}")) or (subscription.live and not woken.is_set()):
                assert woken.wait(_PATIENCE), "no notice came"
        subscription.close()
        subscription.close()
        assert isinstance(subscription.live, bool)

    def test_a_commit_wakes_those_of_each_of_its_topics(self, store: Store) -> None:
        topics = {topic: threading.Event() for topic in "abc"}
        for topic, woken in topics.items():
            store.subscribe(topic, woken.set)

        def notify_all(tx: Tx) -> None:
            tx.add(Task("a"))
            for topic in (*topics, *topics):
                tx.notify(topic)

        store.transact(notify_all)
        for woken in topics.values():
            assert woken.wait(_PATIENCE)

    def test_a_subscription_that_is_closed_wakes_nobody(self, store: Store) -> None:
        closed, woken = threading.Event(), threading.Event()
        store.subscribe("tasks", closed.set).close()
        closed.clear()
        store.subscribe("tasks", woken.set)
        store.transact(partial(_add_and_notify, "a"))
        assert woken.wait(_PATIENCE)
        assert not closed.is_set()

    def test_a_subscriber_that_raises_keeps_no_other_from_waking(self, store: Store) -> None:
        woken = threading.Event()
        store.subscribe("tasks", lambda: 1 // 0)  # type: ignore[arg-type]
        store.subscribe("tasks", woken.set)
        with suppress(ZeroDivisionError):
            store.transact(partial(_add_and_notify, "a"))
        assert woken.wait(_PATIENCE)


def _add_and_notify(name: str, tx: Tx) -> None:
    tx.add(Task(name))
    tx.notify("tasks")


def _has_task(name: str, snapshot: Snapshot) -> bool:
    return snapshot.find(Task, "key", name) is not None
