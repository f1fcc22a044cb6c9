"""A clock that stands still until a test moves it: virtual time for a whole platform."""

import asyncio
import concurrent.futures.thread
import heapq
import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import attrs

from modelyard.protocols import Clock

log = logging.getLogger("modelyard.testing")

Actor = threading.Thread | asyncio.Task[Any]
"""Who waits and acts: a thread, or a task of an event loop."""

PATIENCE = 5.0
"""Real seconds for which the clock stands still for somebody who acts and does not come back."""

WORKERS = ("modelyard-worker", "modelyard-heartbeat", "modelyard-thread-")
"""How the names of the threads begin that a worker starts: all of them come to the clock, or end."""

_GLANCE = 0.002
_IDLE = concurrent.futures.thread._worker.__code__
"""Where a thread of a pool is when it waits for work."""

_SECOND = 10**9
T = TypeVar("T")


class ManualClock:
    """Time moves by `advance` alone, and what is due happens on the way, at its own moment.

    Waits of threads and of tasks, and actions that were scheduled with `after` and `at`, happen one after another, by
    deadline and then in the order in which they came. The clock stands at the deadline while a woken thread or task
    acts, until it waits for the clock again or ends. One that does neither, because it waits for something else, holds
    the clock up for `patience` real seconds, once; then the clock goes on without it, and says so in its log.

    The thread that makes the clock is the one that moves it: when it sleeps, time goes on by as much, and when another
    thread moves the clock it is not waited for. Thread-safe.

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
        self._acting: set[Actor] = set()
        self._met = weakref.WeakSet(threading.enumerate())

    # ---- what a platform asks for

    def now(self) -> datetime:
        """The wall clock."""
        return self._start + timedelta(microseconds=(self._moved + self._jumped) // 1000)

    def monotonic(self) -> float:
        """Seconds since the clock was made."""
        return self._moved / _SECOND

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set, or until the clock has been moved on by so many seconds."""
        if not event.is_set() and seconds > 0:
            wait = _ThreadWait(threading.current_thread(), event)
            self._arrive(wait, seconds)
            try:
                wait.hold()
            finally:
                self._leave(wait)
        return event.is_set()

    def sleep(self, seconds: float) -> None:
        """Wait until the clock has been moved on by so many seconds; the thread that made the clock moves it itself."""
        if seconds <= 0:
            return
        if threading.current_thread() is self._owner and self._mover in (None, self._owner):
            self.advance(seconds)
        else:
            self.wait(threading.Event(), seconds)

    async def asleep(self, seconds: float) -> None:
        """The same for a task; one that is alone on an event loop of the clock's own thread moves it itself."""
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        if threading.current_thread() is self._owner and asyncio.all_tasks(loop) == {task}:
            await self.aadvance(seconds)
            return
        wait = _TaskWait(task, loop, loop.create_future())
        self._arrive(wait, seconds)
        try:
            await wait.future
        finally:
            self._leave(wait)

    # ---- what a test asks for

    def advance(self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0) -> None:
        """Move time on, and let everything that is due on the way happen. What an action raises is raised here.

        Raises ValueError for a time below 0, and RuntimeError when an action moves the clock, or when it is called on
        an event loop whose tasks are due: `aadvance` lets them act.
        """
        passing = round((seconds + 60 * minutes + 3600 * hours + 86400 * days) * _SECOND)
        if passing < 0:
            raise ValueError("time does not go back; `jump` sets the wall clock back")
        with self._moving() as loop:
            until = self._moved + passing
            self._settle(loop)
            while (due := self._next(until, loop)) is not None:
                due.happens.happen()
                self._settle(loop)
            self._moved = until

    async def aadvance(
        self, seconds: float = 0.0, *, minutes: float = 0.0, hours: float = 0.0, days: float = 0.0
    ) -> None:
        """The same on an event loop, whose tasks act meanwhile."""
        self._excuse(asyncio.current_task())
        move = partial(self.advance, seconds, minutes=minutes, hours=hours, days=days)
        await asyncio.get_running_loop().run_in_executor(None, move)

    def after(self, seconds: float, action: Callable[[], object]) -> None:
        """Do something, in the thread that moves the clock, when it has been moved on by so many seconds."""
        with self._changed:
            self._schedule(_Action(action), seconds)

    def at(self, moment: datetime, action: Callable[[], object]) -> None:
        """The same at a moment of the wall clock as it now goes; what is past happens when the clock moves next."""
        self.after((moment - self.now()).total_seconds(), action)

    def jump(self, seconds: float) -> None:
        """Set the wall clock on or back, as a correction does; monotonic time does not notice."""
        with self._changed:
            self._jumped += round(seconds * _SECOND)

    # ---- who waits, and who acts

    def _arrive(self, wait: "_ThreadWait | _TaskWait", seconds: float) -> None:
        with self._changed:
            self._waiting[wait.actor] = wait
            self._schedule(wait, seconds)
            self._acting.discard(wait.actor)
            self._met.add(threading.current_thread())
            self._changed.notify_all()

    def _leave(self, wait: "_ThreadWait | _TaskWait") -> None:
        with self._changed:
            wait.over = True
            del self._waiting[wait.actor]
            self._acting.add(wait.actor)
            self._changed.notify_all()

    def _excuse(self, *actors: Actor | None) -> None:
        """Hold the clock up no longer for these: what they wait for is the clock itself."""
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
        """Be the one who moves the clock, as soon as nobody else does. Gives the event loop of this thread."""
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
                self._changed.notify_all()

    def _next(self, until: int, loop: asyncio.AbstractEventLoop | None) -> "_Due | None":
        """What is due next, with the clock set to its deadline."""
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
        """Wait until nobody acts, as far as that can be known, and not for ever."""
        looks = self._patience / _GLANCE
        with self._changed:
            while late := self._late(loop):
                # Nobody tells when a thread or a task ends, so there is a glance at them now and then.
                if not self._changed.wait(_GLANCE):
                    self._excuse(*filter(_ended, late))
                    looks -= 1
                if looks <= 0:
                    names = ", ".join(sorted(_name(actor) for actor in late))
                    log.warning("%s did not come back to the clock for %g s; it moves on", names, self._patience)
                    self._excuse(*late)
                    return

    def _late(self, loop: asyncio.AbstractEventLoop | None) -> Set[Actor]:
        """Who acts now: woken and not back, about to wake because of an event, or a worker's and not yet here."""
        stirred = {actor for actor, wait in self._waiting.items() if isinstance(wait, _ThreadWait) and wait.stirred}
        threads = (thread for thread in threading.enumerate() if thread.name.startswith(WORKERS))
        new = {thread for thread in threads if thread not in self._met}
        late = (self._acting | stirred | new) - {self._owner}
        return {actor for actor in late if not (loop and _loop_of(actor) is loop)}


