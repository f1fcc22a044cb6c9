"""Waiting for a job: for the worker that runs it or, if none is alive, by running the queue in this thread."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import closing, suppress

from modelyard.domain.job import Job, JobStatus
from modelyard.domain.training import TrainingEvent
from modelyard.errors import JobFailed, OutcomeUnknown, StoreBusy
from modelyard.lazy import log
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.claims import ClaimedJob, job_topic
from modelyard.platform.jobs.expired_claims import JOBS
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.wakeups import JobPause, JobWaiter
from modelyard.platform.runtime import Runtime
from modelyard.threads import TenantThreads

FIRST_PAUSE = 0.005
SILENCE = 0.5
"""The part of its lease after which a silent worker is reported: heartbeats come several times in a lease."""


def wait_for_end(runtime: Runtime, look: Callable[[], Job]) -> Generator[JobPause, None, None]:
    """Yield after every poll of the job that `look` finds, for the last time after its end. It yields the pause that
    the caller is to make before it continues, so that no thread has to be held for that; it ends early when something
    happens to the job. While the store is away it looks again and again. Closing it gives a job that it runs back to
    the queue."""
    with closing(JobWaiter(runtime.clock, runtime.store, runtime.settings.poll)) as waiter:
        yield from _turns(runtime, look, waiter)


def _turns(runtime: Runtime, look: Callable[[], Job], waiter: JobWaiter) -> Generator[JobPause, None, None]:
    runner, first = Runner(runtime), min(FIRST_PAUSE, runtime.settings.poll)
    seconds, reported = 0.0, False
    while True:
        try:
            job = look()
            if job.ended:
                yield JobPause(0.0, waiter, job)
                return
            yield JobPause(seconds, waiter, job)
            claimed = _next_of_lane(runtime, runner, job.lane)
        except (StoreBusy, OutcomeUnknown) as fault:
            yield waiter.outage(fault)
            continue
        reported = _report_silence(runtime, job, reported)
        if claimed is None:
            waiter.watch(job_topic(job.id))
            seconds = min(2 * seconds, runtime.settings.poll) or first
        else:
            with runner.beating():
                for _ in runner.steps(claimed):
                    yield JobPause(0.0, waiter)
            seconds = 0.0


def _report_silence(runtime: Runtime, job: Job, reported: bool) -> bool:
    lease, now = runtime.settings.lease, runtime.clock.monotonic()
    silent = job.status is JobStatus.RUNNING and runtime.liveness.idle(JOBS, job.id, now) >= SILENCE * lease
    if silent and not reported:
        log.warning("job %s: waiting up to %g s for the lease of a worker that stopped responding", job.id, lease)
    return silent


def _next_of_lane(runtime: Runtime, runner: Runner, lane: str) -> ClaimedJob | None:
    runner.reclaim_expired()
    return None if alive(runtime) else runner.claim(lane)


def wait_for_success(
    runtime: Runtime, look: Callable[[], Job], timeout: float | None, show: Callable[[], None] | None = None
) -> None:
    """Wait until the job that `look` finds has succeeded, and call `show` after every poll. Raises `JobFailed`;
    TimeoutError after `timeout` seconds; and what `look` raises."""
    job = wait_so_long(runtime, look, timeout, show)
    if not job.ended:
        raise TimeoutError(f"job {job.id} is still {job.status} after {timeout} seconds")
    if job.status is not JobStatus.SUCCEEDED:
        raise JobFailed(job.id, job.status, job.error_message or "")


def wait_so_long(
    runtime: Runtime, look: Callable[[], Job], timeout: float | None, show: Callable[[], None] | None = None
) -> Job:
    until = None if timeout is None else runtime.clock.monotonic() + timeout
    job = None
    with closing(wait_for_end(runtime, look)) as turns:
        for pause in turns:
            job = pause.job or job
            if show is not None:
                with suppress(StoreBusy):
                    show()
            if until is not None and runtime.clock.monotonic() >= until:
                break
            pause.sleep()
    return job or look()


# ---- following events ------------------------------------------------------------------------------------------------

Followed = Generator[TrainingEvent | JobPause, None, None]
"""Events, and between them the pauses before the next poll."""


def follow(
    turns: Generator[JobPause, None, None] | None,
    events_after: Callable[[str | None], Iterator[TrainingEvent]],
    after: str | None,
) -> Followed:
    """Yield events, live or, without `turns`, those that are there now."""
    if turns is None:
        yield from events_after(after)
        return
    with closing(turns):
        for pause in turns:
            while True:
                try:
                    for event in events_after(after):
                        yield event
                        after = event.id
                    break
                except StoreBusy as fault:
                    yield pause.waiter.outage(fault)
            yield pause


def followed(items: Followed) -> Iterator[TrainingEvent]:
    with closing(items):
        for item in items:
            if isinstance(item, TrainingEvent):
                yield item
            else:
                item.sleep()


async def afollowed(items: Followed, threads: TenantThreads) -> AsyncIterator[TrainingEvent]:
    try:
        while (item := await threads.run(lambda: next(items, None))) is not None:
            if isinstance(item, TrainingEvent):
                yield item
            else:
                await item.asleep()
    finally:
        await threads.to_close.run(items.close)
