"""Waiting for a job: for the worker that runs it or, where none is alive, by running the queue in this thread."""

from collections.abc import Callable, Generator

from modelyard.domain.job import Job
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.claimed_job import ClaimedJob
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.runtime import Runtime

FIRST_PAUSE = 0.005
"""Seconds before the first poll; each later pause is twice as long, up to `Settings.poll`."""


def wait_for_end(runtime: Runtime, look: Callable[[], Job]) -> Generator[None, None, None]:
    """Yield after every poll of the job that `look` finds, for the last time after its end.

    Closing it gives a job that it runs back to the queue.
    """
    runner, first = Runner(runtime), min(FIRST_PAUSE, runtime.settings.poll)
    pause = first
    while True:
        job = look()
        yield
        if job.ended:
            return
        claimed = _next_of_lane(runtime, runner, job.lane)
        if claimed is None:
            runtime.clock.sleep(pause)
            pause = min(2 * pause, runtime.settings.poll)
        else:
            with runner.beating():
                yield from runner.steps(claimed)
            pause = first


def _next_of_lane(runtime: Runtime, runner: Runner, lane: str) -> ClaimedJob | None:
    """Claim what this thread is to run: the job or one ahead of it, unless a worker is alive."""
    runner.reclaim_expired()
    return None if alive(runtime) else runner.claim(lane)
