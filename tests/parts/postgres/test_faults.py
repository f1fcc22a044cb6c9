"""What breaks: the server, its connections, its disk, its locks. What was acknowledged stays; no outcome is made up."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from modelyard.errors import OutcomeUnknown, StorageFull, StoreBusy, StoreCorrupt, StoreError, UsedAfterFork
from modelyard.parts.contracts.store_records import all_items
from modelyard.parts.contracts.store_steps import increment
from modelyard.parts.contracts.store_values import Counter, Item, Specimen
from modelyard.parts.postgres.locks import lock_key
from modelyard.parts.postgres.pages import Row, Statement
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.postgres.wire import Abandoned, Wire
from modelyard.protocols import Tx
from modelyard.testing import CONTRACT_RECORDS
from postgres_server import PostgresServer, server_folder

IMPATIENT = 0.2


@pytest.fixture
def store(yard_address: str) -> Iterator[PostgresStore]:
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
        yield store


@pytest.fixture
def own_server(postgres: PostgresServer) -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    folder = server_folder()
    assert folder is not None
    server = PostgresServer(folder)
    yield server
    server.close()


def value(store: PostgresStore) -> int:
    return store.read(lambda snapshot: snapshot.get(Counter, "c")).value


def end_backend(store: PostgresStore, address: str) -> None:
    """End the server's side of the connection that writes, from another one."""
    pid = store._writer._connection.info.backend_pid
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])


# ---- connections ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trip", [1, 2])
def test_a_backend_that_ends_before_a_round_trip_costs_no_step(
    store: PostgresStore, yard_address: str, monkeypatch: pytest.MonkeyPatch, trip: int
) -> None:
    at = iter(range(1, 100))
    many = Wire.many

    def ending(self: Wire, *statements: Any) -> Any:
        if next(at) == trip:
            end_backend(store, yard_address)
        return many(self, *statements)

    monkeypatch.setattr(Wire, "many", ending)
    assert store.transact(increment) == 1
    assert value(store) == 1


@pytest.mark.parametrize("noticed", [True, False])
def test_a_connection_lost_after_the_commit_is_a_success_and_no_step_runs_again(
    store: PostgresStore, yard_address: str, monkeypatch: pytest.MonkeyPatch, noticed: bool
) -> None:
    ran = []
    commit = Wire.commit

    def losing(self: Wire, asked: Statement) -> None:
        commit(self, asked)
        monkeypatch.setattr(Wire, "commit", commit)
        if noticed:
            self._connection.close()
        else:
            end_backend(store, yard_address)
        self.fault = psycopg.OperationalError("lost")
        raise Abandoned

    monkeypatch.setattr(Wire, "commit", losing)
    assert store.transact(lambda tx: ran.append(1) or increment(tx)) == 1
    assert value(store) == 1
    assert len(ran) == 1


def test_a_commit_that_arrives_after_the_question_fails(store: PostgresStore, yard_address: str) -> None:
    """A server may still hold statements of a connection that the client has given up: they must not count later."""
    writer = store._writer
    with psycopg.connect(yard_address, autocommit=True) as late:
        late.execute("BEGIN")
        late.execute("UPDATE modelyard.counters SET value = 77")
        writer._number += 1
        late.execute("SAVEPOINT reached")
        count = writer._count.replace("$1", "%s").replace("$2", "%s")
        requested = ThreadPoolExecutor(1).submit(writer._was_stored)
        assert requested.result() is False
        with pytest.raises(psycopg.errors.DivisionByZero):
            late.execute(count, [writer._writer, writer._number])
        late.execute("ROLLBACK")
    assert store.transact(increment) == 1


def test_a_commit_under_way_is_waited_for(store: PostgresStore, yard_address: str) -> None:
    writer = store._writer
    with psycopg.connect(yard_address, autocommit=True) as slow, ThreadPoolExecutor(1) as pool:
        slow.execute("BEGIN")
        writer._number += 1
        slow.execute(writer._count.replace("$1", "%s").replace("$2", "%s"), [writer._writer, writer._number])
        requested = pool.submit(writer._was_stored)
        _wait_for_lock(yard_address)
        slow.execute("COMMIT")
        assert requested.result() is True


def _wait_for_lock(address: str) -> None:
    from polling import until

    with psycopg.connect(address, autocommit=True) as connection:
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        until(lambda: connection.execute(waiting).fetchone()[0])


