"""Storage that fails: what is reported to a caller, what remains, and what works afterwards."""

import gc
import os
import sqlite3
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import attrs
import pytest

from disk_room import files_of
from each import each_case
from modelyard import disk
from modelyard.domain.record import Record
from modelyard.errors import RecordConflict, StorageFull, StoreBusy, StoreClosed, StoreCorrupt, StoreError
from modelyard.parts.contracts.store_values import Counter, Specimen
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx
from modelyard.stores.pending_steps import PendingStep
from modelyard.stores.sqlite import SqliteStore, errors
from modelyard.stores.sqlite.errors import is_busy, to_store_error
from modelyard.stores.sqlite.fair_lock import FairLock
from modelyard.testing import CONTRACT_RECORDS


@attrs.frozen
class Step:
    """A record whose key is the row's own number in SQLite."""

    number: int
    text: str


@pytest.fixture
def store(path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(path, CONTRACT_RECORDS, patience=0.1)) as store:
        yield store


@pytest.fixture
def peer(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection to the same file, as another process has one."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as connection:
        yield connection


def limit_pages(store: SqliteStore, more: int) -> None:
    """Let the file grow by so many pages only."""
    connection = store._writer._connection
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    connection.execute(f"PRAGMA max_page_count={pages + more}")


def big(name: str) -> Specimen:
    return Specimen(name, text="x" * 3000)


def names(store: SqliteStore) -> set[str]:
    return {specimen.id for specimen in store.read(lambda s: s.page(Specimen, "by_colour", None, limit=1000))}


# ---- no room ---------------------------------------------------------------------------------------------------------


def test_a_check_writes_so_that_it_fails_where_nothing_can_be_stored(store: SqliteStore, path: Path) -> None:
    log = Path(f"{path}-wal")
    before = log.stat().st_size
    with files_of(before), pytest.raises(StorageFull, match="no room"):
        store.check()
    store.check()
    assert 0 < log.stat().st_size - before < 10_000
    with files_of(log.stat().st_size):
        store.backup(str(path.with_name("copy.db")))  # it may go to another disk


def test_a_group_that_fills_the_disk_keeps_exactly_what_was_acknowledged(store: SqliteStore) -> None:
    limit_pages(store, 20)
    kept, reported = set(), []

    def work(name: str) -> None:
        try:
            store.transact(lambda tx: tx.add(big(name)))
            kept.add(name)
        except Exception as error:
            reported.append(type(error))

    crowd = [threading.Thread(target=work, args=(f"s{number}",)) for number in range(40)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    assert names(store) == kept
    assert 0 < len(kept) < 40
    assert set(reported) == {StorageFull}
    limit_pages(store, 1000)
    store.transact(lambda tx: tx.add(big("afterwards")))
    assert names(store) == kept | {"afterwards"}


def test_a_failing_step_fails_no_other_step_of_its_group(store: SqliteStore) -> None:
    limit_pages(store, 4)
    gate, outcomes = threading.Event(), {}

    def work(name: str, size: int) -> None:
        try:
            outcomes[name] = store.transact(lambda tx: tx.add(Specimen(name, text="x" * size)))
        except StoreError as error:
            outcomes[name] = type(error)

    crowd = [threading.Thread(target=store.transact, args=(lambda tx: gate.wait(),))]
    crowd += [threading.Thread(target=work, args=call) for call in (("s1", 10), ("s2", 100_000), ("s3", 10))]
    for number, thread in enumerate(crowd, 1):
        thread.start()
        while len(store._group._queue) + (store._group._leader is not None) < number:  # the first does not queue
            pass
    gate.set()
    for thread in crowd:
        thread.join()
    assert outcomes == {"s1": None, "s2": StorageFull, "s3": None}
    assert names(store) == {"s1", "s3"}


def test_a_fault_that_a_query_swallows_fails_it_anyway(store: SqliteStore, peer: sqlite3.Connection) -> None:
    peer.execute("DROP TABLE counters")

    def query(snapshot: Snapshot) -> None:
        with suppress(StoreError):
            snapshot.get(Counter, "a")

    with pytest.raises(StoreError):
        store.read(query)


def test_a_fault_that_a_step_swallows_fails_it_anyway(store: SqliteStore) -> None:
    limit_pages(store, 3)

    def step(tx: Tx) -> str:
        with suppress(StoreError):
            for number in range(20):
                tx.add(big(f"s{number}"))
        return "all is well"

    with pytest.raises(StorageFull):
        store.transact(step)
    limit_pages(store, 1000)
    assert names(store) == set()


@pytest.mark.parametrize("failing", ["BEGIN IMMEDIATE", "COMMIT"])
def test_a_fault_around_a_lone_step_is_an_error_of_the_store(store: SqliteStore, failing: str) -> None:
    """As where the disk is full when the pages of the transaction are written."""
    execute = store._writer._execute

    def executing(sql: str, *values: object) -> object:
        if sql == failing:
            raise Fault(sqlite3.SQLITE_FULL)
        return execute(sql, *values)

    store._writer._execute, store._writer._begin = executing, lambda: executing("BEGIN IMMEDIATE")
    with pytest.raises(StorageFull):
        store.transact(lambda tx: tx.add(big("s")))
    store._writer._execute, store._writer._begin = execute, lambda: execute("BEGIN IMMEDIATE")
    assert names(store) == set()
    store.transact(lambda tx: tx.add(big("afterwards")))
    assert names(store) == {"afterwards"}


def test_what_a_step_raises_is_freed_with_its_last_reference(store: SqliteStore) -> None:
    """The frames of its traceback do not hold it, so it needs no collector of garbage."""

    class Raised(Exception):
        pass

    def step(tx: Tx) -> None:
        raise Raised

    seen = []
    gc.disable()
    try:
        store.transact(step)
    except Raised as error:
        seen.append(weakref.ref(error))
    finally:
        gc.enable()
    assert [reference() for reference in seen] == [None]


def fault_swallowed(tx: Tx) -> None:
    """What a step does that writes, meets a fault which leaves the transaction open, and goes on."""
    tx.add(big("s"))
    with suppress(StoreError):
        tx.get(Counter, "a")


@pytest.mark.parametrize("raised", [None, LookupError])
def test_nothing_stays_of_a_step_that_has_met_a_fault(
    store: SqliteStore, peer: sqlite3.Connection, raised: type[Exception] | None
) -> None:
    peer.execute("DROP TABLE counters")

    def step(tx: Tx) -> None:
        fault_swallowed(tx)
        if raised:
            raise raised

    with pytest.raises(StoreError, match="no such table"):
        store.transact(step)
    assert names(store) == set()


@pytest.mark.parametrize("before", [lambda tx: tx.add(big("s")), fault_swallowed])
def test_an_interrupt_of_a_lone_step_leaves_nothing_and_holds_up_no_other(
    store: SqliteStore, peer: sqlite3.Connection, before: Callable[[Tx], None]
) -> None:
    peer.execute("DROP TABLE counters")

    def step(tx: Tx) -> None:
        before(tx)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.transact(step)
    peer.execute("BEGIN IMMEDIATE")
    peer.execute("ROLLBACK")
    assert names(store) == set()
    store.transact(lambda tx: tx.add(big("afterwards")))
    assert names(store) == {"afterwards"}


# ---- others in the way -----------------------------------------------------------------------------------------------


def test_a_peer_that_holds_the_file_makes_the_store_busy_for_writers_only(
    store: SqliteStore, peer: sqlite3.Connection
) -> None:
    store.transact(lambda tx: tx.add(Counter("c")))
    peer.execute("BEGIN IMMEDIATE")
    for _ in range(2):
        with pytest.raises(StoreBusy):
            store.transact(lambda tx: tx.replace(Counter("c", 1)))
    assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")
    peer.execute("ROLLBACK")
    store.transact(lambda tx: tx.replace(Counter("c", 2)))
    assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c", 2)


def test_closing_says_when_it_cannot_bring_to_the_disk_what_waits_for_that(
    store: SqliteStore, peer: sqlite3.Connection
) -> None:
    store.transact(lambda tx: tx.add(Counter("c")), durable=False)
    peer.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy):
        store.close()
    with pytest.raises(StoreClosed):
        store.read(lambda snapshot: snapshot.get(Counter, "c"))
    store.close()


def test_closing_without_unsynced_writes_does_not_wait(store: SqliteStore, peer: sqlite3.Connection) -> None:
    store.transact(lambda tx: tx.add(Counter("c")))
    peer.execute("BEGIN IMMEDIATE")
    store.close()


def test_an_up_to_date_file_opens_while_another_process_holds_the_write_lock(
    store: SqliteStore, peer: sqlite3.Connection, path: Path
) -> None:
    """A process frozen inside a transaction keeps no other from opening the file and reading."""
    store.transact(lambda tx: tx.add(Counter("c")))
    peer.execute("BEGIN IMMEDIATE")
    with closing(SqliteStore(path, CONTRACT_RECORDS, patience=0.0)) as second:
        assert second.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")
    peer.execute("ROLLBACK")


def test_every_caller_in_a_group_gets_store_busy(store: SqliteStore, peer: sqlite3.Connection) -> None:
    peer.execute("BEGIN IMMEDIATE")
    reported = []

    def work() -> None:
        try:
            store.transact(lambda tx: None)
        except StoreBusy as error:
            reported.append(error)

    crowd = [threading.Thread(target=work) for _ in range(6)]
    for thread in crowd:
        thread.start()
    for thread in crowd:
        thread.join()
    peer.execute("ROLLBACK")
    assert len({id(error) for error in reported}) == 6


def test_a_writer_waits_for_a_peer_that_ends(path: Path) -> None:
    with (
        closing(SqliteStore(path, CONTRACT_RECORDS, patience=30)) as store,
        closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as peer,
    ):
        peer.execute("BEGIN IMMEDIATE")
        writer = threading.Thread(target=store.transact, args=(lambda tx: tx.add(Counter("c")),))
        writer.start()
        while store._group.running is None:
            pass
        peer.execute("COMMIT")
        writer.join()
        assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")


def test_a_peer_frozen_holding_the_fair_lock_does_not_stop_the_others(store: SqliteStore, path: Path) -> None:
    with closing(FairLock(f"{path}-turn", 1.0)) as frozen:
        frozen.enter(lambda: store.transact(lambda tx: tx.add(Counter("c"))))
    assert store.read(lambda snapshot: snapshot.get(Counter, "c")) == Counter("c")


def test_nobody_begins_while_another_process_waits(path: Path) -> None:
    with closing(FairLock(f"{path}-turn", 60.0)) as waiting, closing(FairLock(f"{path}-turn", 60.0)) as other:
        began: list[bool] = []

        def begin() -> None:
            began.append(other.enter_at_once(lambda: None))
            if len(began) < 3:
                raise Fault(sqlite3.SQLITE_BUSY)

        waiting.enter(begin)
        assert began == [False, False, False]
        assert other.enter_at_once(lambda: None)


def test_the_mark_of_a_process_that_was_killed_while_it_waited_is_cleared(path: Path) -> None:
    turn = f"{path}-turn"
    child = os.fork()
    if child == 0:
        FairLock(turn, 60.0).enter(lambda: os._exit(0))
    os.waitpid(child, 0)
    with closing(FairLock(turn, 60.0)) as other:
        assert not other.enter_at_once(lambda: None)
        other.enter(lambda: None)
        assert other.enter_at_once(lambda: None)


def test_without_file_locks_polling_does(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_flock", lambda file, how: None)
    with (
        closing(SqliteStore(path, CONTRACT_RECORDS, patience=0.05)) as store,
        closing(sqlite3.connect(path, isolation_level=None)) as peer,
    ):
        store.transact(lambda tx: tx.add(Counter("c")))
        peer.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy):
            store.transact(lambda tx: tx.add(Counter("d")))
        peer.execute("ROLLBACK")


# ---- the map of errors -----------------------------------------------------------------------------------------------


class Fault(sqlite3.OperationalError):
    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.sqlite_errorcode = code


@each_case(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_BUSY, StoreBusy),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreBusy),
        (sqlite3.SQLITE_FULL, StorageFull),
        (sqlite3.SQLITE_IOERR_WRITE, StoreError),
        (sqlite3.SQLITE_IOERR_SHMSIZE, StorageFull),
        (sqlite3.SQLITE_IOERR_READ, StoreError),
        (sqlite3.SQLITE_READONLY, StoreError),
    ],
)
def test_each_code_of_sqlite_has_its_error(code: int, kind: type[StoreError]) -> None:
    error = Fault(code)
    store_error = to_store_error(error)
    assert (type(store_error), store_error.__cause__) == (kind, error)
    assert is_busy(error) == (kind is StoreBusy)
    assert ("no room for records on the disk" in str(store_error)) == (kind is StorageFull)


