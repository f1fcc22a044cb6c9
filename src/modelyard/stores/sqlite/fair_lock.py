"""Fair write transactions between processes that share one file.

SQLite's own waiting starves: a process that commits takes the lock again before a sleeping one wakes. Here a process
that waits to begin holds a lock file meanwhile, and no process begins without having held it, so none wins twice past a
waiter.
"""

import os
import random
import time
from collections.abc import Callable
from typing import TypeVar

from modelyard.errors import StoreBusy
from modelyard.stores.sqlite.errors import SqliteError, is_busy

try:
    import fcntl

    _FLOCK = True
except ModuleNotFoundError:  # this system has polling only
    _FLOCK = False

T = TypeVar("T")

_POLL_SECONDS = (0.0002, 0.001)
_TOLERANCE = 1.0
"""Seconds after which a process goes ahead without the lock file, which a frozen process may hold."""


class FairLock:
    """A lock file next to a database. `patience` is how many seconds a caller waits before it gives up."""

    def __init__(self, path: str, patience: float) -> None:
        self._patience = patience
        self._tolerance = min(_TOLERANCE, patience / 4)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def enter(self, begin: Callable[[], T]) -> T:
        """Call `begin` until SQLite is not busy; return its result. Raises `StoreBusy` after `patience` seconds."""
        held = self._lock()
        start, waited = time.monotonic(), 0.0
        try:
            while True:
                if held or waited > self._tolerance:
                    try:
                        return begin()
                    except SqliteError as error:
                        if not is_busy(error):
                            raise
                if waited > self._patience:
                    raise StoreBusy(f"another process held the database for {self._patience} seconds; try again")
                time.sleep(random.uniform(*_POLL_SECONDS))  # noqa: S311 - jitter, not a secret
                waited = time.monotonic() - start
                held = held or self._lock()
        finally:
            self._unlock()

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._file)

    def _lock(self) -> bool:
        if not _FLOCK:
            return True
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _unlock(self) -> None:
        if _FLOCK:
            fcntl.flock(self._file, fcntl.LOCK_UN)
