"""Group commit, led by its callers: concurrent calls share one transaction.

A call waits in a queue. If there is no leader, its thread leads a group: it runs the waiting calls as one transaction,
wakes the first of their callers, names the next leader and returns. Callers wake one another as they leave: threads
that are woken all at once contend for the interpreter with each other and with the next leader. While a group syncs,
the next one forms. Tasks of an event loop wait in the same queue; if only tasks wait, their loops are offered the lead
and a thread of the queue's own takes it. Where nothing has to be waited for, a loop leads itself: it runs the calls of
each of its turns together at its next, but the first at once if the last group was of one.

What keeps it alive: a leader always names a successor when it ends, however it ends; a call leaves the queue only when
it is settled or its caller has given up; a caller wakes the next however it leaves; an offer binds no one, since a loop
may close before it accepts; and waking a caller twice does no harm.
"""

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Any, TypeVar

from modelyard.errors import StoreClosed
from modelyard.flow import give_way
from modelyard.protocols import Tx
from modelyard.stores.pending_steps import PendingStep, TaskCall, ThreadCall, is_settled

T = TypeVar("T")

_MAX_GROUP = 256
_QUICK_COMMIT = 1e-4
"""Seconds; a faster commit does not sync, and waiting for more calls would cost more than it saves."""
_PAUSES = 8
"""Pauses in which a leader waits for more calls, altogether at most as long as a commit takes."""
_MAX_PAUSE = 1e-3

Run = Callable[[Sequence[PendingStep[Any]]], float]
"""Settles a group, and returns how many seconds its commit took."""

RunOne = Callable[[Callable[[Tx], Any], bool], tuple[Any] | None]
"""Runs one step, durable or not, and returns its result in a tuple, or None if it was not run."""


