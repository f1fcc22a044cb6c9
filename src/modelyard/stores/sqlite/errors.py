"""From SQLite's errors to the store's. The classes are those of the module that sqlite-utils itself uses."""

import errno
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlite_utils.utils import sqlite3  # type: ignore[attr-defined]  # which may be pysqlite3

from modelyard.errors import StorageFull, StoreBusy, StoreCorrupt, StoreError

SqliteError = sqlite3.Error
"""What every call of SQLite may raise."""

_BUSY, _LOCKED, _IOERR, _CORRUPT, _FULL, _PROTOCOL, _NOTADB = 5, 6, 10, 11, 13, 15, 26
_NO_ROOM = {_IOERR | detail << 8 for detail in (3, 6, 18, 19)}
"""I/O errors while writing, truncating or extending a file: what a disk or a file-size limit without room answers."""

_NO_ROOM_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

_FAULTS: Mapping[int, type[StoreError]] = {
    _BUSY: StoreBusy,
    _LOCKED: StoreBusy,
    _PROTOCOL: StoreBusy,
    _FULL: StorageFull,
    _CORRUPT: StoreCorrupt,
    _NOTADB: StoreCorrupt,
}


def fault_of(error: Exception) -> StoreError:
    """A fresh store error that says what this SQLite error means, with it as the cause."""
    code = _code(error)
    kind = StorageFull if code in _NO_ROOM else _FAULTS.get(code & 0xFF, StoreError)
    fault = kind(str(error))
    fault.__cause__ = error
    return fault


def is_busy(error: Exception) -> bool:
    """Whether another connection was in the way, so that trying again may help."""
    return _code(error) & 0xFF in (_BUSY, _LOCKED, _PROTOCOL)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise what SQLite and the file system raise as store errors."""
    try:
        yield
    except SqliteError as error:
        raise fault_of(error) from error
    except OSError as error:
        kind = StorageFull if error.errno in _NO_ROOM_ERRNO else StoreError
        raise kind(str(error)) from error


def _code(error: Exception) -> int:
    """SQLite's extended result code; 0 for a misuse that the module itself found."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code
