"""Connections to a database file, all with the same settings, and consistent copies of it."""

import os
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from modelyard.disk import move_new, sync_folder, sync_path, unfinished_next_to
from modelyard.errors import StoreClosed
from modelyard.protocols import Clock, Snapshot
from modelyard.stores.sqlite.errors import SqliteError, sqlite3, store_errors, to_store_error
from modelyard.stores.sqlite.rows import StatementPlan
from modelyard.stores.sqlite.totals_fast import add_exact_sums
from modelyard.stores.sqlite.tx import SqliteSnapshot

T = TypeVar("T")

SQLITE_VERSION: tuple[int, ...] = sqlite3.sqlite_version_info

for _kind, _as_bound in ((type(None), {}.get), (bool, int)):  # without: 2,100 to 3,200 instructions a value
    sqlite3.adapters.setdefault((_kind, sqlite3.PrepareProtocol), _as_bound)

_STATEMENTS = 256
"""Prepared statements that a connection caches: more than a platform has."""


def connect(path: str, mode: str, busy_seconds: float) -> Any:
    """Open a connection without implicit transactions; threads may use it, one at a time.

    `mode` is "rw", or "ro" for a connection that does not even change the log next to the file, or "ro&immutable=1" for
    one that reads the file alone, which nobody writes. None creates a file.
    """
    connection = sqlite3.connect(
        f"{Path(path).as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )
    add_exact_sums(connection)
    return connection


def fetch_value(connection: Any, sql: str) -> Any:
    """Return the first value in the result of a statement."""
    return connection.execute(sql).fetchone()[0]


def create_file(path: str) -> None:
    """Create an empty file that only its owner may read, and sync its folder; leave an existing file unchanged.

    An existing database is never opened outside SQLite: closing it would drop the locks that this process holds on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    sync_folder(os.path.dirname(path))


def back_up(source: str, target: str, busy_seconds: float) -> None:
    """Copy the database `source` to `target`, compacted; it is on the disk when this returns.

    The copy gets its name once it is complete. Raises `FileExistsError` or `StoreError`.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists; a backup never replaces a file")
    with store_errors(), unfinished_next_to(target) as folder:
        copy = os.path.join(folder, os.path.basename(target))
        create_file(copy)
        with closing(connect(source, "ro", busy_seconds)) as connection:
            connection.execute("VACUUM INTO ?", (copy,))
        sync_path(copy)
        move_new(copy, target)


_MAX_IDLE = 16


class Readers:
    """A pool of read connections, one for each read that runs at the same time."""

    def __init__(
        self, path: str, plans: Mapping[type, StatementPlan], clock: Clock, busy_seconds: float, mode: str = "rw"
    ) -> None:
        self._path, self._mode = path, mode
        self._plans = plans
        self._clock = clock
        self._busy_seconds = busy_seconds
        self._idle: list[Any] = []
        self._closed = False

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on one snapshot. Raises `StoreError`."""
        try:
            cursor = self._borrow()
            try:
                cursor.execute("BEGIN")
                snapshot = SqliteSnapshot(cursor.execute, self._plans, self._clock)
                try:
                    result = query(snapshot)
                finally:
                    snapshot.end()
                    cursor.execute("ROLLBACK")
            finally:
                self._give_back(cursor)
            if snapshot.error is not None:
                raise snapshot.error
        except SqliteError as error:
            raise to_store_error(error) from error
        return result

    def value(self, sql: str) -> Any:
        """Return the first value in the result of a statement. Raises `StoreError`."""
        with store_errors():
            return self.first_row(sql)[0]

    def first_row(self, sql: str) -> Any:
        """Return the first row in the result of a statement. Raises `SqliteError`, `StoreClosed`."""
        cursor = self._borrow()
        try:
            return cursor.execute(sql).fetchone()
        finally:
            self._give_back(cursor)

    def close(self) -> None:
        """Close the idle connections now, and the others when their read ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().connection.close()

    def refuse_closed(self) -> None:
        if self._closed:
            raise StoreClosed("the store was closed")

    def _borrow(self) -> Any:
        """Return the cursor of a connection that no other read uses."""
        self.refuse_closed()
        try:
            return self._idle.pop()
        except IndexError:
            cursor = connect(self._path, self._mode, self._busy_seconds).cursor()
            cursor.execute("PRAGMA query_only=ON")
            return cursor

    def _give_back(self, cursor: Any) -> None:
        if cursor.connection.in_transaction or len(self._idle) >= _MAX_IDLE:
            cursor.connection.close()
            return
        self._idle.append(cursor)
        if self._closed:
            self.close()
