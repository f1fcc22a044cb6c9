"""Mapping of SQLite's errors to the store's.

The error classes are those of the module that sqlite-utils itself uses. It is found here in the same way: sqlite-utils,
which loads pandas where that is installed, is for changes of a file's schema alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from modelyard.disk import NO_ROOM
from modelyard.errors import StorageFull, StoreBusy, StoreCorrupt, StoreError, StoreTooNew

try:
    import resource
except ModuleNotFoundError:  # Windows
    resource = None  # type: ignore[assignment]

try:
    sqlite3: Any = import_module("pysqlite3")
    import_module("pysqlite3.dbapi2")
except ImportError:
    sqlite3 = import_module("sqlite3")

SqliteError = sqlite3.Error
"""The error that any call of SQLite may raise."""

_BUSY, _LOCKED, _IOERR, _CORRUPT, _FULL, _PROTOCOL, _NOTADB = 5, 6, 10, 11, 13, 15, 26
_NOT_WRITTEN = {_IOERR | detail << 8 for detail in (3, 6)}
"""I/O errors while writing or truncating a file: a limit of file sizes is reached, or the disk has failed.

A full disk has a code of its own.
"""
_NO_ROOM = {_IOERR | detail << 8 for detail in (18, 19)}
"""I/O errors while extending the shared index of the log."""

_UNREADABLE = "Could not decode to UTF-8"
"""How the message of a damaged string begins."""

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
    code, message = _code(error), str(error)
    kind = _ERRORS.get(code & 0xFF, StoreError)
    if code in _NO_ROOM or (code in _NOT_WRITTEN and _size_is_limited()):
        kind = StorageFull
    elif code in _NOT_WRITTEN:
        message = f"the disk could not be written ({message}); check it, and the quota of this user"
    elif message.startswith(_UNREADABLE):
        kind, message = StoreCorrupt, "the file is damaged: a string cannot be read; restore a backup"
    if kind is StorageFull:
        message = f"no room for records on the disk ({message}); free some, then try again"
    store_error = kind(message)
    store_error.__cause__ = error
    return store_error


def _size_is_limited() -> bool:
    return resource is not None and resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY


def is_busy(error: Exception) -> bool:
    """Return whether another connection was in the way, so that a retry may help."""
    return _code(error) & 0xFF in (_BUSY, _LOCKED, _PROTOCOL)


@contextmanager
def store_errors() -> Iterator[None]:
    """Raise the errors of SQLite and of the file system, but for a name that is taken, as store errors."""
    try:
        yield
    except SqliteError as error:
        raise to_store_error(error) from error
    except UnicodeDecodeError as error:
        raise StoreCorrupt("the file is damaged: its schema cannot be read; restore a backup") from error
    except FileExistsError:
        raise
    except OSError as error:
        kind = StorageFull if error.errno in NO_ROOM else StoreError
        raise kind(str(error)) from error


@contextmanager
def naming(path: str) -> Iterator[None]:
    """Raise errors as `store_errors` does, with the name of a file that cannot be used."""
    try:
        with store_errors():
            yield
    except (StoreCorrupt, StoreTooNew) as error:
        raise type(error)(f"{path}: {error}") from error


def _code(error: Exception) -> int:
    """Return SQLite's extended result code; 0 for a misuse that the Python module detected."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code