class GroupCommit:
    """The queue of calls, and what runs a group of them.

    A lone caller, who comes when no other calls and none has shared the last group, does not enter the queue: `run_one`
    runs its step. `at_once` are two functions that do the same for steps that are not durable, but nothing where they
    would have to wait.
    """

    def __init__(self, run: Run, run_one: RunOne, at_once: tuple[Run, RunOne] | None = None) -> None:
        self._run, self._run_one = run, run_one
        self._run_at_once: Run
        self._run_one_at_once: RunOne | None
        self._run_at_once, self._run_one_at_once = at_once or (run, None)
        self._mutex = threading.Lock()
        self._queue: deque[ThreadCall[Any] | TaskCall[Any]] = deque()
        self._leader: object | None = None
        self._offered: set[asyncio.AbstractEventLoop] = set()
        self._first: dict[asyncio.AbstractEventLoop, object] = {}
        """The task that was the first to call in the present turn of a loop."""
        self.running: int | None = None
        """The thread that runs steps."""
        self._closed = False
        self._last_size = 0
        self._commit_seconds = 0.0
        self._thread = ThreadPoolExecutor(1, "modelyard-commit")

    def refuse_steps(self) -> None:
        """Raise RuntimeError if a step is calling: it would wait for its own commit."""
        if self.running == threading.get_ident():
            raise RuntimeError("a step may not call its store")

    def transact(self, step: Callable[[Tx], T], durable: bool, last: bool = False) -> T:
        """Run `step` in a group, on this thread or another.

        After the `last` call every other raises `StoreClosed`.
        """
        if self._last_size <= 1 and not last and (result := self._run_alone(step, durable, self._run_one)) is not None:
            return result[0]
        call = ThreadCall(step, durable)
        try:
            self._join(call, last)
            while not call.settled:
                if self._leader is call:
                    self._lead(self._run)
                else:
                    call.wait()
        except BaseException:
            self._give_up(call)
            raise
        finally:
            try:
                self._step_down(call)
            finally:
                call.leave()
        return call.outcome()

    async def atransact(self, step: Callable[[Tx], T], durable: bool) -> T:
        """Run `step` for a task: at once if it is not durable and nothing is to be waited for, else in a group."""
        loop = asyncio.get_running_loop()
        run_one = None if durable else self._run_one_at_once
        if run_one is not None and self._last_size <= 1 and self._is_first(loop):
            result = self._run_alone(step, durable, run_one)
            if result is not None:
                return result[0]
        call = TaskCall(step, durable, loop)
        with self._mutex:
            self._enqueue(call)
            lead = self._leader is None and loop not in self._offered
            if lead:
                self._offered.add(loop)
        if lead and run_one is not None:
            loop.call_soon(self._lead_for, loop, loop, self._run_at_once)
        elif lead:
            self._accept(loop)
        if run_one is not None:
            await give_way()  # mostly it is settled then, and needs no future
        if not call.settled:
            call.done = loop.create_future()
            await call.done
        return call.outcome()

    def _is_first(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether no other task has called in this turn of the loop: what comes with others is better led together."""
        task = asyncio.current_task(loop)
        if (first := self._first.get(loop)) is None:
            self._first[loop] = task
            loop.call_soon(self._first.pop, loop)
        return first is None or first is task

    def end_thread(self) -> None:
        """End the thread that leads for tasks, after the last call."""
        self._thread.shutdown(wait=False)

    # ---- the queue ----

    def _join(self, call: ThreadCall[Any], last: bool) -> None:
        with self._mutex:
            self._enqueue(call)
            self._closed = last
            if self._leader is None:
                self._leader = call

    def _enqueue(self, call: ThreadCall[Any] | TaskCall[Any]) -> None:
        self.refuse_steps()
        if self._closed:
            raise StoreClosed("the store was closed")
        self._queue.append(call)

    def _give_up(self, call: ThreadCall[Any]) -> None:
        """Take out a call that was interrupted; if a leader runs it already, its step may still be committed."""
        with self._mutex, contextlib.suppress(ValueError):
            self._queue.remove(call)

    # ---- leading ----

    def _run_alone(self, step: Callable[[Tx], T], durable: bool, run_one: RunOne) -> tuple[T] | None:
        """Run a step in this thread if no other runs or waits; return what `run_one` does."""
        me = object()
        try:
            with self._mutex:
                if self._leader is not None or self._queue or self._closed:
                    return None
                self._leader = me
            self.running = threading.get_ident()
            return run_one(step, durable)
        finally:
            if self._leader is me:
                self.running = None
                self._last_size = 1
                self._leader = None  # who comes from now on may lead without being named
                if self._queue:
                    self._step_down(None)

    def _step_down(self, leader: object) -> None:
        """Pass on the lead, if this call has it."""
        if self._leader is leader:
            try:
                self._pass_on(leader)
            except KeyboardInterrupt:  # which must not leave the others without a leader
                self._pass_on(leader)
                raise

    def _lead(self, run: Run) -> None:
        if run is self._run:
            self._gather()
        with self._mutex:
            if self._queue[0].settled:
                self._wake_settled()
            group = list(islice(self._queue, _MAX_GROUP))
        self._run_group(group, run)

    def _run_group(self, group: Sequence[PendingStep[Any]], run: Run) -> None:
        try:
            self.running = threading.get_ident()
            seconds = run(group)
        finally:
            self.running = None
        self._commit_seconds += (seconds - self._commit_seconds) / 8
        self._last_size = len(group)

    def _gather(self) -> None:
        """Wait while callers of the last group are on their way back, but not for long after the last one came.

        A lone caller never waits.
        """
        if self._commit_seconds < _QUICK_COMMIT:
            return
        for _ in range(_PAUSES):
            came = len(self._queue)
            if came >= self._last_size:
                return
            time.sleep(min(self._commit_seconds / _PAUSES, _MAX_PAUSE))
            if len(self._queue) == came:
                return

    def _pass_on(self, leader: object) -> None:
        """Wake the callers of settled calls and name the next leader: the first waiting thread, else offer it to loops.

        May be called again if it was interrupted.
        """
        with self._mutex:
            if not self._queue:
                self._leader = None if self._leader is leader else self._leader
                return
            if self._leader is leader:
                self._wake_settled()
                self._leader = next((call for call in self._queue if isinstance(call, ThreadCall)), None)
            if isinstance(self._leader, ThreadCall):
                self._leader.wake()
            elif self._queue:
                self._offer()

    def _wake_settled(self) -> None:
        """Wake every caller whose call is settled (each loop once), and take these calls out of the queue.

        Threads wake one another in turn. The mutex must be held.
        """
        settled = list(takewhile(is_settled, self._queue))
        tasks: dict[asyncio.AbstractEventLoop, list[TaskCall[Any]]] = {}
        last: ThreadCall[Any] | None = None
        for call in settled:
            if isinstance(call, TaskCall):
                tasks.setdefault(call.loop, []).append(call)
            elif call.wakes_next:
                call.wake_after(last)
                last = call
            else:
                call.wake()
        for loop, calls in tasks.items():
            if loop is self._leader:
                _resolve(calls)
            else:
                _call_soon(loop, _resolve, calls)
        for _ in settled:
            self._queue.popleft()

    def _offer(self) -> None:
        """Offer the lead to every loop with a waiting call. The mutex must be held."""
        self._offered = {loop for loop in self._offered if not loop.is_closed()}
        for loop in {call.loop for call in self._queue if isinstance(call, TaskCall)} - self._offered:
            if _call_soon(loop, self._accept, loop):
                self._offered.add(loop)

    # ---- event loops ----

    def _accept(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop: let the queue's own thread lead, or this thread if that has been shut down."""
        try:
            self._thread.submit(self._lead_for, loop, object(), self._run)
        except RuntimeError:
            self._lead_for(loop, loop, self._run)

    def _lead_for(self, loop: asyncio.AbstractEventLoop, leader: object, run: Run) -> None:
        """Lead one group, unless there is a leader already. On the thread of the loop, `leader` is the loop itself."""
        with self._mutex:
            self._offered.discard(loop)
            if self._leader is not None or not self._queue:
                return
            self._leader = leader
        try:
            self._lead(run)
        finally:
            self._pass_on(leader)


def _call_soon(loop: asyncio.AbstractEventLoop, function: Callable[[Any], None], argument: object) -> bool:
    """Schedule `function(argument)` on the loop; return False if it is closed, so that none of its tasks waits."""
    try:
        loop.call_soon_threadsafe(function, argument)
    except RuntimeError:
        return False
    return True


def _resolve(calls: Sequence[TaskCall[Any]]) -> None:
    for call in calls:
        if call.done is not None and not call.done.done():
            call.done.set_result(None)
