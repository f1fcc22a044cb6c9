"""Pools that work on the rows of an evaluation: in place, on threads, or as tasks of an event loop. A pool begins a
flow, and calls a function with its result, from any thread. It has no bound: its user limits how many flows it
begins."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar, cast

import attrs

from modelyard.domain.frozen_fast import quick_init
from modelyard.flow import Flow, SyncDriver, Transact, arun, run
from modelyard.lazy import asyncio
from modelyard.platform.evaluations.model_under_test import CompletionModel, JudgeScorer
from modelyard.platform.evaluations.row_evaluation import ModelUnderTest, RowScorer, RunLimits
from modelyard.platform.usage.booking import CompletionBooking, RecordUsage
from modelyard.protocols import Clock
from modelyard.threads import TenantThreads

T = TypeVar("T")

LEAVE = 5.0
"""Seconds that a loop has to end; a call that keeps it longer is abandoned."""


@quick_init
@attrs.frozen(weakref_slot=False)
class FlowResult:
    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


class Pool(Protocol):
    def begin(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        """Begin a flow, and call `on_end` with its result when it has ended."""

    def work(self) -> None:
        """Do the work that runs in this thread."""

    def close(self) -> None: ...


class CompletionQueue(Generic[T]):
    """Results of flows that have arrived and have not been taken, each with its subject. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._results: deque[tuple[T, FlowResult]] = deque()
        self._some = threading.Event()
        self._awaited = False

    def put(self, about: T, outcome: FlowResult) -> None:
        """Add a result. A waiting thread is woken once for all that arrive until it looks."""
        self._results.append((about, outcome))
        if self._awaited and not self._some.is_set():
            self._some.set()

    def take(self, longest: Callable[[], float]) -> Iterator[tuple[T, FlowResult]]:
        """Yield all that have arrived, and that arrive meanwhile; wait up to `longest` seconds for the first."""
        if not self._results:
            self._wait(longest())
        while self._results:
            yield self._results.popleft()

    def _wait(self, seconds: float) -> None:
        """Wait for a result. `put` checks for a waiting thread after adding, so look once more before waiting."""
        self._awaited = True
        if not self._results:
            self._clock.wait(self._some, seconds)
        self._awaited = False
        self._some.clear()


