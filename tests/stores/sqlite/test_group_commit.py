"""Group commit: who leads, what each caller gets, and what survives an interrupt or a loop that closes."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from modelyard.errors import StoreClosed, StoreError
from modelyard.parts.contracts.store_values import Counter, Item
from modelyard.protocols import Tx
from modelyard.stores import group_commit, pending_steps
from modelyard.stores.pending_steps import ThreadCall
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.migrations import MIGRATIONS
from modelyard.stores.sqlite.schema import set_version
from modelyard.testing import CONTRACT_RECORDS
from polling import until


def adding(number: int) -> Callable[[Tx], int]:
    def step(tx: Tx) -> int:
        tx.add(Item("a", number))
        return number

    return step


def numbers(store: SqliteStore) -> list[int]:
    return [item.number for item in store.read(lambda s: s.page(Item, "by_shelf", "a", limit=10_000))]


class Crowd:
    """Threads that call a store, what came of each by name, and how many calls run or stand in line."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.outcomes: dict[str, object] = {}
        self._threads: list[threading.Thread] = []

    def waiting(self) -> int:
        queue, leader = self.store._group._queue, self.store._group._leader
        return len(queue) + (leader is not None and leader not in queue)

    def call(self, name: str, step: Callable[[Tx], object]) -> None:
        """Start a call, and return once it runs or stands in line."""

        def run() -> None:
            try:
                self.outcomes[name] = self.store.transact(step)
            except BaseException as error:
                self.outcomes[name] = error

        before = self.waiting()
        self._threads.append(threading.Thread(target=run, daemon=True))
        self._threads[-1].start()
        until(lambda: self.waiting() > before or name in self.outcomes)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


@contextmanager
def held(store: SqliteStore) -> Iterator[Crowd]:
    """A crowd that waits for a call that leads, and whose step ends with the block."""
    crowd, gate = Crowd(store), threading.Event()
    crowd.call("first", lambda tx: gate.wait())
    until(lambda: store._group.running is not None)
    try:
        yield crowd
    finally:
        gate.set()
        crowd.join()


@contextmanager
def statements(store: SqliteStore) -> Iterator[list[str]]:
    """The first words of every statement that the writer runs."""
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)
    yield seen
    store._writer._connection.set_trace_callback(None)


# ---- groups ----------------------------------------------------------------------------------------------------------


def test_calls_that_wait_together_share_one_commit_in_the_order_of_their_coming(store: SqliteStore) -> None:
    order: list[int] = []

    def noting(number: int) -> Callable[[Tx], int]:
        return lambda tx: order.append(number) or adding(number)(tx)

    with statements(store) as seen, held(store) as crowd:
        for number in range(5):
            crowd.call(str(number), noting(number))
    assert seen.count("COMMIT") == 2
    assert order == numbers(store) == [crowd.outcomes[str(number)] for number in range(5)] == list(range(5))


def test_a_step_needs_no_statements_but_its_own(store: SqliteStore) -> None:
    with statements(store) as seen:
        store.transact(adding(1))
    assert [statement.split()[0] for statement in seen] == ["PRAGMA", "BEGIN", "INSERT", "COMMIT"]


def test_a_step_that_raises_in_a_group_is_undone_alone(store: SqliteStore) -> None:
    def failing(tx: Tx) -> None:
        adding(7)(tx)
        raise LookupError

    with held(store) as crowd:
        crowd.call("before", adding(1))
        crowd.call("failing", failing)
        crowd.call("after", adding(2))
    assert numbers(store) == [1, 2]
    assert isinstance(crowd.outcomes["failing"], LookupError)


@pytest.mark.parametrize("place", range(9))
def test_a_step_that_raises_has_few_others_run_alone(store: SqliteStore, place: int) -> None:
    """The group is halved until the step is alone: 256 callers do not wait for 256 syncs because of one of them."""

    def failing(tx: Tx) -> None:
        adding(100)(tx)
        raise LookupError

    with statements(store) as seen, held(store) as crowd:
        for number in range(9):
            crowd.call(str(number), failing if number == place else adding(number))
    others = [number for number in range(9) if number != place]
    assert numbers(store) == [crowd.outcomes[str(number)] for number in others] == others
    assert isinstance(crowd.outcomes[str(place)], LookupError)
    assert seen.count("COMMIT") <= 1 + 4


