"""Connections that only read, kept for the next reader."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from modelyard.errors import StoreClosed
from modelyard.protocols import Snapshot
from modelyard.stores.sqlite.connection import connect, value_of
from modelyard.stores.sqlite.faults import SqliteError, fault_of, store_errors
from modelyard.stores.sqlite.rows import Plan
from modelyard.stores.sqlite.tx import SqliteSnapshot

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
