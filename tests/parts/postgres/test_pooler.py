"""Behind PgBouncer in transaction mode: every law holds, and notices come by a direct connection or not at all."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from urllib.parse import urlsplit

import psycopg
import pytest

from modelyard.parts.contracts.store_steps import increment
from modelyard.parts.contracts.store_values import Counter, Task
from modelyard.parts.postgres.store import PostgresStore
from modelyard.protocols import Store, Tx
from modelyard.testing import CONTRACT_RECORDS, StoreContract
from pgbouncer import PgBouncer, pooler_program
from polling import until
from postgres_server import PostgresServer


@pytest.fixture
def pooler(postgres: PostgresServer, yard_address: str) -> Iterator[PgBouncer]:
    program = pooler_program()
    if program is None:
        problem = "PgBouncer is not installed: apt-get install pgbouncer"
        pytest.fail(problem) if os.environ.get("CI") == "true" else pytest.skip(problem)
    pooler = PgBouncer(program, postgres, urlsplit(yard_address).path.strip("/"))
    yield pooler
    pooler.close()


class TestPostgresStoreBehindAPooler(StoreContract):
    @pytest.fixture
    def store(self, pooler: PgBouncer) -> Iterator[Store]:
        self.address = pooler.address
        store = PostgresStore(self.address, CONTRACT_RECORDS)
        yield store
        store.close()

    def another(self, store: Store) -> Callable[[], Store]:
        return partial(PostgresStore, self.address, CONTRACT_RECORDS)


def add_and_notify(tx: Tx) -> None:
    tx.add(Task("a"))
    tx.notify("tasks")


def test_notices_come_by_a_direct_connection(pooler: PgBouncer, yard_address: str) -> None:
    with (
        closing(PostgresStore(pooler.address, CONTRACT_RECORDS)) as one,
        closing(PostgresStore(pooler.address, CONTRACT_RECORDS, listen=yard_address)) as other,
    ):
        woken = threading.Event()
        subscription = other.subscribe("tasks", woken.set)
        until(lambda: subscription.live)
        until(woken.is_set)  # it looks once when it begins to listen
        woken.clear()
        one.transact(add_and_notify)
        assert woken.wait(60)


def test_through_the_pooler_no_notice_is_expected(pooler: PgBouncer) -> None:
    with closing(PostgresStore(pooler.address, CONTRACT_RECORDS)) as store:
        woken = threading.Event()
        subscription = store.subscribe("tasks", woken.set)
        thread = store._notices._thread
        assert thread is not None
        thread.join(60)
        assert not thread.is_alive()
        assert not subscription.live
        woken.clear()
        store.transact(add_and_notify)
        assert woken.is_set()  # its own commits wake it at once


def test_a_transaction_brings_its_own_patience(pooler: PgBouncer, yard_address: str) -> None:
    """The pooler hands a connection of the server to others, so no setting of a session would stay."""
    seen = []
    with closing(PostgresStore(pooler.address, CONTRACT_RECORDS, patience=7.0)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
        rows = store._writer._connection.execute("SELECT current_setting('lock_timeout')").fetchall()
        seen.append(rows[0][0])

        def step(tx: Tx) -> int:
            store._writer._wire.rows("SELECT 1", ())  # type: ignore[union-attr]
            seen.append(store._writer._wire.rows("SELECT current_setting('lock_timeout')", ())[0][0])  # type: ignore[union-attr]
            return increment(tx)

        assert store.transact(step) == 1
    assert seen == ["0", "7s"]
    with psycopg.connect(yard_address) as direct:
        assert direct.execute("SELECT value FROM modelyard.counters").fetchone() == (1,)
