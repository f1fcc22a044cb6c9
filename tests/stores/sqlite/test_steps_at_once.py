"""Steps of tasks that need not be durable: run on the loop where nothing is to be waited for, else in a group."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import StoreClosed
from modelyard.flow import AsyncDriver
from modelyard.parts.contracts.store_values import Counter
from modelyard.protocols import Tx
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.writer import _LOGGED
from modelyard.testing import CONTRACT_RECORDS
from polling import until

HERE = threading.get_ident


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "yard.db"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(str(path), CONTRACT_RECORDS)) as opened:
        yield opened


def adding(name: str, ran: list[int]) -> Callable[[Tx], None]:
    """A step that adds a counter and notes the thread in which it runs."""

    def step(tx: Tx) -> None:
        ran.append(HERE())
        tx.add(Counter(name))

    return step


def names(store: SqliteStore) -> list[str]:
    found = (store.read(lambda view, n=n: view.find(Counter, "key", n)) for n in map(str, range(2 * _LOGGED)))
    return [counter.id for counter in found if counter is not None]


def test_a_step_that_need_not_be_durable_runs_on_the_loop(store: SqliteStore) -> None:
    ran: list[int] = []
    asyncio.run(store.atransact(adding("0", ran), durable=False))
    assert (ran, names(store)) == ([HERE()], ["0"])


def test_a_durable_step_runs_elsewhere(store: SqliteStore) -> None:
    ran: list[int] = []
    asyncio.run(store.atransact(adding("0", ran)))
    assert len(ran) == 1
    assert ran != [HERE()]


def test_a_durable_step_of_a_store_that_waits_for_no_disk_runs_on_the_loop(path: Path) -> None:
    ran: list[int] = []
    with closing(SqliteStore(path, CONTRACT_RECORDS, durability="process")) as store:
        asyncio.run(store.atransact(adding("0", ran)))
        assert (ran, names(store)) == ([HERE()], ["0"])


def test_what_it_acknowledges_waits_for_the_next_sync(store: SqliteStore) -> None:
    asyncio.run(store.atransact(adding("0", []), durable=False))
    assert store._writer.unsynced
    store.sync()
    assert not store._writer.unsynced


def test_a_step_waits_elsewhere_while_another_process_writes(store: SqliteStore, path: Path) -> None:
    ran: list[int] = []

    async def held() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            task = asyncio.ensure_future(store.atransact(adding("0", ran), durable=False))
            for _ in range(3):
                await asyncio.sleep(0)
            assert ran == []
            other.execute("ROLLBACK")
            await task

    asyncio.run(held())
    assert len(ran) == 1
    assert ran != [HERE()]
    assert names(store) == ["0"]


def test_a_step_waits_elsewhere_while_another_runs(store: SqliteStore) -> None:
    ran: list[int] = []
    gate = threading.Event()

    async def crowded() -> None:
        leader = threading.Thread(target=store.transact, args=[lambda tx: gate.wait()])
        leader.start()
        until(lambda: store._group.running is not None)
        task = asyncio.ensure_future(store.atransact(adding("0", ran), durable=False))
        for _ in range(3):
            await asyncio.sleep(0)
        assert ran == []
        gate.set()
        await task
        leader.join()

    asyncio.run(crowded())
    assert ran != [HERE()]
    assert names(store) == ["0"]


def test_the_log_is_copied_into_the_file_by_a_commit_elsewhere(store: SqliteStore) -> None:
    ran: list[int] = []
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)

    async def many() -> None:
        for number in range(_LOGGED + 2):
            await store.atransact(adding(str(number), ran), durable=False)

    asyncio.run(many())
    store._writer._connection.set_trace_callback(None)
    assert [thread == HERE() for thread in ran] == [True] * _LOGGED + [False, True]
    pragmas = [statement for statement in seen if "wal_autocheckpoint" in statement]
    assert pragmas == [f"PRAGMA wal_autocheckpoint={pages}" for pages in (0, 1000, 0)]
    assert len(names(store)) == _LOGGED + 2


def commits_of(store: SqliteStore, steps: Callable[[], Awaitable[object]]) -> int:
    """Run something on a loop. Returns how many commits it took."""
    seen: list[str] = []
    store._writer._connection.set_trace_callback(seen.append)

    async def run() -> None:
        await steps()

    asyncio.run(run())
    store._writer._connection.set_trace_callback(None)
    return seen.count("COMMIT")


def test_tasks_that_come_in_one_turn_of_the_loop_share_a_commit_after_the_first(store: SqliteStore) -> None:
    ran: list[int] = []
    steps = [adding(str(number), ran) for number in range(7)]
    commits = commits_of(store, lambda: asyncio.gather(*(store.atransact(step, durable=False) for step in steps)))
    assert (commits, ran, len(names(store))) == (2, [HERE()] * 7, 7)


def test_turns_that_follow_a_shared_one_have_one_commit_each(store: SqliteStore) -> None:
    async def turns() -> None:
        for turn in range(4):
            steps = [adding(str(3 * turn + number), ran) for number in range(3)]
            await asyncio.gather(*(store.atransact(step, durable=False) for step in steps))

    ran: list[int] = []
    assert commits_of(store, turns) == 2 + 1 + 1 + 1
    assert (ran, len(names(store))) == ([HERE()] * 12, 12)


def test_a_lone_call_after_a_shared_turn_waits_for_one_turn_and_the_next_for_none(store: SqliteStore) -> None:
    async def turns_of_a_call(name: str) -> int:
        turns, ended = 0, asyncio.ensure_future(store.atransact(adding(name, []), durable=False))
        await asyncio.sleep(0)  # it begins
        while not ended.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    async def calls() -> list[int]:
        steps = [adding(str(number), []) for number in range(3)]
        await asyncio.gather(*(store.atransact(step, durable=False) for step in steps))
        return [await turns_of_a_call("3"), await turns_of_a_call("4")]

    assert asyncio.run(calls()) == [1, 0]
    assert len(names(store)) == 5


def test_nobody_hears_of_a_call_before_its_turn_is_committed(store: SqliteStore) -> None:
    async def call(name: str) -> bool:
        await store.atransact(adding(name, []), durable=False)
        return name in names(store)

    async def turns() -> list[bool]:
        return [
            seen for turn in range(3) for seen in await asyncio.gather(*(call(str(4 * turn + n)) for n in range(4)))
        ]

    assert asyncio.run(turns()) == [True] * 12


def test_a_task_that_is_cancelled_in_a_shared_turn_ends_after_the_commit(store: SqliteStore) -> None:
    """The others are not disturbed, and a driver that must not abandon its work has the outcome."""

    async def driven(driver: AsyncDriver[None], name: str) -> bool:
        await driver.wait(store.atransact(adding(name, []), durable=False))
        return name in names(store)

    async def calls() -> tuple[list[object], bool]:
        await asyncio.gather(*(store.atransact(adding(str(number), []), durable=False) for number in range(3)))
        drivers = [AsyncDriver[None](iter(())) for _ in range(3)]  # type: ignore[arg-type]  # no flow runs
        tasks = [asyncio.ensure_future(driven(driver, str(n))) for n, driver in enumerate(drivers, 3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True), drivers[1].cancelled is not None

    assert asyncio.run(calls()) == ([True] * 3, True)


def test_a_task_that_calls_again_in_the_same_turn_does_not_wait_for_the_next(store: SqliteStore) -> None:
    turned: list[bool] = []

    async def calls() -> None:
        asyncio.get_running_loop().call_soon(turned.append, True)
        for number in range(3):
            await store.atransact(adding(str(number), []), durable=False)
        assert not turned

    assert commits_of(store, calls) == 3


def test_each_turn_has_a_first_call(store: SqliteStore) -> None:
    async def calls() -> None:
        for number in range(3):
            await asyncio.gather(store.atransact(adding(str(number), []), durable=False))

    assert commits_of(store, calls) == 3
    assert store._group._first == {}


def test_of_a_turn_a_step_that_raises_is_undone_alone(store: SqliteStore) -> None:
    def failing(tx: Tx) -> None:
        tx.add(Counter("failing"))
        raise LookupError

    async def calls() -> list[object]:
        steps = [adding("0", []), adding("1", []), failing, adding("2", [])]
        return await asyncio.gather(*(store.atransact(step, durable=False) for step in steps), return_exceptions=True)

    outcomes = asyncio.run(calls())
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), LookupError, type(None)]
    assert names(store) == ["0", "1", "2"]
    assert store.read(lambda view: view.find(Counter, "key", "failing")) is None


def test_the_first_step_of_a_shared_turn_that_raises_is_undone_alone(store: SqliteStore) -> None:
    def failing(tx: Tx) -> None:
        tx.add(Counter("failing"))
        raise LookupError

    async def calls() -> list[object]:
        await asyncio.gather(*(store.atransact(adding(str(number), []), durable=False) for number in range(2, 5)))
        steps = [failing, adding("0", []), adding("1", [])]
        return await asyncio.gather(*(store.atransact(step, durable=False) for step in steps), return_exceptions=True)

    assert [type(outcome) for outcome in asyncio.run(calls())] == [LookupError, type(None), type(None)]
    assert names(store) == ["0", "1", "2", "3", "4"]


def test_of_a_turn_a_durable_step_has_all_run_elsewhere(store: SqliteStore) -> None:
    ran: list[int] = []

    async def calls() -> None:
        durable = [False, False, True, False]
        await asyncio.gather(*(store.atransact(adding(str(n), ran), durable=d) for n, d in enumerate(durable)))

    asyncio.run(calls())
    assert [thread == HERE() for thread in ran] == [True, False, False, False]
    assert not store._writer.unsynced
    assert len(names(store)) == 4


def test_the_calls_of_a_turn_wait_elsewhere_while_another_process_writes(store: SqliteStore, path: Path) -> None:
    ran: list[int] = []

    async def held() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            await store.atransact(adding("0", ran), durable=False)
            other.execute("BEGIN IMMEDIATE")
            calls = [asyncio.ensure_future(store.atransact(adding(str(n), ran), durable=False)) for n in (1, 2, 3)]
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(ran) == 1
            other.execute("ROLLBACK")
            await asyncio.gather(*calls)

    asyncio.run(held())
    assert [thread == HERE() for thread in ran] == [True, False, False, False]


def test_a_loop_that_closes_in_a_turn_stops_no_other_call(store: SqliteStore) -> None:
    async def leave(first: int) -> None:
        steps = [adding(str(first + number), []) for number in range(3)]
        calls = [asyncio.ensure_future(store.atransact(step, durable=False)) for step in steps]
        await asyncio.sleep(0)
        assert not all(call.done() for call in calls)

    for first in range(0, 30, 3):
        asyncio.run(leave(first))
        store.transact(adding(str(100 + first), []))
    assert [int(name) for name in names(store)][:30] == list(range(30))


def test_closing_serves_the_calls_of_a_turn(path: Path) -> None:
    store = SqliteStore(str(path), CONTRACT_RECORDS)

    async def calls() -> None:
        steps = [asyncio.ensure_future(store.atransact(adding(str(n), []), durable=False)) for n in range(4)]
        await asyncio.sleep(0)
        closing_thread = threading.Thread(target=store.close)
        closing_thread.start()
        closing_thread.join()
        await asyncio.gather(*steps)

    asyncio.run(calls())
    with closing(SqliteStore(str(path), CONTRACT_RECORDS)) as again:
        assert names(again) == ["0", "1", "2", "3"]


def test_a_step_that_raises_is_undone_and_the_next_one_runs(store: SqliteStore) -> None:
    def step(tx: Tx) -> None:
        tx.add(Counter("0"))
        raise LookupError("its own")

    async def both() -> None:
        with pytest.raises(LookupError):
            await store.atransact(step, durable=False)
        await store.atransact(adding("1", []), durable=False)

    asyncio.run(both())
    assert names(store) == ["1"]


def test_ctrl_c_in_a_step_leaves_the_store_to_others(store: SqliteStore) -> None:
    def interrupted(tx: Tx) -> None:
        tx.add(Counter("0"))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(store.atransact(interrupted, durable=False))
    store.transact(adding("1", []))
    assert names(store) == ["1"]


def test_a_step_may_not_call_its_store(store: SqliteStore) -> None:
    with pytest.raises(RuntimeError, match="may not call"):
        asyncio.run(store.atransact(lambda tx: store.read(lambda view: None), durable=False))


def test_a_closed_store_runs_nothing(store: SqliteStore) -> None:
    ran: list[int] = []
    store.close()
    with pytest.raises(StoreClosed):
        asyncio.run(store.atransact(adding("0", ran), durable=False))
    assert ran == []
