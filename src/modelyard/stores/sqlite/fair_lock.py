"""Fair write transactions between processes that share one file.

SQLite's own waiting starves: a process that commits takes the lock again before a sleeping one wakes. Here a process
that waits to begin holds a lock file meanwhile, and says so in a byte of it. No process begins while that byte is set
without having held the lock, so none wins twice past a waiter. The byte of one that was killed is cleared by the next.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from modelyard.disk import lock, mapped, unlock
from modelyard.errors import StoreBusy
from modelyard.stores.sqlite.errors import SqliteError, is_busy
from modelyard.stores.sqlite.notices import BOARD_SIZE

T = TypeVar("T")

_POLL_SECONDS = (0.0002, 0.001)
_TOLERANCE = 1.0
"""Seconds after which a process goes ahead without the lock file, which a frozen process may hold."""
_WAITING = BOARD_SIZE
"""The place of the byte, after the board of notices."""


class FairLock:
    """A lock file next to a database. `patience` is how many seconds a caller waits before it gives up.

    On a system without locks of files or memory that shows them, callers only poll.
    """

    def __init__(self, path: str, patience: float) -> None:
        self._patience = patience
        self._tolerance = min(_TOLERANCE, patience / 4)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._map = mapped(self._file, _WAITING + 1)
        self._shown = self._map or bytes(_WAITING + 1)

    def enter(self, begin: Callable[[], T], since: float | None = None) -> T:
        """Call `begin` until SQLite is not busy; return its result.

        Raises `StoreBusy` after `patience` seconds, which began at `since` on the monotonic clock, or now.
        """
        held = self._take_turn()
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
                held = held or self._take_turn()
        finally:
            if held:
                self._show(waiting=False)
                unlock(self._file)

    def enter_at_once(self, begin: Callable[[], object]) -> bool:
        """Call `begin` if no other process waits. Returns whether it was called with success."""
        if self._shown[_WAITING]:
            return False
        try:
            begin()
        except SqliteError as error:
            if not is_busy(error):
                raise
            return False
        return True

    def left(self, since: float, now: float) -> float:
        """Return the seconds of patience that a caller who has waited `since` then still has."""
        return max(0.0, self._patience - (now - since))

    def close(self) -> None:
        if self._map is not None:
            self._map.close()
        os.close(self._file)

    def _take_turn(self) -> bool:
        """Hold the lock file, if no other process does, and show that."""
        held = lock(self._file)
        if held:
            self._show(waiting=True)
        return held

    def _show(self, waiting: bool) -> None:
        if self._map is not None:
            with suppress(OSError):  # without it, SQLite's own waiting decides
                os.pwrite(self._file, bytes([waiting]), _WAITING)
