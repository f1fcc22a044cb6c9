"""A job that no living worker can run waits for one, and fails after a stated time; others are not held up by it."""

from typing import Any

import pytest

from modelyard.domain.job import JobStatus
from modelyard.domain.worker import Capacity
from modelyard.executors.inline import InlineExecutor
from modelyard.parts.shares.part import PART
from modelyard.parts.shares.without_worker import LONGEST_WITHOUT_WORKER, JobsWithoutWorker
from modelyard.platform.jobs import shares
from modelyard.platform.jobs.worker import Worker

ROWS = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}] * 2


def request(yard: Any, name: str, **needs: int) -> Any:
    return yard.training.sft(yard.model(name), ROWS, needs=needs)


def look_for(watch: JobsWithoutWorker, seconds: float, *workers: Worker) -> None:
    """Look once a lease for so long, while these workers are alive."""
    clock, lease = watch.runtime.clock, watch.runtime.settings.lease
    for _ in range(int(seconds / lease) + 1):
        for worker in workers:
            worker.beat()
        watch.look()
        clock.advance(lease)  # type: ignore[attr-defined]


@pytest.fixture
def watch(yard: Any) -> JobsWithoutWorker:
    return JobsWithoutWorker(yard.runtime)


def small(yard: Any, **capacity: Any) -> Worker:
    return Worker(yard.runtime, InlineExecutor(), capacity=Capacity(**capacity))


def test_it_fails_after_the_time_with_its_reason_and_not_before(yard: Any, watch: JobsWithoutWorker) -> None:
    job, other, worker = request(yard, "big", accelerators=1), request(yard, "small"), small(yard)
    look_for(watch, LONGEST_WITHOUT_WORKER - 100, worker)
    assert job.refresh().status is JobStatus.QUEUED
    look_for(watch, 300, worker)
    assert job.refresh().status is JobStatus.FAILED
    reason = "a worker that can run sft of 'base-model' with 1 accelerators: none that is alive has what it needs"
    assert job.refresh().error_message == f"it has waited for {reason}, for more than 1:00:00"
    assert other.refresh().status is JobStatus.QUEUED


def test_a_worker_that_came_in_between_begins_its_time_again(yard: Any, watch: JobsWithoutWorker) -> None:
    job, worker = request(yard, "big", accelerators=1), small(yard)
    look_for(watch, LONGEST_WITHOUT_WORKER - 100, worker)
    look_for(watch, 100, worker, large := small(yard, accelerators=1))
    large.stop()
    look_for(watch, LONGEST_WITHOUT_WORKER - 100, worker)
    assert job.refresh().status is JobStatus.QUEUED
    look_for(watch, 300, worker)
    assert job.refresh().status is JobStatus.FAILED


def test_while_no_worker_is_alive_it_waits(yard: Any, watch: JobsWithoutWorker) -> None:
    job = request(yard, "big", accelerators=1)
    look_for(watch, 2 * LONGEST_WITHOUT_WORKER)
    assert job.refresh().status is JobStatus.QUEUED


def test_a_new_job_gets_the_whole_time_beside_an_old_one(yard: Any, watch: JobsWithoutWorker) -> None:
    old, worker = request(yard, "old", accelerators=1), small(yard)
    look_for(watch, LONGEST_WITHOUT_WORKER - 100, worker)
    new = request(yard, "new", accelerators=1)
    look_for(watch, 300, worker)
    assert (old.refresh().status, new.refresh().status) == (JobStatus.FAILED, JobStatus.QUEUED)
    look_for(watch, LONGEST_WITHOUT_WORKER, worker)
    assert new.refresh().status is JobStatus.FAILED


def test_jobs_of_many_amounts_that_share_a_demand_fail_too_and_only_those_without_a_worker(
    yard: Any, watch: JobsWithoutWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shares, "MOST_DEMANDS", 1)
    worker = small(yard, memory=4)
    jobs = {memory: request(yard, f"m{memory}", memory=memory) for memory in (1, 2, 4, 8, 16)}
    look_for(watch, LONGEST_WITHOUT_WORKER + 300, worker)
    failed = [memory for memory, job in jobs.items() if job.refresh().status is JobStatus.FAILED]
    assert failed == [8, 16]


def test_the_part_looks_while_a_worker_runs(yard: Any) -> None:
    job, worker = request(yard, "big", accelerators=1), small(yard)
    assert PART.upkeep is not None
    for _ in range(int(LONGEST_WITHOUT_WORKER / yard.runtime.settings.lease) + 10):
        worker.beat()
        PART.upkeep(yard.runtime)
        yard.clock.advance(yard.runtime.settings.lease)
    assert job.refresh().status is JobStatus.FAILED
