"""Connections to the server, all with the same settings, and the pool of those that read."""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, TypeVar

import psycopg
from psycopg.raw_cursor import RawCursor

from modelyard.errors import StoreBusy, StoreClosed, StoreError
from modelyard.parts.postgres.errors import TRANSIENT, connection_error, is_loss, to_store_error
from modelyard.parts.postgres.pages import Row, Statement
from modelyard.parts.postgres.round_trips_fast import PipelinedConnection
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.parts.postgres.tx import PostgresSnapshot
from modelyard.parts.postgres.values import adapt
from modelyard.parts.postgres.wire import Abandoned, Wire
from modelyard.protocols import Snapshot

T = TypeVar("T")

OLDEST = 150000
"""The oldest version of the server that is tested, as the server reports it."""

NOW = "SELECT extract(epoch FROM clock_timestamp())::float8"

_SETTINGS = (
    "SELECT set_config('lock_timeout', $1, $3), set_config('jit', 'off', $3),"
    " set_config('idle_in_transaction_session_timeout', $2, $3)"
)
_BEGIN_TO_WRITE = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""Each statement sees all that was committed before the lock was granted. A stricter level would have looked before."""
_PAUSE = 0.05
"""Seconds between two attempts to reach the server."""
_BEGIN = [("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", ())]

logging.getLogger("psycopg.pipeline").addHandler(logging.NullHandler())


def _fault_of(address: str, error: psycopg.Error) -> str:
    """Return what is wrong with an address: the name of an option, unless it may be a part of a password."""
    option = re.search(r'invalid (?:URI query parameter|connection option)[: ]*"(\w+)"', str(error))
    option = None if "@" in address.partition("?")[2] else option
    return "is malformed" if option is None else f"has the unknown option {option[1]!r}; leave it out, or correct it"


class Connector:
    """Opens connections to one address. `patience` is how many seconds a statement may wait for a lock."""

    def __init__(self, address: str, patience: float) -> None:
        self._address, self._patience, self._until = address, patience, inf

    def hurry(self, seconds: float) -> None:
        """Wait for a server that cannot be reached for so many seconds from now at most."""
        self._until = time.monotonic() + seconds

    def is_over(self, deadline: float) -> bool:
        """Return whether it is too late to try again, for a call that may wait until `deadline`."""
        return time.monotonic() > min(deadline, self._until)

    def connect(self, deadline: float = 0.0) -> Any:
        """Open a connection without implicit transactions. Raises `StoreBusy` or `StoreError`.

        Until `deadline`, on the monotonic clock, it tries again while the server cannot be reached, as in a failover.
        """
        while True:
            try:
                return self._connect()
            except StoreBusy:
                if self.is_over(deadline):
                    raise
                time.sleep(_PAUSE)

    def patiently(self, ask: Callable[[Any], T], again: bool) -> T:
        """Run `ask` on a connection of its own, `again` on another one if it is lost. Raises `StoreError`.

        It waits for the server as long as a statement waits for a lock.
        """
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self.connect(deadline) as connection:
                    return ask(connection)
            except psycopg.Error as error:
                if not again or not is_loss(error) or time.monotonic() > deadline:
                    raise to_store_error(error) from error

    def begin(self, connection: Any) -> list[Statement]:
        """Return the statements that begin a transaction which writes on such a connection."""
        settings = () if connection.prepare_threshold is not None else (self._settings(local=True),)
        return [(_BEGIN_TO_WRITE, ()), *settings]

    def _settings(self, local: bool) -> Statement:
        milliseconds = max(1, int(self._patience * 1000))
        return _SETTINGS, (str(milliseconds), str(milliseconds + 1000), local)

    def _set_up(self, connection: Any) -> None:
        if is_pooled(connection):  # neither a setting nor a prepared statement stays with it
            connection.prepare_threshold = None
        else:
            connection.execute(*self._settings(local=False))

    def _connect(self) -> Any:
        try:
            connection = PipelinedConnection.connect(
                self._address,
                autocommit=True,
                cursor_factory=RawCursor,
                connect_timeout=max(2, int(min(self._patience, self._until - time.monotonic()))),
                fallback_application_name="modelyard",
            )
        except psycopg.OperationalError as error:
            raise connection_error(error) from None  # its message may repeat the address
        except psycopg.ProgrammingError as error:
            raise StoreError(
                f"the address of the store {_fault_of(self._address, error)}: postgresql://user@host/database"
            ) from None
        if connection.info.server_version < OLDEST:
            version = connection.info.server_version // 10000
            connection.close()
            raise StoreError(f"PostgreSQL {version} is too old; {OLDEST // 10000} or newer is needed")
        adapt(connection.adapters)
        try:
            self._set_up(connection)
        except psycopg.Error as error:
            connection.close()
            raise connection_error(error) from None
        return connection


def is_pooled(connection: Any) -> bool:
    """Return whether a pooler answers for the server, which may use another connection for each transaction.

    It makes up a process number. Raises `psycopg.Error`.
    """
    number: int = connection.execute("SELECT pg_backend_pid()").fetchone()[0]
    return bool(number != connection.info.backend_pid)


class ReadPool:
    """A pool of at most `most` connections, one for each read that runs at the same time."""

    def __init__(self, connector: Connector, plans: Mapping[type, RecordPlan], most: int, patience: float) -> None:
        self._connector, self._plans, self._patience = connector, plans, patience
        self._free = threading.BoundedSemaphore(most)
        self._most = most
        self._idle: list[Any] = []
        self._closed = False
        self._of_several: set[Any] = set()

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on one snapshot. Raises `StoreError`.

        A query of one statement needs no transaction. It begins as if it were one, and begins again in a transaction
        if it is not; the next query of the same code does so at once.
        """
        code = getattr(getattr(query, "func", query), "__code__", None)

        def run(connection: Any) -> T:
            try:
                return self._run(connection, query, code in self._of_several)
            except _SecondStatement:
                self._of_several.add(code)
            return self._run(connection, query, several=True)

        return self._patiently(run)

    def rows(self, sql: str, values: Row = ()) -> list[Row]:
        """Return the rows of a statement of the store's own. Raises `StoreError`."""
        return self._patiently(lambda connection: connection.execute(sql, values or None).fetchall())

    def close(self) -> None:
        """Close the idle connections now, and the others when their read ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    def _patiently(self, ask: Callable[[Any], T]) -> T:
        """Ask on a connection that is free, and again on another one if it is lost. Raises `StoreError`."""
        deadline = time.monotonic() + self._patience
        while True:
            with self._borrowed(deadline) as connection:
                try:
                    return ask(connection)
                except psycopg.Error as error:
                    if not (is_loss(error) or isinstance(error, TRANSIENT)) or time.monotonic() > deadline:
                        raise to_store_error(error) from error
                    connection.close()

    def _run(self, connection: Any, query: Callable[[Snapshot], T], several: bool) -> T:
        asker = _InTransaction(connection) if several else _Alone(connection)
        snapshot = PostgresSnapshot(self._plans, asker.rows, asker.now)
        try:
            result = query(snapshot)
        except Abandoned:
            raise asker.fault from None  # type: ignore[misc]  # it is what broke the transaction
        finally:
            snapshot.end()
            fault = asker.fault
            asker.end()
        if fault is not None:
            raise fault
        return result

    def refuse_closed(self) -> None:
        """Raise `StoreClosed` once they were closed."""
        if self._closed:
            raise StoreClosed("the store was closed")

    @contextmanager
    def _borrowed(self, deadline: float) -> Any:
        self.refuse_closed()
        if not self._free.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise StoreBusy(
                f"all {self._most} connections that read were in use for {self._patience} seconds; try again"
            )
        connection = None
        try:
            connection = self._take() or self._connector.connect(deadline)
            yield connection
        finally:
            if connection is not None:
                self._give_back(connection)
            self._free.release()

    def _take(self) -> Any:
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _give_back(self, connection: Any) -> None:
        if connection.closed or connection.info.transaction_status:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:
            self.close()


class _SecondStatement(BaseException):
    """Ends a query that asks for more than one statement, so that it begins again. Not an `Exception`."""


class _Alone:
    """Answers one statement, without a transaction."""

    def __init__(self, connection: Any) -> None:
        self._connection, self._asked = connection, False
        self.fault: psycopg.Error | None = None

    def rows(self, plan: RecordPlan | None, sql: str, values: Row) -> list[Row]:
        if self._asked:
            raise _SecondStatement
        self._asked = True
        try:
            found: list[Row] = self._connection.rows_of(*self._connection.round_trip([(sql, values)]))
        except psycopg.Error as error:
            self.fault = error
            raise Abandoned from error
        return found

    def now(self) -> float:
        time: float = self.rows(None, NOW, ())[0][0]
        return time

    def end(self) -> None:
        """Do nothing: nothing was begun."""


class _InTransaction:
    """Answers any number of statements on one snapshot."""

    def __init__(self, connection: Any) -> None:
        self._wire = Wire(connection, _BEGIN)

    @property
    def fault(self) -> psycopg.Error | None:
        return self._wire.fault

    def rows(self, plan: RecordPlan | None, sql: str, values: Row) -> list[Row]:
        return self._wire.rows(sql, values)

    def now(self) -> float:
        time: float = self._wire.rows(NOW, ())[0][0]
        return time

    def end(self) -> None:
        """End the transaction. What it has read holds, whatever becomes of a connection that is lost with this."""
        if self._wire.begun and self._wire.fault is None:
            self._wire.later("COMMIT")
            with suppress(Abandoned):
                self._wire.send()