def test_a_step_that_raises_before_it_writes_disturbs_no_other(store: SqliteStore) -> None:
    def failing(tx: Tx) -> None:
        raise LookupError

    with statements(store) as seen, held(store) as crowd:
        crowd.call("before", adding(1))
        crowd.call("failing", failing)
        crowd.call("after", adding(2))
    assert numbers(store) == [1, 2]
    assert isinstance(crowd.outcomes["failing"], LookupError)
    assert seen.count("COMMIT") == 2


def test_a_group_runs_what_pytest_raises_as_any_error_of_a_step(store: SqliteStore) -> None:
    with held(store) as crowd:
        crowd.call("failing", lambda tx: pytest.fail("no"))
        crowd.call("after", adding(2))
    assert isinstance(crowd.outcomes["failing"], pytest.fail.Exception)
    assert crowd.outcomes["after"] == 2


def test_more_calls_than_fit_a_group_are_all_served(store: SqliteStore) -> None:
    async def many() -> list[int]:
        return await asyncio.gather(*(store.atransact(adding(number)) for number in range(700)))

    assert asyncio.run(many()) == numbers(store) == list(range(700))


def test_a_leader_waits_while_callers_of_the_last_group_come_back(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit takes 8 ms, four calls shared the last one, and two of their callers come back at once."""
    crowd, pauses = Crowd(store), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) <= 2:
            crowd.call(str(len(pauses)), adding(len(pauses)))

    monkeypatch.setattr(group_commit.time, "sleep", sleep)
    store._group._last_size, store._group._commit_seconds = 4, 0.008
    with statements(store) as seen:
        assert store.transact(adding(0)) == 0
        crowd.join()
    assert pauses == [0.001] * 3
    assert seen.count("COMMIT") == 1
    assert numbers(store) == [0, 1, 2]


def test_a_leader_waits_no_longer_than_a_commit_takes(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd, pauses = Crowd(store), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        crowd.call(str(len(pauses)), adding(len(pauses)))

    monkeypatch.setattr(group_commit.time, "sleep", sleep)
    store._group._last_size, store._group._commit_seconds = 100, 0.004
    store.transact(adding(0))
    crowd.join()
    assert sum(pauses) == pytest.approx(0.004)
    assert numbers(store) == list(range(len(pauses) + 1))


def test_a_leader_does_not_wait_where_all_have_come_back(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    with held(store) as crowd:
        for number in range(2):
            crowd.call(str(number), adding(number))
        store._group._commit_seconds = 1.0
        monkeypatch.setattr(group_commit.time, "sleep", pytest.fail)
    assert [crowd.outcomes[str(number)] for number in range(2)] == numbers(store) == [0, 1]


def test_a_leader_does_not_wait_where_a_commit_is_quick(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit.time, "sleep", pytest.fail)
    store._group._last_size, store._group._commit_seconds = 4, 1e-5
    assert store.transact(adding(0)) == 0


# ---- waking ----------------------------------------------------------------------------------------------------------


def call_between_others(store: SqliteStore, mine: Callable[[Tx], Any]) -> Crowd:
    """Call with `mine` from this, the main thread, in a group that two calls of others lead and two end."""
    crowd, gate = Crowd(store), threading.Event()
    crowd.call("first", lambda tx: gate.wait())
    until(lambda: store._group.running is not None)
    for number in (0, 1):
        crowd.call(str(number), adding(number))

    def follow() -> None:
        until(lambda: crowd.waiting() == 4)
        for number in (3, 4):
            crowd.call(str(number), adding(number))
        gate.set()

    follower = threading.Thread(target=follow)
    follower.start()
    try:
        crowd.outcomes["mine"] = store.transact(mine)
    except KeyboardInterrupt as interrupt:
        crowd.outcomes["mine"] = interrupt
    follower.join()
    crowd.join()
    return crowd


def test_all_callers_of_a_group_are_woken_the_main_thread_among_them(store: SqliteStore) -> None:
    crowd = call_between_others(store, adding(2))
    assert [crowd.outcomes[name] for name in ("0", "1", "mine", "3", "4")] == numbers(store) == [0, 1, 2, 3, 4]


def test_threads_and_the_main_thread_call_again_and_again(store: SqliteStore) -> None:
    """Whoever is not woken calls no more."""

    def call(first: int) -> list[int]:
        return [store.transact(adding(number), number % 3 == 0) for number in range(first, first + 200)]

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(call, first) for first in (200, 400, 600)]
        assert call(0) == [*range(200)]
        assert [number for other in others for number in other.result()] == [*range(200, 800)]
    assert numbers(store) == [*range(800)]


def callers_elsewhere(count: int) -> list[ThreadCall[int]]:
    """Calls of a thread that is not the main one."""
    with ThreadPoolExecutor(1) as pool:
        return [pool.submit(ThreadCall, adding(number), True).result() for number in range(count)]


def is_woken(call: ThreadCall[int]) -> bool:
    try:
        call._bell.get_nowait()
    except Empty:
        return False
    return True


def test_a_caller_is_woken_when_the_one_before_it_leaves() -> None:
    before, after = callers_elsewhere(2)
    after.wake_after(before)
    assert not is_woken(after)
    before.leave()
    assert is_woken(after)


def test_a_caller_is_woken_where_the_one_before_it_has_left_already() -> None:
    """It did not wait: it came to look when its call was settled already."""
    before, after = callers_elsewhere(2)
    before.leave()
    after.wake_after(before)
    assert is_woken(after)


def test_a_leader_wakes_the_first_of_its_callers(store: SqliteStore) -> None:
    calls = callers_elsewhere(3)
    for call in calls:
        call.settled = True
    store._group._queue.extend(calls)
    store._group._wake_settled()
    assert [is_woken(call) for call in calls] == [True, False, False]


def test_a_caller_that_has_left_keeps_no_other_call_in_memory() -> None:
    """The traceback of what it raises holds the frame that holds the call."""
    before, after = callers_elsewhere(2)
    after.wake_after(before)
    before.leave()
    assert before.next is None


# ---- durability ------------------------------------------------------------------------------------------------------


def words(seen: list[str]) -> list[str]:
    return [" ".join(statement.split()[:2]) for statement in seen]


def test_an_undurable_step_commits_at_normal_and_a_durable_one_at_full(store: SqliteStore) -> None:
    with statements(store) as seen:
        for number, durable in enumerate([True, False, False, True]):
            store.transact(adding(number), durable)
    levels = [statement for statement in seen if statement.startswith("PRAGMA")]
    assert levels == [f"PRAGMA synchronous={level}" for level in ("FULL", "NORMAL", "FULL")]


def test_one_durable_step_makes_its_group_durable(store: SqliteStore) -> None:
    with statements(store) as seen, ThreadPoolExecutor() as pool, held(store) as crowd:
        pool.submit(store.transact, adding(1), False)
        until(lambda: crowd.waiting() == 2)
        crowd.call("durable", adding(2))
    assert words(seen)[-3:] == ["INSERT INTO"] * 2 + ["COMMIT"]
    assert [statement for statement in seen if statement.startswith("PRAGMA")] == ["PRAGMA synchronous=FULL"]


def test_sync_writes_at_full_only_where_something_waits_for_it(store: SqliteStore) -> None:
    store.transact(adding(1), durable=False)
    with statements(store) as seen:
        store.sync()
        store.sync()
    assert words(seen) == [
        "PRAGMA synchronous=FULL",
        "BEGIN IMMEDIATE",
        set_version([*CHANGES, *MIGRATIONS]),
        "COMMIT",
        "BEGIN IMMEDIATE",
        "COMMIT",
    ]


def test_closing_syncs(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS)
    store.transact(adding(1), durable=False)
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)
    store.close()
    assert set_version([*CHANGES, *MIGRATIONS]) in seen


def test_process_durability_never_syncs_a_commit(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS, "process")) as store:
        with statements(store) as seen:
            store.transact(adding(1))
            store.sync()
        assert store._writer._connection.execute("PRAGMA synchronous").fetchone()[0] == 1
    assert "PRAGMA synchronous=FULL" not in seen


# ---- interrupts ------------------------------------------------------------------------------------------------------


def call_as_leader_of_a_group(store: SqliteStore, mine: Callable[[Tx], Any], others: dict[str, Callable[[Tx], Any]]):
    """Call with `mine` from this, the main thread, which will lead a group in which `others` come after it."""
    crowd, gate = Crowd(store), threading.Event()
    crowd.call("first", lambda tx: gate.wait())
    until(lambda: store._group.running is not None)

    def fill() -> None:
        until(lambda: crowd.waiting() == 2)
        for name, step in others.items():
            crowd.call(name, step)
        gate.set()

    filler = threading.Thread(target=fill)
    filler.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            store.transact(mine)
    finally:
        filler.join()
        crowd.join()
    return crowd.outcomes


def interrupting_once() -> Callable[[], None]:
    """What raises as Ctrl-C does, the first time and on the main thread alone."""
    left = [KeyboardInterrupt]

    def interrupt() -> None:
        if left and threading.current_thread() is threading.main_thread():
            raise left.pop()

    return interrupt


def interrupted_once(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """The method of a call, in whose place Ctrl-C comes the first time that the main thread is at it."""
    interrupt = interrupting_once()

    def interrupted(call: Any) -> None:
        interrupt()
        method(call)

    return interrupted


def test_ctrl_c_while_leading_ends_only_the_leaders_own_call(store: SqliteStore) -> None:
    interrupt = interrupting_once()

    def interrupted(tx: Tx) -> int:
        tx.add(Item("a", 2))
        interrupt()
        return 2

    outcomes = call_as_leader_of_a_group(store, adding(9), {"1": adding(1), "2": interrupted, "3": adding(3)})
    assert [outcomes[name] for name in "123"] == numbers(store) == [1, 2, 3]
    assert store.transact(adding(4)) == 4


def test_ctrl_c_just_after_the_commit_repeats_no_step(store: SqliteStore) -> None:
    execute = store._writer._execute
    interrupt = interrupting_once()

    def executing(sql: str, *values: object) -> Any:
        answer = execute(sql, *values)
        if sql == "COMMIT":
            interrupt()
        return answer

    store._writer._execute = executing
    outcomes = call_as_leader_of_a_group(store, adding(9), {"1": adding(1), "2": adding(2)})
    assert [outcomes[name] for name in "12"] == [1, 2]
    assert numbers(store) == [1, 2, 9]


def test_ctrl_c_while_waking_the_others_still_wakes_them(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadCall, "wake", interrupted_once(ThreadCall.wake))
    outcomes = call_as_leader_of_a_group(store, adding(9), {"1": adding(1), "2": adding(2)})
    assert [outcomes[name] for name in "12"] == [1, 2]
    assert numbers(store) == [1, 2, 9]


def test_ctrl_c_while_waiting_takes_the_call_out_of_the_line(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(SimpleQueue):
        def get(self) -> None:
            raise KeyboardInterrupt

    with held(store) as crowd:
        crowd.call("1", adding(1))
        monkeypatch.setattr(pending_steps, "SimpleQueue", Interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.transact(adding(9))
        monkeypatch.undo()
        crowd.call("2", adding(2))
    assert numbers(store) == [1, 2]


def test_ctrl_c_while_being_named_leader_names_another(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class InterruptedOnceNamed(SimpleQueue):
        def get(self) -> None:
            super().get()
            raise KeyboardInterrupt

    crowd, gate = Crowd(store), threading.Event()
    crowd.call("first", lambda tx: gate.wait())
    monkeypatch.setattr(pending_steps, "SimpleQueue", InterruptedOnceNamed)
    crowd.call("named", adding(9))
    monkeypatch.undo()
    crowd.call("1", adding(1))
    gate.set()
    crowd.join()
    assert isinstance(crowd.outcomes["named"], KeyboardInterrupt)
    assert numbers(store) == [1]


def test_ctrl_c_while_leaving_keeps_no_other_waiting(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadCall, "leave", interrupted_once(ThreadCall.leave))
    crowd = call_between_others(store, adding(2))
    mine = crowd.outcomes["mine"]
    assert isinstance(mine, KeyboardInterrupt)
    assert mine.__context__ is None  # it was woken: no time-out of the test ended its wait
    assert [crowd.outcomes[name] for name in "0134"] == [0, 1, 3, 4]
    assert numbers(store) == [0, 1, 2, 3, 4]


def test_a_thread_that_is_stopped_as_it_leaves_keeps_no_other_waiting(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `PyThreadState_SetAsyncExc` stops one, anywhere."""
    step_down = store._group._step_down

    def stopped(call: Any) -> None:
        step_down(call)
        if call.value == 1:
            raise SystemExit

    monkeypatch.setattr(store._group, "_step_down", stopped)
    with held(store) as crowd:
        for number in range(4):
            crowd.call(str(number), adding(number))
    assert isinstance(crowd.outcomes["1"], SystemExit)
    assert [crowd.outcomes[name] for name in "023"] == [0, 2, 3]
    assert numbers(store) == [0, 1, 2, 3]


def test_an_interrupt_of_a_leader_that_no_signal_reaches_is_its_steps_own_error(store: SqliteStore) -> None:
    def interrupted(tx: Tx) -> None:
        adding(5)(tx)
        raise KeyboardInterrupt

    with held(store) as crowd:
        crowd.call("1", adding(1))
        crowd.call("5", interrupted)
        crowd.call("2", adding(2))
    assert isinstance(crowd.outcomes["5"], KeyboardInterrupt)
    assert numbers(store) == [1, 2]


# ---- event loops -----------------------------------------------------------------------------------------------------


async def leave(store: SqliteStore, first: int) -> None:
    """Make calls, and end with them under way."""
    calls = [asyncio.ensure_future(store.atransact(adding(first + number))) for number in range(3)]
    await asyncio.sleep(0)
    assert not all(call.done() for call in calls)


def test_a_loop_that_closes_with_calls_in_progress_stops_no_other_call(store: SqliteStore) -> None:
    for first in range(0, 30, 3):
        asyncio.run(leave(store, first))
        assert store.transact(adding(100 + first)) == 100 + first
    assert numbers(store)[:30] == list(range(30))


def test_a_loop_that_is_dropped_stops_no_other_call(store: SqliteStore) -> None:
    loop = asyncio.new_event_loop()
    with held(store):
        calls = [loop.create_task(store.atransact(adding(number))) for number in range(3)]
        loop.run_until_complete(asyncio.sleep(0))
        for call in calls:
            call.cancel()
        loop.run_until_complete(asyncio.gather(*calls, return_exceptions=True))
        loop.close()
    assert store.transact(adding(3)) == 3
    assert numbers(store) == [0, 1, 2, 3]


def test_an_offer_that_a_loop_never_takes_keeps_no_thread_waiting(store: SqliteStore) -> None:
    async def block_the_loop() -> None:
        task = asyncio.ensure_future(store.atransact(adding(1)))
        gate.set()
        await asyncio.sleep(0)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(store.transact, adding(2)).result() == 2
        await task

    gate = threading.Event()
    crowd = Crowd(store)
    crowd.call("first", lambda tx: gate.wait())
    asyncio.run(block_the_loop())
    crowd.join()
    assert numbers(store) == [1, 2]


def test_the_executor_of_a_loop_is_the_hosts_alone(store: SqliteStore) -> None:
    async def without_executor() -> int:
        await asyncio.get_running_loop().shutdown_default_executor()
        return await store.atransact(lambda tx: threading.get_ident())

    assert asyncio.run(without_executor()) != threading.get_ident()


def test_a_loop_leads_in_place_where_no_thread_can_be_started(store: SqliteStore) -> None:
    store._group.end_thread()
    assert asyncio.run(store.atransact(adding(1))) == 1


def test_a_cancelled_task_does_not_undo_its_step(store: SqliteStore) -> None:
    complaints: list[object] = []

    async def cancel() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
        with held(store):
            task = asyncio.ensure_future(store.atransact(adding(1)))
            await asyncio.sleep(0)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.atransact(lambda tx: None)

    asyncio.run(cancel())
    assert numbers(store) == [1]
    assert complaints == []


def test_a_loop_is_never_blocked_by_a_step(store: SqliteStore) -> None:
    async def turn() -> list[str]:
        gate = threading.Event()
        task = asyncio.ensure_future(store.atransact(lambda tx: gate.wait(60)))
        await asyncio.sleep(0)
        until(lambda: store._group.running is not None)
        gate.set()
        return [str(await task)]

    assert asyncio.run(turn()) == ["True"]


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_closing_serves_those_waiting_first(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS)
    with ThreadPoolExecutor() as pool:
        with held(store) as crowd:
            crowd.call("1", adding(1))
            closed = pool.submit(store.close)
            until(lambda: crowd.waiting() == 3)
            with pytest.raises(StoreClosed):
                store.transact(adding(2))
        closed.result()
    assert crowd.outcomes["1"] == 1
    with closing(SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS)) as again:
        assert numbers(again) == [1]


def test_a_read_under_way_outlives_the_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "yard.db", CONTRACT_RECORDS)
    store.transact(lambda tx: tx.add(Counter("c", 1)))

    def query(snapshot):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(store.close).result()
        return snapshot.get(Counter, "c").value

    assert store.read(query) == 1
    with pytest.raises(StoreError):
        store.read(query)


def test_the_store_starts_no_thread(store: SqliteStore) -> None:
    before = set(threading.enumerate())
    store.transact(adding(1))
    store.read(lambda snapshot: None)
    assert set(threading.enumerate()) <= before