def test_an_outcome_that_cannot_be_found_out_is_unknown(
    own_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = PostgresStore(own_server.create_database(), CONTRACT_RECORDS, patience=IMPATIENT)
    store.transact(lambda tx: tx.add(Counter("c")))
    commit = Wire.commit

    def crashing(self: Wire, asked: Statement) -> Row:
        own_server.stop("immediate")
        return commit(self, asked)

    monkeypatch.setattr(Wire, "commit", crashing)
    with pytest.raises(OutcomeUnknown, match="look before"):
        store.transact(increment)
    monkeypatch.undo()
    with pytest.raises(StoreBusy, match="server running"):
        store.transact(increment)
    with pytest.raises(StoreBusy):
        value(store)
    own_server.start()
    assert value(store) in (0, 1)
    before = value(store)
    assert store.transact(increment) == before + 1
    store.close()


def test_a_server_that_restarts_costs_no_step(own_server: PostgresServer) -> None:
    with closing(PostgresStore(own_server.create_database(), CONTRACT_RECORDS, patience=60)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
        assert value(store) == 0
        own_server.stop("fast")
        with ThreadPoolExecutor(2) as pool:
            stepped, read = pool.submit(store.transact, increment), pool.submit(value, store)
            own_server.start()
            assert stepped.result() == 1
            assert read.result() in (0, 1)


def test_a_server_killed_under_load_loses_nothing_that_was_acknowledged(own_server: PostgresServer) -> None:
    address = own_server.create_database()
    store = PostgresStore(address, CONTRACT_RECORDS, patience=IMPATIENT)
    acknowledged: list[int] = []
    unknown: list[int] = []
    refused: list[int] = []
    enough = threading.Semaphore(0)

    def write(first: int) -> None:
        for number in range(first, first + 10_000):
            try:
                store.transact(lambda tx, n=number: tx.add(Item("a", n)))
            except OutcomeUnknown:
                unknown.append(number)
                return
            except StoreError:
                refused.append(number)
                return
            acknowledged.append(number)
            enough.release()

    with ThreadPoolExecutor(8) as pool:
        ended = [pool.submit(write, 10_000 * at) for at in range(8)]
        for _ in range(200):
            assert enough.acquire(timeout=60)
        own_server.stop("immediate")
        for each in ended:
            each.result()
    own_server.start()
    kept = {item.number for item in store.read(lambda s: s.page(Item, "by_shelf", "a", limit=100_000))}
    assert not set(acknowledged) - kept
    assert not kept & set(refused)
    assert kept <= {*acknowledged, *unknown}
    store.close()


def test_a_connection_that_is_lost_as_soon_as_it_was_opened_is_opened_again(
    store: PostgresStore, yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect, opened = PipelinedConnection.connect, []

    def losing(*arguments: Any, **options: Any) -> Any:
        connection = connect(*arguments, **options)
        opened.append(1)
        if len(opened) == 1:
            with connect(yard_address, autocommit=True) as other:
                other.execute("SELECT pg_terminate_backend(%s, 5000)", [connection.info.backend_pid])
        return connection

    end_backend(store, yard_address)
    monkeypatch.setattr(PipelinedConnection, "connect", losing)
    assert store.transact(increment) == 1
    assert len(opened) == 2


@pytest.mark.parametrize("statements", [1, 2])
def test_a_read_whose_backend_ends_runs_again(store: PostgresStore, yard_address: str, statements: int) -> None:
    ended = []

    def query(snapshot: Any) -> list[int]:
        values = [snapshot.get(Counter, "c").value for _ in range(statements)]
        if not ended:
            ended.append(1)
            with psycopg.connect(yard_address, autocommit=True) as connection:
                others = "application_name = 'modelyard' AND datname = current_database()"
                connection.execute(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {others}")
        return [*values, snapshot.get(Counter, "c").value]

    assert store.read(query) == [0] * (statements + 1)
    assert store.transact(increment) == 1


def test_more_readers_than_connections_wait_for_each_other(yard_address: str) -> None:
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS, readers=1, patience=IMPATIENT)) as store:
        entered, leave = threading.Event(), threading.Event()

        def slow(_: Any) -> None:
            entered.set()
            leave.wait()

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(store.read, slow)
            entered.wait()
            with pytest.raises(StoreBusy, match="all 1 connections"):
                all_items(store)
            leave.set()
            first.result()
        assert all_items(store) == []


def test_a_forked_child_is_refused(store: PostgresStore) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            try:
                store.transact(increment)
            except UsedAfterFork:
                store.close()
                os.write(writer, b"refused")
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    assert os.read(reader, 100) == b"refused"
    os.close(reader)
    assert store.transact(increment) == 1


# ---- locks, disks, limits ------------------------------------------------------------------------------------------


def test_another_that_holds_the_lock_is_waited_for_with_patience_while_reads_continue(yard_address: str) -> None:
    with closing(PostgresStore(yard_address, CONTRACT_RECORDS, patience=IMPATIENT)) as store:
        store.transact(lambda tx: tx.add(Counter("c")))
        with psycopg.connect(yard_address, autocommit=True) as frozen:
            frozen.execute("SELECT pg_advisory_lock(%s)", [lock_key("modelyard", "steps")])
            with pytest.raises(StoreBusy, match="try again"):
                store.transact(increment)
            assert value(store) == 0
        assert store.transact(increment) == 1


def _failing(code: str) -> Callable[[str], None]:
    def install(address: str) -> None:
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(
                "CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS"
                f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$"
            )
            connection.execute("CREATE TRIGGER fail BEFORE INSERT ON modelyard.items EXECUTE FUNCTION fail()")

    return install


@pytest.mark.parametrize(
    ("code", "expected"),
    [("53100", StorageFull), ("XX001", StoreCorrupt), ("57014", StoreBusy), ("42501", StoreError)],
)
def test_what_the_server_refuses_fails_that_step_alone(
    store: PostgresStore, yard_address: str, code: str, expected: type[StoreError]
) -> None:
    _failing(code)(yard_address)
    with pytest.raises(expected):
        store.transact(lambda tx: tx.add(Item("a", 1)))
    outcomes = _together(store, lambda tx: tx.add(Item("a", 1)), increment, increment)
    assert type(outcomes[0]) is expected
    assert outcomes[1:] == [1, 2]
    assert value(store) == 2


def _together(store: PostgresStore, *steps: Callable[[Tx], Any]) -> list[Any]:
    from modelyard.stores.pending_steps import PendingStep

    group: list[PendingStep[Any]] = [PendingStep(step, durable=True) for step in steps]
    store._writer.run(group)
    return [call.value if call.error is None else call.error for call in group]


def test_an_error_that_a_step_swallows_fails_it_anyway(
    store: PostgresStore, yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _failing("53100")(yard_address)

    def swallowing(tx: Tx) -> str:
        tx.add(Item("a", 1))
        with suppress(Exception):
            tx.count(Item, "by_shelf", "a")
        return "fine"

    with pytest.raises(StorageFull):
        store.transact(swallowing)


def test_keys_that_are_too_long_together_are_a_value_error(yard_address: str) -> None:
    from modelyard.stores import Index, Record

    wide = Record(
        Specimen,
        "specimens",
        key=("id",),
        indexes={"by_all": Index(("text", "maybe_text", "colour"))},
    )
    with closing(PostgresStore(yard_address, [wide])) as store:
        noise = iter(os.urandom(5000).hex()[n : n + 990] for n in range(0, 9900, 990))
        with pytest.raises(ValueError, match="2,704 bytes"):
            store.transact(lambda tx: tx.add(Specimen(next(noise), text=next(noise), maybe_text=next(noise))))


def test_a_damaged_row_is_reported(store: PostgresStore, yard_address: str) -> None:
    store.transact(lambda tx: tx.add(Specimen("s")))
    with psycopg.connect(yard_address, autocommit=True) as connection:
        connection.execute("UPDATE modelyard.specimens SET price = 'much'")
    with pytest.raises(StoreCorrupt, match="specimens"):
        store.read(lambda snapshot: snapshot.get(Specimen, "s"))


def test_a_forgotten_migration_is_reported(yard_address: str) -> None:
    PostgresStore(yard_address, CONTRACT_RECORDS).close()
    with psycopg.connect(yard_address, autocommit=True) as connection:
        connection.execute("ALTER TABLE modelyard.items DROP COLUMN weight")
    with pytest.raises(StoreCorrupt, match="weight"):
        PostgresStore(yard_address, CONTRACT_RECORDS)


def test_a_statement_that_takes_too_long_fails_its_step_and_no_other(yard_address: str) -> None:
    """As where an administrator has set statement_timeout for the user."""
    address = f"{yard_address}&options=-c%20statement_timeout%3D{int(IMPATIENT * 1000)}"
    with closing(PostgresStore(address, CONTRACT_RECORDS)) as store, psycopg.connect(yard_address) as other:
        store.transact(lambda tx: tx.add(Counter("c")))
        other.execute("SELECT value FROM modelyard.counters FOR UPDATE")
        with pytest.raises(StoreBusy, match="statement timeout"):
            store.transact(increment)
        assert value(store) == 0
        other.rollback()
        assert store.transact(increment) == 1