class InlinePool:
    """Runs flows in the thread that works: flows that never wait, or one at a time. Flows that were begun together are
    interleaved, and their store transactions are joined to one. The usage that they record is added to `pending_usage`,
    if that is given, for its owner to store with its records."""

    def __init__(self, pending_usage: list[CompletionBooking] | None = None) -> None:
        self._pending_usage = pending_usage
        self._begun: list[tuple[_InPlace, Callable[[FlowResult], None]]] = []

    def run(self, flow: Flow[T]) -> T:
        driver = _InPlace(flow, self._pending_usage)
        try:
            step = driver.advance()
            while step is not None:
                step = driver.advance(*_attempted(step))
        except BaseException:
            driver.finish()
            raise
        return cast(T, driver.result)

    def begin(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        self._begun.append((_InPlace(flow, self._pending_usage), on_end))

    def work(self) -> None:
        """Run all flows to their end. An interrupt abandons those that have not ended."""
        begun, self._begun = self._begun, []
        try:
            waiting = [(one, step) for one in begun if (step := _advanced(*one)) is not None]
            while waiting:
                outcomes = _transacted([step for _, step in waiting])
                waiting = [
                    (one, step)
                    for (one, _), outcome in zip(waiting, outcomes, strict=True)
                    if (step := _advanced(*one, *outcome)) is not None
                ]
        except BaseException:
            for driver, _ in begun:
                driver.finish()
            raise

    def close(self) -> None:
        """Do nothing: no work is left to end."""


_Outcome = tuple[Any, Exception | None]


class _InPlace(SyncDriver[Any]):
    """Drives a flow in this thread, but leaves its store transactions to the pool, and its usage to `pending_usage`."""

    def __init__(self, flow: Flow[Any], pending_usage: list[CompletionBooking] | None) -> None:
        super().__init__(flow)
        self._pending_usage = pending_usage

    def advance(self, answer: Any = None, error: Exception | None = None) -> Transact | None:
        effect = self.resume(answer, error)
        while effect is not None:
            if type(effect) is Transact:
                return effect
            if type(effect) is RecordUsage and self._pending_usage is not None:
                self._pending_usage.append(effect.booking)
                effect = self.resume()
            else:
                effect = self.perform(effect)
        return None


def _advanced(driver: _InPlace, on_end: Callable[[FlowResult], None], *outcome: Any) -> Transact | None:
    try:
        step = driver.advance(*outcome)
        if step is not None:
            return step
        result = FlowResult(driver.result)
    except Exception as failure:  # noqa: BLE001 - `on_end` receives it
        result = FlowResult(error=failure)
    on_end(result)
    return None


def _transacted(steps: Sequence[Transact]) -> list[_Outcome]:
    """Run all steps in one transaction. If one of them fails, run each in its own, so that only that one fails."""
    if len(steps) > 1:
        durable = any(one.durable for one in steps)
        with suppress(Exception):  # all of it is undone: whose fault it was shows when each runs alone
            values = steps[0].store.transact(lambda tx: [one.step(tx) for one in steps], durable)
            return [(value, None) for value in values]
    return [_attempted(one) for one in steps]


def _attempted(one: Transact) -> _Outcome:
    try:
        return one.store.transact(one.step, one.durable), None
    except Exception as error:  # noqa: BLE001 - the flow decides
        return None, error


class ThreadPool:
    def __init__(self) -> None:
        self._work: SimpleQueue[tuple[Flow[Any], Callable[[FlowResult], None]] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._free, self._threads = 0, 0

    def begin(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
            else:
                self._threads += 1
                threading.Thread(target=self._serve, name="modelyard-evaluation", daemon=True).start()
        self._work.put((flow, on_end))

    def work(self) -> None:
        """Do nothing: the threads work."""

    def close(self) -> None:
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            flow, on_end = work
            try:
                outcome = _outcome(flow)
            except BaseException as error:  # noqa: BLE001 - it would be lost with the thread
                outcome = FlowResult(error=error)
            with self._lock:
                self._free += 1
            on_end(outcome)
            del work, flow, on_end, outcome


class TaskPool:
    def __init__(self, loop: Any, threads: TenantThreads) -> None:
        self._loop, self._threads = loop, threads
        self._running: set[Any] = set()

    def begin(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        self._loop.call_soon_threadsafe(self._start, flow, on_end)

    def work(self) -> None:
        """Do nothing: the loop works."""

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        task = self._loop.create_task(_aoutcome(flow, on_end, self._threads))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _cancel(self) -> None:
        for task in tuple(self._running):
            task.cancel()


def _outcome(flow: Flow[Any]) -> FlowResult:
    try:
        return FlowResult(run(flow))
    except Exception as error:  # noqa: BLE001 - `on_end` receives it
        return FlowResult(error=error)


async def _aoutcome(flow: Flow[Any], on_end: Callable[[FlowResult], None], threads: TenantThreads) -> None:
    try:
        outcome = FlowResult(await arun(flow, threads))
    except BaseException as error:  # noqa: BLE001 - `on_end` receives it
        outcome = FlowResult(error=error)
    on_end(outcome)


@contextmanager
def own_loop() -> Iterator[Any]:
    begun: SimpleQueue[Any] = SimpleQueue()
    thread = threading.Thread(target=_serve_loop, args=[begun], name="modelyard-evaluation-loop", daemon=True)
    thread.start()
    loop, main = begun.get()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(main.cancel)
        thread.join(LEAVE)


def _serve_loop(begun: "SimpleQueue[Any]") -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        forever = loop.create_future()
        begun.put((loop, forever))
        await asyncio.wait([forever])

    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        runner.run(main())


def pools(
    opened: ExitStack,
    limits: RunLimits,
    model: ModelUnderTest | None,
    scorers: Sequence[RowScorer],
    loop: Any,
    pending_usage: list[CompletionBooking],
    threads: Callable[[], TenantThreads],
) -> tuple[Pool, Pool]:
    """Open the pools of the model and of the scorers, as long as `opened` lasts; on `loop` if there is one, with
    blocking calls in those `threads`. The usage of flows that never wait is added to `pending_usage`."""
    if loop is None and any(map(_needs_loop, (model, *scorers))):
        loop = opened.enter_context(own_loop())
    if loop is not None:
        tasks = TaskPool(loop, threads())
        opened.callback(tasks.close)
        return tasks, tasks

    def pool(size: int, blocking: bool) -> Pool:
        if limits.timeout is None and (size == 1 or not blocking):
            return InlinePool(None if blocking else pending_usage)
        threads = ThreadPool()
        opened.callback(threads.close)
        return threads

    return pool(limits.concurrency, _waits(model)), pool(limits.scorer_concurrency, any(map(_waits, scorers)))


def _needs_loop(worker: object) -> bool:
    if isinstance(worker, CompletionModel):
        return worker.needs_loop
    if isinstance(worker, JudgeScorer):
        return worker.model.needs_loop
    return getattr(worker, "awaited", False)


def _waits(worker: object) -> bool:
    if isinstance(worker, JudgeScorer):
        worker = worker.model
    if isinstance(worker, CompletionModel):
        return worker.blocking
    return worker is not None and getattr(worker, "waits", True)
