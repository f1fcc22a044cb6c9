"""A store in one SQLite file."""

import os
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Literal, TypeVar, cast

from modelyard import process_identity
from modelyard.clock import SystemClock
from modelyard.domain.record import Record
from modelyard.errors import StoreBusy, StoreClosed, StoreError, UsedAfterFork
from modelyard.protocols import Clock, Snapshot, Store, Subscription, Tx
from modelyard.stores.group_commit import GroupCommit
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.sqlite.appearance import SETTINGS_VERSION
from modelyard.stores.sqlite.connection import SQLITE_VERSION, Readers, back_up, connect, create_file, fetch_value
from modelyard.stores.sqlite.errors import SqliteError, naming, store_errors
from modelyard.stores.sqlite.fair_lock import FairLock
from modelyard.stores.sqlite.migrations import MIGRATIONS, Migration
from modelyard.stores.sqlite.notices import NoticeBoard
from modelyard.stores.sqlite.rows import StatementPlan, plans_of
from modelyard.stores.sqlite.schema import (
    Change,
    all_changes,
    migrate,
    other_tables,
    refuse_unfit,
    set_version,
    up_to_date,
    verify,
)
from modelyard.stores.sqlite.tx import SqliteTx
from modelyard.stores.sqlite.writer import Writer
from modelyard.stores.table_changes import SchemaChange

T = TypeVar("T")

_REMEMBERED = 0.9
"""Seconds for which the version of settings is remembered where no notice comes: another process may have died before
it could post one."""
_LOG_PATIENCE = 0.5
"""Seconds for which a sync that empties the log waits for others."""
_STRICT_TABLES = (3, 37, 0)
_WAL_RESET_FIXED = (3, 51, 3)