# ---- what happens at a deadline ------------------------------------------------------------------------------------


@attrs.define(eq=False)
class _ThreadWait:
    """A thread that waits for an event or its deadline."""

    actor: threading.Thread
    event: threading.Event
    over: bool = False
    _due: bool = False

    @property
    def stirred(self) -> bool:
        return self.event.is_set() and not self.over

    def hold(self) -> None:
        """Both the event and the clock wake who waits on the event's own condition: nobody has to look again."""
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
    """A task that waits for its deadline."""

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
    """Something that was scheduled."""

    happen: Callable[[], object]
    over: bool = False


@attrs.frozen(order=True)
class _Due:
    """What happens at a deadline, in nanoseconds of the clock; of equals, what came first."""

    deadline: float
    arrival: int
    happens: "_ThreadWait | _TaskWait | _Action" = attrs.field(order=False)


def _condition(event: threading.Event) -> threading.Condition:
    condition: threading.Condition = vars(event)["_cond"]
    return condition


def _ended(actor: Actor) -> bool:
    """Whether it has nothing left to do: a pool's thread also when it waits for work. A thread that was started and has
    not begun is not alive yet, but listed.
    """
    if isinstance(actor, asyncio.Task):
        return actor.done()
    frame = sys._current_frames().get(actor.ident or 0)
    return actor not in threading.enumerate() or (frame is not None and frame.f_code is _IDLE)


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
