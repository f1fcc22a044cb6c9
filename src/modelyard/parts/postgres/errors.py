"""Mapping of PostgreSQL's errors to the store's. No message repeats an address or a password."""

import psycopg
from psycopg import errors as pg

from modelyard.errors import StorageFull, StoreBusy, StoreCorrupt, StoreError

TRANSIENT = (pg.SerializationFailure, pg.DeadlockDetected, pg.InvalidSqlStatementName)
"""Errors after which the same steps may succeed."""

_BUSY = (
    *TRANSIENT,
    pg.LockNotAvailable,
    pg.QueryCanceled,
    pg.TooManyConnections,
    pg.CannotConnectNow,
    pg.ObjectInUse,
    pg.ReadOnlySqlTransaction,  # a standby, until it is promoted or the address leads elsewhere
)
_FULL = (pg.DiskFull, pg.OutOfMemory)
_CORRUPT = (pg.DataCorrupted, pg.IndexCorrupted, pg.UndefinedTable, pg.UndefinedColumn)
_TOO_LONG = "has a key or an index entry of more than PostgreSQL can hold (2,704 bytes): shorten its strings"

_AWAY = "cannot be reached", "is the server running, and the address right?"
_CROWDED = "has no connection left", "try again later, open fewer processes, or raise its max_connections"
_COMING = "is starting or stopping", "try again"
_STATES = {
    "too many clients": _CROWDED,
    "too many connections": _CROWDED,
    "connection slots are reserved": _CROWDED,
    "not yet accepting connections": _COMING,
    "starting up": _COMING,
    "shutting down": _COMING,
    "recovery mode": _COMING,
}
"""What a server that refuses a connection says of its state: libpq hands on its words, and no code."""


def is_loss(error: psycopg.Error) -> bool:
    """Return whether this error says that the connection has ended, whether or not the connection shows it yet."""
    lost = error.sqlstate is None or error.sqlstate.startswith(("57P", "08"))
    return isinstance(error, psycopg.OperationalError) and lost


def to_store_error(error: psycopg.Error) -> Exception:
    """Return a new error of the store for this error of the server or of the connection, which is its cause."""
    message = _first_line(error)
    made: Exception
    if isinstance(error, pg.ProgramLimitExceeded):
        made = ValueError(f"a record {_TOO_LONG}")
    elif isinstance(error, pg.InsufficientPrivilege):
        made = StoreError(f"PostgreSQL says {message!r}; grant it to the user of the address, or make that its owner")
    elif isinstance(error, _FULL):
        made = StorageFull(message)
    elif isinstance(error, _CORRUPT):
        made = StoreCorrupt(message)
    elif isinstance(error, _BUSY) or is_loss(error):
        made = StoreBusy(f"{message}; try again")
    else:
        made = StoreError(message)
    made.__cause__ = error
    return made


def connection_error(error: psycopg.Error) -> StoreError:
    """Return the store's error for a connection that could not be opened, which says what to do."""
    message = _first_line(error)
    if isinstance(error, pg.InvalidPassword | pg.InvalidAuthorizationSpecification) or "password" in message:
        made = StoreError(
            "PostgreSQL refused the user or the password of the address; check them, or the file ~/.pgpass"
        )
    elif isinstance(error, pg.InvalidCatalogName) or "does not exist" in message:
        made = StoreError(f"PostgreSQL refused the connection: {message}; create it first, for example with createdb")
    else:
        state, advice = next((words for known, words in _STATES.items() if known in message), _AWAY)
        made = StoreBusy(f"PostgreSQL {state}: {message}; {advice}")
    return made


def _first_line(error: psycopg.Error) -> str:
    primary = error.diag.message_primary
    return primary or str(error).strip().split("\n")[0]