def test_the_errors_are_those_of_the_module_that_sqlite_utils_uses() -> None:
    from sqlite_utils.utils import sqlite3 as used

    from modelyard.stores.sqlite.errors import SqliteError

    assert SqliteError is used.Error


def test_a_write_that_fails_under_a_limit_of_file_sizes_has_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = types.SimpleNamespace(RLIMIT_FSIZE=1, RLIM_INFINITY=-1, getrlimit=lambda _: (2**20, -1))
    monkeypatch.setattr(errors, "resource", limited)
    error = to_store_error(Fault(sqlite3.SQLITE_IOERR_WRITE))
    assert (type(error), "free some, then try again" in str(error)) == (StorageFull, True)


def test_a_failed_write_says_that_the_disk_failed() -> None:
    assert "the disk could not be written" in str(to_store_error(Fault(sqlite3.SQLITE_IOERR_WRITE)))


def test_a_file_that_cannot_be_used_is_named(path: Path) -> None:
    path.write_text("not a database, and long enough to be read as one" * 50)
    with pytest.raises(StoreCorrupt, match=str(path)):
        SqliteStore(path, CONTRACT_RECORDS)


def test_a_damaged_schema_is_damage(path: Path) -> None:
    SqliteStore(path, CONTRACT_RECORDS).close()
    whole = path.read_bytes()
    damaged = whole.replace(b'CREATE TABLE "counters"', b'CREATE TABLE "count\xe5rs"', 1)
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(StoreCorrupt):
        SqliteStore(path, CONTRACT_RECORDS)
    assert path.read_bytes() == damaged


