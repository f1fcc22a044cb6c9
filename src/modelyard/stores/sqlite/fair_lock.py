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

from modelyard.disk import lock, unlock
from modelyard.errors import StoreBusy
from modelyard.stores.sqlite.errors import SqliteError, is_busy

T = TypeVar("T")

_POLL_SECONDS = (0.0002, 0.001)
_TOLERANCE = 1.0
"""Seconds after which a process goes ahead without the lock file, which a frozen process may hold."""


class FairLock:
    """A lock file next to a database. `patience` is how many seconds a caller waits before it gives up.

    On a system without locks of files, callers only poll.
    """

    def __init__(self, path: str, patience: float) -> None:
        self._patience = patience
        self._tolerance = min(_TOLERANCE, patience / 4)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def enter(self, begin: Callable[[], T], since: float | None = None) -> T:
        """Call `begin` until SQLite is not busy; return its result.

        Raises `StoreBusy` after `patience` seconds, which began at `since` on the monotonic clock, or now.
        """
        held = lock(self._file)
        start, waited = time.monotonic(), 0.0
        patience = self.left(start if since is None else since, start)
        try:
            while True:
                if held or waited > self._tolerance:
                    try:
                        return begin()
                    except SqliteError as error:
                        if not is_busy(error):
                            raise
                if waited > patience:
                    raise StoreBusy(f"another process held the database for {self._patience} seconds; try again")
                time.sleep(random.uniform(*_POLL_SECONDS))  # noqa: S311 - jitter, not a secret
                waited = time.monotonic() - start
                held = held or lock(self._file)
        finally:
            unlock(self._file)

    def enter_at_once(self, begin: Callable[[], object]) -> bool:
        """Call `begin` if no other process is in the way. Returns whether it was called with success."""
        if not lock(self._file):
            return False
        try:
            begin()
        except SqliteError as error:
            if not is_busy(error):
                raise
            return False
        finally:
            unlock(self._file)
        return True

    def left(self, since: float, now: float) -> float:
        """Return the seconds of patience that a caller who has waited `since` then still has."""
        return max(0.0, self._patience - (now - since))

    def close(self) -> None:
        """Close the lock file."""
        os.close(self._file)
