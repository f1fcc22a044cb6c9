"""A worker that leaves finishes the rows that it has begun: only a kill or a row that takes too long repeats a call."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any, Self

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.backends.echo import Deltas, EchoBackend
from modelyard.domain.completion import CompletionRequest
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import JobStatus
from modelyard.flow import Flow
from modelyard.platform.evaluations import pools
from modelyard.platform.evaluations.pools import FlowResult, ThreadPool
from modelyard.platform.jobs.runner import Runner
from modelyard.protocols import ServedModel
from modelyard.testing.clock import ManualClock

SLOW = "row 4"


class Witness(EchoBackend):
    """Counts the calls of each row. The slow one is answered when the test says so."""

    def __init__(self, blocking: bool) -> None:
        super().__init__()
        self.blocking = blocking
        self.calls, self.slow = Counter[str](), threading.Event()
        self.under_way = 0
        self.lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a call is under way that is not the slow one."""
        slow = SLOW in self.calls and not self.slow.is_set()
        return self.under_way > slow

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Deltas]:
        text = request.messages[-1].text
        with self.lock:
            self.calls[text] += 1
        assert text != SLOW or self.slow.wait(60)
        return super().stream(request, model)


class CountedThreads(ThreadPool):
    """Counts the calls that are under way until their results have arrived."""

    def __init__(self, backend: Witness) -> None:
        super().__init__()
        self._backend = backend

    def begin(self, flow: Flow[Any], on_end: Callable[[FlowResult], None]) -> None:
        self._count(1)

        def ended(result: FlowResult) -> None:
            on_end(result)
            self._count(-1)

        super().begin(flow, ended)

    def _count(self, more: int) -> None:
        with self._backend.lock:
            self._backend.under_way += more


class ClockOfCalls(ManualClock):
    """Time passes for those who wait, but not while a call is answered that is not slow."""

    def __init__(self, backend: Witness) -> None:
        super().__init__()
        self._backend = backend

    def wait(self, event: threading.Event, seconds: float) -> bool:
        while not event.wait(0.002) and self._backend.busy:
            pass
        if not event.is_set():
            self.advance(seconds)
        return event.is_set()


class Site:
    """A platform with a run of so many rows, and workers that leave when the test says so."""

    def __init__(self, rows: int, concurrency: int, blocking: bool = False, slow: bool = False) -> None:
        self.backend = Witness(blocking)
        if not slow:
            self.backend.slow.set()
        self.clock = ClockOfCalls(self.backend)
        self.platform: Platform = open_platform(backend=self.backend, clock=self.clock)
        self.rows = [{"prompt": f"row {n}", "expected": f"row {n}"} for n in range(rows)]
        self.run: EvaluationRun = self.platform.evaluations.submit("quiz", "echo", self.rows, concurrency=concurrency)

    def __enter__(self) -> Self:
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr(pools, "ThreadPool", partial(CountedThreads, self.backend))
        return self

    def __exit__(self, *_: object) -> None:
        self.platform.close()
        self._patch.undo()

    def work(self, stop: Callable[[], bool] = lambda: False) -> None:
        runner = Runner(self.platform._runtime)
        claimed = runner.claim()
        assert claimed is not None
        runner.run(claimed, stop)

    def work_until_killed(self, writes: int) -> Iterator[None]:
        """Make so many writes as a worker of which nothing is heard from then on."""
        runner = Runner(self.platform._runtime)
        claimed = runner.claim()
        assert claimed is not None
        steps = runner.steps(claimed)
        for _ in range(writes):
            next(steps)
        watcher = Runner(self.platform._runtime)
        watcher.reclaim_expired()
        self.clock.advance(self.platform.settings.lease)
        watcher.reclaim_expired()
        return steps

    def waits(self) -> bool:
        """Whether the run waits for a worker."""
        (job,) = self.platform.jobs.list()
        return job.status is JobStatus.QUEUED

    def repeated(self) -> set[str]:
        """The rows that may have been asked twice, of a run that has completed with each of its rows once."""
        run = self.platform.evaluations.runs.get(self.run.id)
        assert run.state is RunState.COMPLETED
        found = list(self.platform.evaluations.predictions.list(run_id=run.id))
        assert sorted(row.index for row in found if row.index is not None) == [*range(len(self.rows))]
        return {str(row.inputs["prompt"]) for row in found if row.possibly_repeated}


def after(turns: int) -> Callable[[], bool]:
    """Return what is true from the call with this number on."""
    asked = iter(range(turns))
    return lambda: next(asked, None) is None


@pytest.mark.slow
@examples(30)
@given(st.integers(1, 80), st.integers(1, 9), st.booleans(), st.lists(st.integers(0, 5), max_size=4))
def test_no_row_is_repeated_however_often_a_run_is_given_back(
    rows: int, concurrency: int, blocking: bool, turns: list[int]
) -> None:
    site = Site(rows, concurrency, blocking)
    with site:
        for each in turns:
            if site.waits():
                site.work(after(each))
        if site.waits():
            site.work()
        assert site.repeated() == set()
        assert set(site.backend.calls.values()) == {1}


def test_a_row_that_takes_longer_than_a_third_of_the_lease_is_left_and_alone_counts_as_repeated() -> None:
    site = Site(400, concurrency=3, blocking=True, slow=True)
    with site:
        begun = site.clock.monotonic()
        site.work(lambda: SLOW in site.backend.calls)
        assert site.clock.monotonic() - begun < site.platform.settings.lease
        assert site.platform.evaluations.runs.status(site.run.id).completed_rows < 300
        site.backend.slow.set()
        site.work()
        assert site.repeated() == {SLOW}
        assert {row: calls for row, calls in site.backend.calls.items() if calls > 1} == {SLOW: 2}


def test_what_a_worker_has_begun_that_was_killed_stays_unsure_until_it_is_done() -> None:
    site = Site(100, concurrency=2)
    with site:
        site.work_until_killed(writes=1)  # nothing was called
        site.work(after(0))
        site.work(after(2))
        stored = site.platform.evaluations.runs.status(site.run.id).completed_rows
        assert 0 < stored < 65
        site.work()
        assert site.repeated() == {f"row {n}" for n in range(65)}


def test_a_kill_after_a_worker_has_left_makes_as_many_rows_unsure_as_any() -> None:
    site = Site(100, concurrency=2)
    with site:
        site.work(after(0))
        with closing(site.work_until_killed(writes=2)):  # type: ignore[type-var]  # it is a generator
            done = site.platform.evaluations.runs.status(site.run.id).completed_rows
            site.work()
        assert site.repeated() == {f"row {n}" for n in range(done, done + 65)}


def test_a_cancelled_run_does_not_wait_for_its_rows() -> None:
    site = Site(400, concurrency=3, blocking=True, slow=True)
    with site:

        def cancelled() -> bool:
            if SLOW in site.backend.calls:
                site.platform.evaluations.runs.cancel(site.run.id)
            return False

        begun = site.clock.monotonic()
        site.work(cancelled)
        site.backend.slow.set()
        assert site.platform.evaluations.runs.get(site.run.id).reason == "cancelled"
        assert site.clock.monotonic() - begun < site.platform.settings.lease / 3
