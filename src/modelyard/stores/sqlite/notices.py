"""Notices between the processes that share a file: a small board next to it, which each looks at while it listens.

The board is a row of slots. A notice writes bytes that no other one has into the slot of its topic, so that others see
that it has changed. Notices are hints: two topics may share a slot, and a change between two looks may go unseen.
"""

import os
import threading
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from itertools import count

from modelyard.disk import mapped
from modelyard.stores.subscriptions import Subscribers, TopicSubscription, Wake

_SLOTS, _WIDTH = 64, 8
BOARD_SIZE = _SLOTS * _WIDTH
"""Bytes of the file that are the board."""
_LOOK = 0.03
"""Seconds between two looks at the board."""
_HAS_BOARD = hasattr(os, "pwrite")
SETTINGS = "modelyard settings"
"""The topic of commits that change a setting (`Record.settings`)."""


class NoticeBoard:
    """The board in the file at `path`. It has a thread from the first subscription on."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._subscribers = Subscribers(live=_HAS_BOARD)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()
        self._seen = b""
        self._map = mapped(self._file, BOARD_SIZE)
        self._marks = count(int.from_bytes(os.urandom(_WIDTH - 1), "big"))

    def subscribe(self, topic: str, wake: Wake) -> TopicSubscription:
        """Have `wake` called at each notice of the topic."""
        with self._lock:
            if _HAS_BOARD and self._thread is None:
                self._seen = self._board()
                self._thread = threading.Thread(target=self._watch, name="modelyard-notices", daemon=True)
                self._thread.start()
        return self._subscribers.subscribe(topic, wake)

    def post(self, topics: Collection[str]) -> None:
        """Wake who has subscribed to these topics, here at once and in other processes when they look.

        One thread at a time may call it.
        """
        self._subscribers.wake(topics)
        if not _HAS_BOARD:
            return
        try:
            for topic in topics:
                os.pwrite(self._file, next(self._marks).to_bytes(_WIDTH, "big"), _place(topic))
        except OSError:  # a hint that is lost; others poll, and so does this process from now on
            self._map = None

    def settings_mark(self) -> bytes | None:
        """Return what changes with each notice of a setting, without a call of the system; None where it is unknown."""
        try:
            return None if self._map is None else self._map[_SETTINGS_AT]
        except ValueError:  # it was closed meanwhile
            return None

    def close(self) -> None:
        """End the thread and close the file."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        if self._map is not None:
            self._map.close()
        os.close(self._file)

    def _board(self) -> bytes:
        return os.pread(self._file, BOARD_SIZE, 0).ljust(BOARD_SIZE, b"\0")

    def _watch(self) -> None:
        while not self._closed.wait(_LOOK):
            before = self._seen
            with suppress(OSError):
                self._seen = self._board()
            if before != self._seen:
                changed = {at for at in range(0, BOARD_SIZE, _WIDTH) if before[_slot(at)] != self._seen[_slot(at)]}
                self._subscribers.wake([topic for topic in self._subscribers.topics if _place(topic) in changed])


@lru_cache(maxsize=1024)
def _place(topic: str) -> int:
    """Return where the slot of a topic begins."""
    return sha256(topic.encode()).digest()[0] % _SLOTS * _WIDTH


def _slot(at: int) -> slice:
    return slice(at, at + _WIDTH)


_SETTINGS_AT = _slot(_place(SETTINGS))
