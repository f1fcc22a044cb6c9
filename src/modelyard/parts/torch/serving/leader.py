"""Leader election among waiting callers: one of them works for all, and hands over when it is done."""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress

import attrs

Wake = Callable[[], object]


@attrs.frozen(eq=False)
class Waiter:
    """A caller that waits while another leads: woken when it is `ready`, or when it is to lead.

    `on_loop` marks a task of an event loop, which needs a free thread to lead.
    """

    ready: Callable[[], bool]
    wake: Wake
    on_loop: bool = False


class LeaderElection:
    """Gives the lead to one running thread at a time.

    It is never promised to a thread that is still to be started: callers that wait on threads of the same executor
    would keep it from starting. Invariant: if there is no leader but a waiter, one of the waiters has been woken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leader: int | None = None
        self._claims: deque[tuple[threading.Event, int]] = deque()
        self._threads: dict[Hashable, Waiter] = {}
        self._tasks: dict[Hashable, Waiter] = {}

    @property
    def followed(self) -> bool:
        return bool(self._threads or self._tasks)

    @property
    def claimed(self) -> bool:
        return bool(self._claims)

    def take(self) -> bool:
        with self._lock:
            if self._leader is not None:
                return False
            self._leader = threading.get_ident()
            return True

    def claim(self) -> None:
        """Wait for the lead, ahead of all waiters: it is passed on without being free in between."""
        given, thread = threading.Event(), threading.get_ident()
        with self._lock:
            if self._leader is None:
                self._leader = thread
                return
            self._claims.append((given, thread))
        try:
            given.wait()
        except BaseException:  # the wait was interrupted
            with self._lock, suppress(ValueError):  # it may just have been given the lead
                self._claims.remove((given, thread))
            self.hand_over()
            raise

    def follow(self, key: Hashable, follower: Waiter) -> bool:
        """Wait for the leader; return whether there is one: otherwise the caller may lead.

        A task waits in any case, for the thread that it is to start then.
        """
        with self._lock:
            taken, ready = self._leader is not None, follower.ready()
            if not ready and (taken or follower.on_loop):
                (self._tasks if follower.on_loop else self._threads)[key] = follower
        if ready:
            follower.wake()
        return taken

    def notify(self, keys: Sequence[Hashable]) -> None:
        with self._lock:
            woken = [*_taken_out(self._threads, keys), *_taken_out(self._tasks, keys)]
        for follower in woken:
            _woken(follower.wake)

    def hand_over(self, unfinished: Callable[[], bool] = lambda: False) -> bool:
        """Give up the lead, or pass it on; ready waiters have been notified before.

        Returns False, with the lead still held, if something is `unfinished`. Does nothing for a thread that does not
        lead.
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
        while (successor := self._successor()) is not None and not _woken(successor.wake):
            pass
        return True

    def _successor(self) -> Waiter | None:
        """Return a waiter that is to look again. Threads come first: a task may have to wait for one of theirs."""
        with self._lock:
            followers = self._threads or self._tasks
            return None if self._leader is not None or not followers else followers.pop(next(iter(followers)))


def _taken_out(followers: dict[Hashable, Waiter], keys: Sequence[Hashable]) -> list[Waiter]:
    ready = [key for key in keys if key in followers and followers[key].ready()]
    return [followers.pop(key) for key in dict.fromkeys(ready)]


def _woken(wake: Wake) -> bool:
    """Call `wake`; return whether its caller still exists: an event loop may have been closed under its tasks."""
    try:
        wake()
    except RuntimeError:
        return False
    return True
