"""Steps of tasks that need not be durable: run on the loop where nothing is to be waited for, else in a group."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from modelyard.errors import StoreClosed
from modelyard.protocols import Tx
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.writer import _LOGGED
from modelyard.testing import CONTRACT_RECORDS
from modelyard.testing.contracts.store_values import Counter
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

    call = store.atransact(interrupted, durable=False)
    with pytest.raises(KeyboardInterrupt):
        call.send(None)
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
