"""Mapping of SQLite's errors to the store's.

The error classes are those of the module that sqlite-utils itself uses.
"""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlite_utils.utils import sqlite3  # type: ignore[attr-defined]  # which may be pysqlite3

from modelyard.errors import StorageFull, StoreBusy, StoreCorrupt, StoreError

SqliteError = sqlite3.Error
"""The error that any call of SQLite may raise."""

_BUSY, _LOCKED, _IOERR, _CORRUPT, _FULL, _PROTOCOL, _NOTADB = 5, 6, 10, 11, 13, 15, 26
_NO_ROOM = {_IOERR | detail << 8 for detail in (3, 6, 18, 19)}
"""I/O errors while writing, truncating or extending a file: the disk is full or a file-size limit is reached."""

_NO_ROOM_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_ERRORS: Mapping[int, type[StoreError]] = {
    _BUSY: StoreBusy,
    _LOCKED: StoreBusy,
    _PROTOCOL: StoreBusy,
    _FULL: StorageFull,
    _CORRUPT: StoreCorrupt,
    _NOTADB: StoreCorrupt,
}


def to_store_error(error: Exception) -> StoreError:
    """Return a new store error for this SQLite error, which is its cause."""
    code = _code(error)
    kind = StorageFull if code in _NO_ROOM else _ERRORS.get(code & 0xFF, StoreError)
    store_error = kind(str(error))
    store_error.__cause__ = error
    return store_error


def is_busy(error: Exception) -> bool:
    """Return whether another connection was in the way, so that a retry may help."""
    return _code(error) & 0xFF in (_BUSY, _LOCKED, _PROTOCOL)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise the errors of SQLite and of the file system as store errors."""
    try:
        yield
    except SqliteError as error:
        raise to_store_error(error) from error
    except OSError as error:
        kind = StorageFull if error.errno in _NO_ROOM_ERRNO else StoreError
        raise kind(str(error)) from error


def _code(error: Exception) -> int:
    """Return SQLite's extended result code; 0 for a misuse that the Python module detected."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code
