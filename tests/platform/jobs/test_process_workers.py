"""The workers of one process share a heartbeat and a look at the queue, and overlook no job."""

import threading
from contextlib import ExitStack
from typing import Any

import attrs

from modelyard.clock import SystemClock
from modelyard.domain.job import JobStatus
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import WorkerProcess, WorkerRecord
from modelyard.executors.inline import InlineExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.runner import BEATS_PER_LEASE
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.liveness import LivenessMonitor
from modelyard.platform.runtime import ProcessCache
from modelyard.stores.memory import MemoryStore


def announced(yard: Any) -> set[str]:
    return {one.id for one in yard.runtime.store.read(lambda s: s.page(WorkerRecord, "all", "worker"))}


@attrs.define
class Counted:
    """A store that counts its transactions."""

    inner: Any
    calls: int = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += name in ("read", "transact")
        return getattr(self.inner, name)


def idle_calls(yard: Any, number: int) -> int:
    """Count the transactions of three leases in which so many workers of one process have nothing to do."""
    store = Counted(yard.runtime.store)
    runtime = attrs.evolve(yard.runtime, store=store, cache=ProcessCache(), liveness=LivenessMonitor())
    workers = [Worker(runtime, ThreadExecutor(1)) for _ in range(number)]
    shared = workers[0]._process
    for worker in workers:
        shared.announce(store, worker._record)
        shared._started[worker.id] = worker
        worker._turn()
    shared._ready = store.subscribe("jobs/ready", lambda: None)
    store.calls = 0
    for _ in range(9):
        yard.clock.advance(runtime.settings.lease / BEATS_PER_LEASE)
        shared.beat()
        for worker in workers:
            worker._turn()
    return store.calls


def test_idle_workers_of_a_process_cost_the_store_no_more_than_one(build: Any) -> None:
    assert idle_calls(build.build(MemoryStore(RECORDS)), 30) == idle_calls(build.build(MemoryStore(RECORDS)), 1)


def test_one_notice_has_the_workers_of_a_process_look_until_every_ready_job_has_one(build: Any) -> None:
    lively = build.build(MemoryStore(RECORDS), poll=60.0, lease=180.0)
    lively.runtime = attrs.evolve(lively.runtime, clock=SystemClock())
    both = threading.Barrier(3, timeout=60)
    lively.trainer.before = lambda item: both.wait() if item == "started" else None
    with ExitStack() as running:
        workers = [running.enter_context(Worker(lively.runtime, ThreadExecutor(1))) for _ in range(3)]
        jobs = [lively.sft(2, model) for model in "abc"]
        assert [job.wait().step for job in jobs] == [1, 1, 1], "they ran side by side"
        assert len({lively.progress(job.id).worker_id for job in jobs}) == len(workers)


def test_a_job_whose_notice_was_lost_is_found_once_in_a_lease_and_by_all_who_have_room(yard: Any) -> None:
    runtime = yard.process()
    workers = [Worker(runtime, InlineExecutor()) for _ in range(2)]
    shared = workers[0]._process
    for worker in workers:
        shared._started[worker.id] = worker
        worker._turn()
    shared._ready = yard.runtime.store.subscribe("jobs/ready", lambda: None)
    job = yard.sft(2)
    for worker in workers * 2:
        worker._turn()
    assert job.status is JobStatus.QUEUED
    yard.clock.advance(runtime.settings.lease)
    for worker in workers * 2:
        worker._turn()
    assert job.status is JobStatus.SUCCEEDED


def test_another_worker_of_a_process_leads_where_the_first_stands_still_or_is_gone(yard: Any) -> None:
    first, second = (Worker(yard.runtime, InlineExecutor()) for _ in range(2))
    shared = first._process
    shared._started.update({first.id: first, second.id: second})
    assert (shared.leads(first.id), shared.leads(second.id)) == (True, False)
    yard.clock.advance(yard.runtime.settings.lease)
    assert (shared.leads(second.id), shared.leads(first.id)) == (True, False)
    shared.stop(second)
    assert shared.leads(first.id)
    shared.resign(first.id)
    assert not shared.is_led_by(first.id)


def test_workers_of_one_process_leave_one_by_one_and_the_last_takes_its_process_along(yard: Any) -> None:
    first, second = (Worker(yard.runtime, InlineExecutor()) for _ in range(2))
    for worker in (first, second):
        worker.beat()
    first.stop()
    assert announced(yard) == {second.id}
    assert alive(yard.runtime)
    second.stop()
    assert not alive(yard.runtime)
    assert yard.runtime.store.read(lambda s: s.page(WorkerProcess, "all")) == []


def test_all_workers_of_a_process_announce_themselves_again_when_it_wakes_up(yard: Any) -> None:
    workers = [Worker(yard.runtime, InlineExecutor()) for _ in range(3)]
    for worker in workers:
        worker.beat()
    other = yard.worker()
    other.look()
    yard.clock.advance(yard.runtime.settings.lease)
    other.look()
    assert announced(yard) == set()
    workers[0]._process.beat()
    assert announced(yard) == {worker.id for worker in workers}


def test_a_worker_of_an_earlier_version_that_beats_for_itself_counts_until_it_stands_still(yard: Any) -> None:
    yard.runtime.store.transact(lambda tx: tx.add(WorkerRecord("old", 1, yard.clock.now())))
    other = yard.worker()
    other.look()
    assert alive(yard.runtime)
    yard.clock.advance(yard.runtime.settings.lease)
    assert not alive(yard.runtime)
    other.look()
    assert yard.runtime.store.read(lambda s: s.page(WorkerRecord, "all", "worker")) == []