class SqliteStore:
    """A store in one file that any SQLite tool can read, and that several processes may share.

    `durability` is what an acknowledged record survives: "power" (the default) or only the death of the "process".
    `patience` is how many seconds a call waits for another process before it raises `StoreBusy`. `clock` is where
    `Snapshot.time` comes from. Opening creates a
    missing file, migrates an older one, and raises `StoreCorrupt` or `StoreTooNew` for a foreign, truncated or newer
    one, which it leaves unchanged. A damaged page is found when it is read, and by `verify`. `changes` are those of the
    tables of `records` since the first version; `migrations` are changes of files that this store alone has.

        with contextlib.closing(SqliteStore("yard.db", RECORDS)) as store:
            store.transact(lambda tx: tx.add(model))
    """

    blocking = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        records: Sequence[Record],
        durability: Literal["power", "process"] = "power",
        *,
        patience: float = 10.0,
        clock: Clock | None = None,
        changes: Sequence[SchemaChange] = CHANGES,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f'durability must be "power" or "process", not {durability!r}')
        if SQLITE_VERSION < _STRICT_TABLES:
            needed = _dotted(_STRICT_TABLES)
            raise StoreError(f"SQLite {_dotted(SQLITE_VERSION)} has no strict tables; {needed} or newer is needed")
        self.durability = durability
        self.path: str = os.path.realpath(path)
        self._patience = patience
        self._clock = clock or SystemClock()
        self._forks = process_identity.forks
        self._settings: tuple[bytes | None, int, float] = (None, 0, 0.0)
        wanted = all_changes(changes, migrations)
        self._touch_sql = set_version(wanted)
        self._closing = threading.Lock()
        with naming(self.path), ExitStack() as opened:
            self._plans = plans_of(records)
            self._open(opened, self._plans, wanted)
            self._opened = opened.pop_all()

    def _open(self, opened: ExitStack, plans: Mapping[type, StatementPlan], changes: Sequence[Change]) -> None:
        _inspect(self.path, changes, self._patience)
        create_file(self.path)
        turn = f"{self.path}-turn"
        fair_lock = opened.enter_context(closing(FairLock(turn, self._patience)))
        self._board = board = opened.enter_context(closing(NoticeBoard(turn)))
        connection = opened.enter_context(closing(connect(self.path, "rw", busy_seconds=0)))
        fair_lock.enter(lambda: _write_ahead(connection))
        _migrate(connection, fair_lock, plans, changes)
        self._writer = Writer(connection, plans, self._clock, fair_lock, self.durability == "power", board.post)
        run, run_one = self._writer.run, self._writer.run_one
        self._group = GroupCommit(run, run_one, at_once=(partial(run, wait=False), partial(run_one, wait=False)))
        opened.callback(self._group.end_thread)
        self._readers = opened.enter_context(closing(Readers(self.path, plans, self._clock, self._patience)))
        self._watchers = opened.enter_context(closing(Readers(self.path, plans, self._clock, busy_seconds=0)))

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` in a transaction that it may share with the steps of other callers."""
        if process_identity.forks != self._forks:
            raise _used_after_fork()
        return self._group.transact(step, durable)

    def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> Coroutine[Any, Any, T]:
        """Run `step` as `transact` does, for a task. A thread of the store leads if no caller does. A step that has to
        wait for no disk, no other call and no other process runs at once."""
        if process_identity.forks != self._forks:
            raise _used_after_fork()
        return self._group.atransact(step, durable and self.durability == "power")

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` concurrently with the writer: it sees no unfinished step and delays none."""
        self._refuse_misuse()
        return self._readers.read(query)

    def settings_version(self) -> int | None:
        """Return how often a setting was changed, by any process; None where the file would have to be waited for.

        It reads one row that is in memory, which may be done on an event loop: after a notice that a setting has
        changed, and once a second for one that was lost.
        """
        mark, now = self._board.settings_mark(), time.monotonic()
        known, version, until = self._settings
        if now < until and mark == known and mark is not None:
            return version
        self._refuse_misuse()
        try:
            version = self._watchers.first_row(SETTINGS_VERSION)[0] or 0
        except SqliteError:
            return None
        self._settings = mark, version, now + _REMEMBERED
        return version

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        """Have `wake` called after each commit of a step that notifies the topic.

        A commit of another process is noticed within some hundredths of a second.
        """
        self._refuse_misuse()
        return self._board.subscribe(topic, wake)

    def check(self) -> Mapping[str, object]:
        """Write a page; return engine, version, durability, journal mode, and a warning if this version of SQLite has a
        known fault."""
        self._refuse_misuse()
        with suppress(StoreBusy), store_errors(), closing(connect(self.path, "rw", busy_seconds=0)) as connection:
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(self._touch_sql)  # busy: whoever writes shows that it can be written
        return {
            "engine": "sqlite",
            "version": _dotted(SQLITE_VERSION),
            "durability": self.durability,
            "journal": self._readers.value("PRAGMA journal_mode"),
            "warning": _warning(),
        }

    def sync(self) -> None:
        """Bring to the disk what steps that were not durable have written, and take removed texts out of the log."""
        self.transact(self._touch)
        if self._writer.recent.removed_texts:
            self._truncate_log()

    def _truncate_log(self) -> None:
        """Empty the log, unless another process is in the way: the next sync tries again."""
        self._writer.recent.removed_texts = False
        with naming(self.path), closing(connect(self.path, "rw", _LOG_PATIENCE)) as connection:
            if fetch_value(connection, "PRAGMA wal_checkpoint(TRUNCATE)"):
                self._writer.recent.removed_texts = True

    def other_tables(self) -> Sequence[str]:
        """Return the names of tables with records that are not declared, such as those of a part that is not open."""
        self._refuse_misuse()
        with naming(self.path), closing(connect(self.path, "ro", self._patience)) as connection:
            return other_tables(connection, self._plans.values())

    def verify(self) -> None:
        """Read the whole file. Raises `StoreCorrupt` if a page is damaged, or an index has not what its table has."""
        self._refuse_misuse()
        with naming(self.path), closing(connect(self.path, "ro", self._patience)) as connection:
            verify(connection)

    def backup(self, path: str) -> None:
        """Copy the file in its current state. Raises `FileExistsError` or `StoreError`."""
        self._refuse_misuse()
        back_up(self.path, path, self._patience)

    def close(self) -> None:
        """Finish the waiting calls, sync and close the file. In a forked child, leave the parent's file open.

        Raises `StoreError`, with the file closed, if something could not be brought to the disk.
        """
        if process_identity.forks != self._forks:
            return
        self._group.refuse_steps()
        with self._closing, self._opened, suppress(StoreClosed):  # it may be closed already
            self._bring_to_disk()

    def _bring_to_disk(self) -> None:
        try:
            self._group.transact(self._touch, durable=True, last=True)
        except StoreError:
            if self._writer.unsynced:
                raise

    def _touch(self, tx: Tx) -> None:
        """Write a page if something waits for a sync: a commit without a write is not synced."""
        if self._writer.unsynced:
            cast(SqliteTx, tx).touch(self._touch_sql)

    def _refuse_misuse(self) -> None:
        if process_identity.forks != self._forks:
            raise _used_after_fork()
        self._readers.refuse_closed()
        self._group.refuse_steps()


def _used_after_fork() -> UsedAfterFork:
    return UsedAfterFork("this store was opened before a fork; open it again in the child")


def _inspect(path: str, changes: Sequence[Change], patience: float) -> None:
    """Refuse an unfit file without changing it.

    A connection that may write copies a log left by a crash into the file when it closes, so it must not be used if
    there is one. Otherwise it changes nothing, and removes the empty log that it created.
    """
    if _size(path) > 0:
        with closing(connect(path, "ro" if _size(f"{path}-wal") > 0 else "rw", patience)) as connection:
            refuse_unfit(connection, changes)


def _size(path: str) -> int:
    return os.path.getsize(path) if os.path.exists(path) else 0


def _write_ahead(connection: Any) -> None:
    mode = fetch_value(connection, "PRAGMA journal_mode=WAL")
    if mode != "wal":
        raise StoreError(f"the file system allows no write-ahead log (journal mode {mode}); use a local disk")


def _migrate(
    connection: Any, fair_lock: FairLock, plans: Mapping[type, StatementPlan], changes: Sequence[Change]
) -> None:
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA secure_delete=ON")  # many builds have it by default: what is removed is overwritten
    connection.execute("PRAGMA fullfsync=ON")  # on macOS; elsewhere it means nothing
    connection.execute("PRAGMA checkpoint_fullfsync=ON")
    if fair_lock.enter(lambda: up_to_date(connection, plans.values(), changes)):
        return  # without the write lock, which a frozen process may hold
    fair_lock.enter(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        migrate(connection, plans.values(), changes)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _warning() -> str | None:
    if SQLITE_VERSION >= _WAL_RESET_FIXED:
        return None
    return (
        f"SQLite {_dotted(SQLITE_VERSION)} can corrupt a file in a rare race of a checkpoint with a commit, fixed in "
        f"{_dotted(_WAL_RESET_FIXED)}; installing pysqlite3 brings a newer one"
    )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


_conforms: type[Store] = SqliteStore
