"""Connections to a database file, made alike everywhere."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from sqlite_utils.utils import sqlite3  # type: ignore[attr-defined]  # which may be pysqlite3

from modelyard.errors import StoreClosed
from modelyard.protocols import Snapshot
from modelyard.stores.sqlite.errors import SqliteError, fault_of, store_errors
from modelyard.stores.sqlite.rows import Plan
from modelyard.stores.sqlite.tx import SqliteSnapshot

SQLITE_VERSION: tuple[int, ...] = sqlite3.sqlite_version_info

_STATEMENTS = 256
"""Prepared statements that a connection keeps: more than a platform has."""


def connect(path: str, mode: str, busy_seconds: float) -> Any:
    """A connection that begins no transaction by itself and may pass between threads, one at a time.

    `mode` is "rw", or "ro" for one that changes not even the log beside the file. Neither creates a file.
    """
    return sqlite3.connect(
        f"{Path(path).as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_seconds,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=_STATEMENTS,
    )


def value_of(connection: Any, sql: str) -> Any:
    """The first value that a statement answers."""
    return connection.execute(sql).fetchone()[0]


def create_file(path: str) -> None:
    """Make an empty file that its owner alone may read, durably; leave one that exists as it is.

    An existing database is never opened outside SQLite: closing it would drop the locks that this process holds on it.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    sync_folder(os.path.dirname(path))


def sync_file(path: str) -> None:
    """Wait until the bytes of a file are on the disk."""
    _sync(path, os.O_RDWR)


def sync_folder(path: str) -> None:
    """Wait until a folder's list of names is on the disk, where folders can be opened at all."""
    if hasattr(os, "O_DIRECTORY"):
        _sync(path, os.O_DIRECTORY)


def _sync(path: str, flags: int) -> None:
    opened = os.open(path, flags)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


T = TypeVar("T")

_MAX_IDLE = 16


class Readers:
    """As many connections as reads run at once."""

    def __init__(self, path: str, plans: Mapping[type, Plan], busy_seconds: float) -> None:
        self._path = path
        self._plans = plans
        self._busy_seconds = busy_seconds
        self._idle: list[Any] = []
        self._closed = False

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on one snapshot. Raises `StoreError`."""
        try:
            connection = self._borrow()
            try:
                return self._run(connection, query)
            finally:
                self._give_back(connection)
        except SqliteError as error:
            raise fault_of(error) from error

    def value(self, sql: str) -> Any:
        """The first value that a statement answers. Raises `StoreError`."""
        with store_errors():
            connection = self._borrow()
            try:
                return value_of(connection, sql)
            finally:
                self._give_back(connection)

    def close(self) -> None:
        """Close those that are idle now, and the others when their read ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _run(self, connection: Any, query: Callable[[Snapshot], T]) -> T:
        cursor = connection.cursor()
        cursor.execute("BEGIN")
        snapshot = SqliteSnapshot(cursor.execute, self._plans)
        try:
            answer = query(snapshot)
        finally:
            snapshot.end()
            cursor.execute("ROLLBACK")
        if snapshot.fault is not None:
            raise snapshot.fault
        return answer

    def _borrow(self) -> Any:
        if self._closed:
            raise StoreClosed("the store was closed")
        try:
            return self._idle.pop()
        except IndexError:
            connection = connect(self._path, "rw", self._busy_seconds)
            connection.execute("PRAGMA query_only=ON")
            return connection

    def _give_back(self, connection: Any) -> None:
        if connection.in_transaction or len(self._idle) >= _MAX_IDLE:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:
            self.close()
