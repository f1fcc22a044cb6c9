"""Who works when nobody has a thread for it: one of those who wait leads for all, and hands over when it is done."""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress

import attrs

Wake = Callable[[], object]


@attrs.frozen(eq=False)
class Waiter:
    """Who waits while another leads: woken when it is `ready`, or when it is to lead. `on_loop` tells that it is a task
    of an event loop, which needs a free thread to lead.
    """

    ready: Callable[[], bool]
    wake: Wake
    on_loop: bool = False


class LeaderElection:
    """Only a running thread holds the lead, never one that is still to come: those who wait for it on threads of the
    same executor would keep that one from coming.

    Law: when nobody leads and somebody waits, one of them has been woken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leader: int | None = None
        self._claims: deque[tuple[threading.Event, int]] = deque()
        self._threads: dict[Hashable, Waiter] = {}
        self._tasks: dict[Hashable, Waiter] = {}

    @property
    def followed(self) -> bool:
        """Whether anybody waits for what is led to."""
        return bool(self._threads or self._tasks)

    @property
    def claimed(self) -> bool:
        """Whether somebody waits for the lead itself."""
        return bool(self._claims)

    def take(self) -> bool:
        """Take the lead if nobody has it. Returns whether it was taken."""
        with self._lock:
            if self._leader is not None:
                return False
            self._leader = threading.get_ident()
            return True

    def claim(self) -> None:
        """Wait for the lead, ahead of all who follow: it is given without being free in between."""
        given, thread = threading.Event(), threading.get_ident()
        with self._lock:
            if self._leader is None:
                self._leader = thread
                return
            self._claims.append((given, thread))
        try:
            given.wait()
        except BaseException:  # the wait was interrupted
            with self._lock, suppress(ValueError):  # it may have been given the lead in this moment
                self._claims.remove((given, thread))
            self.hand_over()
            raise

    def follow(self, key: Hashable, follower: Waiter) -> bool:
        """Wait behind whoever leads. Returns whether anybody does: otherwise the caller may lead. A task waits in any
        case, for a thread that it is to start then.
        """
        with self._lock:
            taken, ready = self._leader is not None, follower.ready()
            if not ready and (taken or follower.on_loop):
                (self._tasks if follower.on_loop else self._threads)[key] = follower
        if ready:
            follower.wake()
        return taken

    def tell(self, keys: Sequence[Hashable]) -> None:
        """Something happened to these: wake those of their followers that are ready."""
        with self._lock:
            woken = [*_taken_out(self._threads, keys), *_taken_out(self._tasks, keys)]
        for follower in woken:
            _reached(follower.wake)

    def hand_over(self, unfinished: Callable[[], bool] = lambda: False) -> bool:
        """Give the lead up, or on; those of the followers that are ready have been told before. Returns False, with the
        lead still held, when something is `unfinished`. Does nothing for a thread that does not lead.
        """
        with self._lock:
            if self._leader != threading.get_ident():
                return True
            if unfinished():
                return False
            if self._claims:
                given, self._leader = self._claims.popleft()
                given.set()
                return True
            self._leader = None
        while (heir := self._heir()) is not None and not _reached(heir.wake):
            pass
        return True

    def _heir(self) -> Waiter | None:
        """One who is to look again. Threads come first: a task may have to wait for one of theirs."""
        with self._lock:
            followers = self._threads or self._tasks
            return None if self._leader is not None or not followers else followers.pop(next(iter(followers)))


def _taken_out(followers: dict[Hashable, Waiter], keys: Sequence[Hashable]) -> list[Waiter]:
    ready = [key for key in keys if key in followers and followers[key].ready()]
    return [followers.pop(key) for key in dict.fromkeys(ready)]


def _reached(wake: Wake) -> bool:
    """Whether there is still somebody to be woken: an event loop may have been closed under its tasks."""
    try:
        wake()
    except RuntimeError:
        return False
    return True