def test_no_caller_waits_longer_than_the_patience(path: Path) -> None:
    """One that stood in line after a call that waited in vain is not given a second patience."""
    with closing(SqliteStore(path, CONTRACT_RECORDS, patience=60.0)) as store:
        with closing(sqlite3.connect(path, isolation_level=None)) as foreign:
            foreign.execute("BEGIN IMMEDIATE")
            calls = [PendingStep(lambda tx: None, durable=True) for _ in range(3)]
            calls[0].since = calls[1].since = time.monotonic() - 61
            store._writer.run(calls)
            assert [call.settled for call in calls] == [True, True, False]
            with pytest.raises(StoreBusy, match="try again"):
                calls[1].outcome()
            foreign.execute("ROLLBACK")
        store._writer.run(calls[2:])
        assert calls[2].outcome() is None


@pytest.mark.parametrize("taken", [0, 3, 5])
def test_what_is_refused_together_takes_no_record_along_whose_key_is_a_greater_number(path: Path, taken: int) -> None:
    kept = [Step(taken, "kept"), Step(100, "kept"), Step(101, "kept")]
    with closing(SqliteStore(path, (Record(Step, "steps", key=("number",)),))) as store:
        store.transact(lambda tx: tx.add_all(kept))

        def refused(tx: Tx) -> None:
            with pytest.raises(RecordConflict):
                tx.add_all([Step(number, "new") for number in range(6)])

        store.transact(refused)
        found = store.read(lambda snapshot: [get_or_none(snapshot, Step, number) for number in (*range(6), 100, 101)])
    assert [one for one in found if one is not None] == kept
