"""The clock of a test, which stands still until it is moved: virtual time for a whole platform."""

import asyncio
import concurrent.futures.thread
import heapq
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import attrs

from modelyard.flow import give_way
from modelyard.protocols import Clock
from modelyard.threads import FairPool

log: logging.Logger = logging.getLogger("modelyard.testing")

Actor = threading.Thread | asyncio.Task[Any]
PATIENCE = 5.0
"""Real seconds for which the clock waits for a woken thread or task that does not return to it."""

WORKERS = ("modelyard-worker", "modelyard-heartbeat", "modelyard-thread-")
"""The prefix of the names of a worker's threads: all of them wait on the clock, or end."""

_GLANCE = 0.002
_IDLE = {concurrent.futures.thread._worker.__code__, FairPool._serve.__code__}
"""The code in which an idle thread of a pool waits for work."""

_SECOND = 10**9

_arrived: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
"""The threads that have waited on any clock: each of them belongs to that one."""

T = TypeVar("T")


class TimeUp(BaseException):
    """The limit of `ManualClock.limited` has come. No handler of errors takes it for one."""


class ManualClock:
    """A clock that only `advance` moves; what is due on the way happens at its own moment.

    Waits of threads and of tasks, and actions that were scheduled with `after` and `at`, happen one after another: by
    deadline, then in the order of their scheduling. The clock stays at the deadline while a woken thread or task acts,
    until it waits on the clock again or ends. One that does neither, because it waits for something else, delays the
    clock by `patience` real seconds, once; then the clock moves on without it, and logs a warning.

    The thread that creates the clock is the one that moves it: its own sleep advances the time. If another thread moves
    the clock, the creating thread is not waited for. Thread-safe.

    >>> clock, seen = ManualClock(), []
    >>> clock.after(90, lambda: seen.append(clock.monotonic()))
    >>> clock.advance(hours=3)
    >>> seen, clock.monotonic()
    ([90.0], 10800.0)
    """

    def __init__(self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), patience: float = PATIENCE) -> None:
        self._start, self._patience = start, patience
        self._moved, self._jumped = 0, 0
        self._changed = threading.Condition()
        self._owner = threading.current_thread()
        self._mover: threading.Thread | None = None
        self._queue: list[_Due] = []
        self._arrivals = 0
        self._waiting: dict[Actor, _ThreadWait | _TaskWait] = {}
        self._following: list[_ThreadWait | _TaskWait] = []
        self._acting: set[Actor] = set()
        self._met = weakref.WeakSet(threading.enumerate())

    # ---- for platforms

    def now(self) -> datetime:
        return self._start + timedelta(microseconds=(self._moved + self._jumped) // 1000)

    def monotonic(self) -> float:
        """Return the seconds since the clock was created."""
        return self._moved / _SECOND

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, or until the clock has advanced by this many seconds."""
        if not event.is_set() and seconds > 0:
            wait = _ThreadWait(threading.current_thread(), event)
            self._arrive(wait, seconds)
            try:
                wait.hold()
            finally:
                self._leave(wait)
        return event.is_set()

    def sleep(self, seconds: float, woken: threading.Event | None = None) -> None:
        """Wait until the clock has advanced by this many seconds; in the thread that created it, advance it. Not at all
        if `woken` is set, and no longer than until then."""
        if seconds <= 0 or (woken is not None and woken.is_set()):
            return
        allowed = self._allowed(seconds)
        if threading.current_thread() is self._owner and self._mover in (None, self._owner):
            self.advance(allowed)
        else:
            self.wait(woken or threading.Event(), allowed)
        if allowed < seconds and not (woken is not None and woken.is_set()):
            raise TimeUp

    async def asleep(self, seconds: float) -> None:
        """Sleep as `sleep` does, in a task; a lone task on an event loop of the clock's own thread advances it."""
        if seconds <= 0:
            await give_way()
            return
        allowed = self._allowed(seconds)
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if threading.current_thread() is self._owner and asyncio.all_tasks(loop) == {task}:
            await self.aadvance(allowed)
        else:
            wait = _TaskWait(task, loop, loop.create_future())
            self._arrive(wait, allowed)
            try:
                await wait.future
            finally:
                self._leave(wait)
        if allowed < seconds:
            raise TimeUp

    # ---- for clients in a test

    @contextmanager
    def limited(self, seconds: float) -> Iterator[None]:
        """Let so many seconds pass for the block at most: a sleep in it then raises `TimeUp`, and so does its end."""
        outer, limit = _LIMIT.get(), self._moved + round(seconds * _SECOND)
        if outer is not None and outer[0] is self:
            limit = min(limit, outer[1])
        before = _LIMIT.set((self, limit))
        try:
            yield
        finally:
            _LIMIT.reset(before)
        if self._moved > limit:
            raise TimeUp

    def _allowed(self, seconds: float) -> float:
        clock, limit = _LIMIT.get() or (None, 0)
        return seconds if clock is not self else min(seconds, max(0, limit - self._moved) / _SECOND)

    def skip(self, seconds: float) -> None:
        """Sleep by moving the clock, from any thread. While another moves it, wait; if that one stops early, go on."""
        allowed = self._allowed(seconds)
        until = self._moved + round(allowed * _SECOND)
        while self._follow(wait := _ThreadWait(threading.current_thread(), threading.Event()), until):
            try:
                wait.hold()
            finally:
                self._leave(wait)
            if self._moved >= until:
                break
        else:
            self._move(lambda: max(self._moved, until))
        if allowed < seconds:
            raise TimeUp

    async def askip(self, seconds: float) -> None:
        """Sleep as `skip` does, in a task; tasks that begin to at the same moment share the seconds."""
        allowed, loop, task = self._allowed(seconds), asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        until = self._moved + round(allowed * _SECOND)
        while self._follow(wait := _TaskWait(task, loop, loop.create_future()), until):
            try:
                await wait.future
            finally:
                self._leave(wait)
            if self._moved >= until:
                break
        else:
            self._excuse(task)
            await give_way()  # to those who begin to sleep at this moment
            await loop.run_in_executor(None, partial(self._move, lambda: max(self._moved, until)))
        if allowed < seconds:
            raise TimeUp

    def _follow(self, wait: "_ThreadWait | _TaskWait", until: int) -> bool:
        """Wait until then, or until the clock is moved no longer; return False if nobody else moves it now."""
        with self._changed:
            if self._mover in (None, threading.current_thread()):
                return False
            self._arrive(wait, (until - self._moved) / _SECOND)
            self._following.append(wait)
            return True

    # ---- for tests

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Advance the time, and let everything that is due happen. Raises what an action raises. Raises ValueError for
        a negative time, and RuntimeError if an action moves the clock, or if it is called on an event loop with tasks
        that are due: `aadvance` lets them act."""
        passing = round((seconds + 60 * minutes + 3600 * hours + 86400 * days) * _SECOND)
        if passing < 0:
            raise ValueError("time cannot be negative; `jump` sets the wall clock back")
        self._move(lambda: self._moved + passing)

    def _move(self, end: Callable[[], int]) -> None:
        with self._moving() as loop:
            until = end()
            self._settle(loop)
            while (due := self._next(until, loop)) is not None:
                due.happens.happen()
                self._settle(loop)
            self._moved = until

    async def aadvance(
        self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
    ) -> None:
        """Advance as `advance` does, on an event loop; its tasks act meanwhile."""
        self._excuse(asyncio.current_task())
        move = partial(self.advance, seconds, minutes=minutes, hours=hours, days=days)
        await asyncio.get_running_loop().run_in_executor(None, move)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Schedule an action after this many seconds; it runs in the thread that moves the clock."""
        with self._changed:
            self._schedule(_Action(action), seconds)

    def at(self, moment: datetime, action: Callable[[], object]) -> None:
        """Schedule an action at a moment of the present wall clock; one in the past runs at the next advance."""
        self.after((moment - self.now()).total_seconds(), action)

    def jump(self, seconds: float) -> None:
        """Change the wall clock by so many seconds, as a correction does; monotonic time is not affected."""
        with self._changed:
            self._jumped += round(seconds * _SECOND)

    # ---- waiting and acting

    def _arrive(self, wait: "_ThreadWait | _TaskWait", seconds: float) -> None:
        with self._changed:
            self._waiting[wait.actor] = wait
            self._schedule(wait, seconds)
            self._acting.discard(wait.actor)
            _arrived.add(threading.current_thread())
            self._changed.notify_all()

    def _leave(self, wait: "_ThreadWait | _TaskWait") -> None:
        with self._changed:
            wait.over = True
            del self._waiting[wait.actor]
            self._acting.add(wait.actor)
            self._changed.notify_all()

    def _excuse(self, *actors: Actor | None) -> None:
        """Do not wait for these actors any more: they wait for the clock itself."""
        with self._changed:
            self._acting.difference_update(actors)
            self._met.update(actor for actor in actors if isinstance(actor, threading.Thread))
            self._changed.notify_all()

    def _schedule(self, happens: "_ThreadWait | _TaskWait | _Action", seconds: float) -> None:
        self._arrivals += 1
        passing = seconds if seconds == float("inf") else round(max(0.0, seconds) * _SECOND)
        heapq.heappush(self._queue, _Due(self._moved + passing, self._arrivals, happens))

    # ---- moving

    @contextmanager
    def _moving(self) -> "Iterator[asyncio.AbstractEventLoop | None]":
        """Become the only mover of the clock, waiting for any other. Yields the event loop of this thread."""
        me, loop = threading.current_thread(), _running_loop()
        if self._mover is me:
            raise RuntimeError("an action of the clock cannot move it or sleep by it; schedule another with `after`")
        self._excuse(me, asyncio.current_task() if loop is not None else None)
        with self._changed:
            self._changed.wait_for(lambda: self._mover is None)
            self._mover = me
        try:
            yield loop
        finally:
            with self._changed:
                self._mover = None
                for wait in self._following:
                    if not wait.over:
                        self._acting.add(wait.actor)
                        wait.happen()
                self._following.clear()
                self._changed.notify_all()

    def _next(self, until: int, loop: asyncio.AbstractEventLoop | None) -> "_Due | None":
        """Return the next due wait or action, with the clock set to its deadline."""
        with self._changed:
            while self._queue and self._queue[0].happens.over:
                heapq.heappop(self._queue)
            if not self._queue or self._queue[0].deadline > until:
                return None
            happens = self._queue[0].happens
            if isinstance(happens, _TaskWait) and happens.loop is loop:
                raise RuntimeError("tasks of this event loop are due and cannot act: use `await clock.aadvance(...)`")
            due = heapq.heappop(self._queue)
            self._moved = max(self._moved, int(due.deadline))
            if not isinstance(happens, _Action):
                self._acting.add(happens.actor)
            return due

    def _settle(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Wait until no thread or task acts any more, for at most `patience`."""
        looks = self._patience / _GLANCE
        with self._changed:
            while late := self._late(loop):
                # The end of a thread or a task is not signalled, so they are polled.
                if not self._changed.wait(_GLANCE):
                    self._excuse(*filter(_ended, late))
                    looks -= 1
                if looks <= 0:
                    names = ", ".join(sorted(_name(actor) for actor in late))
                    log.warning("%s did not return to the clock for %g s; it moves on", names, self._patience)
                    self._excuse(*late)
                    return

    def _late(self, loop: asyncio.AbstractEventLoop | None) -> Set[Actor]:
        """Return the actors at work: woken and not back, about to wake by an event, or of a worker and not here yet."""
        stirred = {actor for actor, wait in self._waiting.items() if isinstance(wait, _ThreadWait) and wait.stirred}
        threads = (thread for thread in threading.enumerate() if thread.name.startswith(WORKERS))
        new = {thread for thread in threads if thread not in self._met and thread not in _arrived}
        late = (self._acting | stirred | new) - {self._owner}
        return {actor for actor in late if not (loop and _loop_of(actor) is loop)}


_LIMIT: ContextVar[tuple[ManualClock, int] | None] = ContextVar("the limit of a block", default=None)

# ---- what happens at a deadline ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _ThreadWait:
    actor: threading.Thread
    event: threading.Event
    over: bool = False
    _due: bool = False

    @property
    def stirred(self) -> bool:
        return self.event.is_set() and not self.over

    def hold(self) -> None:
        """Wait on the event's own condition, which both the event and the clock notify, so that nothing is polled."""
        condition = _condition(self.event)
        with condition:
            condition.wait_for(lambda: self._due or self.event.is_set())

    def happen(self) -> None:
        condition = _condition(self.event)
        with condition:
            self._due = True
            condition.notify_all()


@attrs.define(eq=False)
class _TaskWait:
    actor: asyncio.Task[Any]
    loop: asyncio.AbstractEventLoop
    future: "asyncio.Future[None]"
    over: bool = False

    def happen(self) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)


@attrs.define(eq=False)
class _Action:
    happen: Callable[[], object]
    over: bool = False


@attrs.frozen(order=True)
class _Due:
    """A wait or action at a deadline, in nanoseconds of the clock; first come, first served."""

    deadline: float
    arrival: int
    happens: "_ThreadWait | _TaskWait | _Action" = attrs.field(order=False)


def _condition(event: threading.Event) -> threading.Condition:
    condition: threading.Condition = vars(event)["_cond"]
    return condition


def _ended(actor: Actor) -> bool:
    """Return whether an actor has nothing left to do, like an idle thread of a pool. A thread that was started and has
    not begun is not alive yet, but listed."""
    if isinstance(actor, asyncio.Task):
        return actor.done()
    frame = sys._current_frames().get(actor.ident or 0)
    return actor not in threading.enumerate() or (frame is not None and frame.f_code in _IDLE)


def _name(actor: Actor) -> str:
    return actor.get_name() if isinstance(actor, asyncio.Task) else actor.name


def _loop_of(actor: Actor) -> asyncio.AbstractEventLoop | None:
    return actor.get_loop() if isinstance(actor, asyncio.Task) else None


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


_conforms: type[Clock] = ManualClock
