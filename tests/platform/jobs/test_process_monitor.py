"""What runs outside of a worker's process: taken up, watched, counted when it dies, ended when it is needed no more."""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import attrs
import pytest

from modelyard.domain.job import Claim, Job, JobStatus, Needs, QueueState, SupersededEvent
from modelyard.domain.schema import RECORDS
from modelyard.errors import ArtifactsUnavailable, LeaseLost, RecordNotFound, StoreBusy
from modelyard.platform.jobs import process_monitor
from modelyard.platform.jobs.claims import heartbeat
from modelyard.platform.jobs.process_monitor import LEASES_TO_BEGIN
from modelyard.platform.jobs.queue import LOSSES_PER_CRASH
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.worker import Worker
from modelyard.protocols import DomainStep, Ended, ExecutorState, Running, Waiting
from modelyard.stores.memory import MemoryStore

ROWS = 10
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, 6)), ("training_ended", 0)]


@attrs.define(eq=False)
class Engine:
    """An executor whose processes are what a test says they are: `running`, or dead of a fault.

    Where it `leaves` them, they outlive the worker, and it finds those of workers that are not alive.
    """

    running: list[str] = attrs.field(factory=list)
    dead: dict[str, str] = attrs.field(factory=dict)
    killed: list[str] = attrs.field(factory=list)
    waiting: set[str] = attrs.field(factory=set)
    foreign: set[str] = attrs.field(factory=set)
    own: set[str] = attrs.field(factory=set)
    submitted: int = 0
    closed: bool = False
    leaves: bool = False
    claimed: list[str] = attrs.field(factory=list)

    isolates = True

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        self.submitted += 1
        self.claimed.append(claim.address)
        self.running.append(f"process-{self.submitted}")
        self.own.add(self.running[-1])
        return self.running[-1]

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return {handle: self.state(handle) for handle in handles}

    def state(self, handle: str) -> ExecutorState:
        if handle in self.waiting:
            return Waiting()
        return Running() if handle in self.running else Ended(self.dead.get(handle, "gone"))

    def cancel(self, handle: str) -> None:
        self.killed.append(handle)
        self.die(handle, "killed")

    def reattach(self, handle: str, alive: bool) -> bool:
        return handle not in self.foreign and (handle in self.own or not (self.leaves and alive))

    def close(self, leave: bool = False) -> None:
        self.closed = True
        if not (leave and self.leaves):
            self.running.clear()
            self.waiting.clear()

    def die(self, handle: str, fault: str = "") -> None:
        if handle in self.running:
            self.running.remove(handle)
        self.dead[handle] = fault


class HopelessEngine(Engine):
    """It accepts jobs that it will never have room for."""

    def state(self, handle: str) -> ExecutorState:
        return Waiting("no node is so large") if handle in self.running else super().state(handle)


@attrs.define(eq=False)
class Site:
    """A worker, its engine, and a job that it has submitted as `process-1`."""

    yard: Any
    engine: Engine = attrs.field(factory=Engine)
    worker: Worker = attrs.field(init=False)
    job_id: str = attrs.field(init=False)
    runner: Runner = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.worker = Worker(self.yard.runtime, self.engine)
        self.job_id = self.yard.sft(ROWS).id
        self.worker.look()

    @property
    def job(self) -> Any:
        return self.yard.job(self.job_id)

    @property
    def progress(self) -> Any:
        return self.yard.progress(self.job_id)

    @property
    def crashes(self) -> int:
        crashes: int = self.progress.crashes
        return crashes

    @property
    def lease(self) -> float:
        lease: float = self.yard.runtime.settings.lease
        return lease

    def process(self, items: int = 0) -> Iterator[None]:
        """The process takes the job up and stores so many items."""
        self.runner = self.yard.runner()
        claimed = self.runner.adopt(self.job_id)
        assert claimed is not None
        steps: Iterator[None] = self.runner.steps(claimed)
        for _ in range(items):
            next(steps)
        self.yard.abandoned.append(steps)
        return steps


@pytest.fixture
def site(yard: Any) -> Site:
    return Site(yard)


# ---- taking a job up ---------------------------------------------------------------------------------------------


def test_a_process_holds_the_job_in_the_same_attempt_and_the_worker_s_claim_is_worth_nothing(site: Site) -> None:
    (old,), now = [claimed.claim for claimed in site.worker._runner.claimed_jobs], site.yard.clock.now()
    claimed = site.yard.runner().adopt(site.job_id)
    assert (claimed.claim.epoch, claimed.job.attempts) == (old.epoch + 1, 1)
    with pytest.raises(LeaseLost):
        site.yard.runtime.store.transact(lambda tx: heartbeat(tx, old, now))
    site.yard.runtime.store.transact(lambda tx: heartbeat(tx, claimed.claim, now))


def test_a_process_of_an_attempt_that_is_over_leaves_the_job_of_the_next_one_alone(site: Site) -> None:
    """Its submission waited in a cluster that no worker watched any more."""
    site.engine.die("process-1", "lost")
    site.worker.look()
    assert site.job.attempts == 2
    assert site.yard.runner().adopt(site.job_id, attempt=1) is None
    claimed = site.yard.runner().adopt(site.job_id, attempt=2)
    assert (claimed.job.attempts, site.yard.runner().adopt(site.job_id, attempt=1)) == (2, None)


def test_the_executor_is_given_the_number_of_the_attempt(site: Site) -> None:
    site.engine.die("process-1", "lost")
    site.worker.look()
    assert site.engine.claimed == [f"{site.job_id}:1", f"{site.job_id}:2"]


def test_a_process_that_is_started_twice_does_no_harm(site: Site, undisturbed: str) -> None:
    """The older one writes nothing more, and steps that both have made are shown once."""
    older = site.process(5)
    newer = site.process()
    assert list(older) == []
    for _ in newer:
        pass
    assert site.job.status is JobStatus.SUCCEEDED
    assert site.yard.story(site.job_id) == STORY
    assert site.yard.digest(site.job_id) == undisturbed
    repeated = site.yard.events(site.job_id)[3]
    old = site.yard.runtime.store.read(lambda s: s.page(SupersededEvent, "by_event", repeated.id))
    assert (repeated.epoch, [one.epoch for one in old]) == (3, [2])


@pytest.mark.parametrize("status", ["queued", "ended"])
def test_a_job_that_no_worker_holds_is_not_taken_up(yard: Any, status: str) -> None:
    job = yard.sft(2)
    if status == "ended":
        yard.worker().run_until_idle()
    before = yard.job(job.id), yard.progress(job.id)
    assert yard.runner().adopt(job.id) is None
    assert (yard.job(job.id), yard.progress(job.id)) == before


def test_a_job_that_is_not_there_cannot_be_taken_up(yard: Any) -> None:
    with pytest.raises(RecordNotFound):
        yard.runner().adopt("unknown")


def test_the_handle_is_kept_during_an_attempt_and_not_by_the_next(site: Site) -> None:
    assert site.job.handle == "process-1"
    site.engine.die("process-1", "fell over")
    site.engine.foreign = {"process-2"}
    site.worker.look()
    assert (site.job.attempts, site.job.handle) == (2, "")


def test_a_handle_that_cannot_be_kept_leaves_the_job_running(build: Any) -> None:
    class Busy(MemoryStore):
        def transact(self, step: Any, durable: bool = True) -> Any:
            if not isinstance(step, DomainStep) and "note_handle" in step.__code__.co_names:
                raise StoreBusy("another process holds it")
            return super().transact(step, durable)

    site = Site(build.build(Busy(RECORDS)))
    assert (site.job.place, site.job.handle) == (QueueState.CLAIMED, "")
    site.engine.die("process-1", "fell over")
    site.worker.look()
    assert site.crashes == 1


# ---- waiting for room --------------------------------------------------------------------------------------------


@pytest.fixture
def crowded(yard: Any) -> Site:
    """A site whose executor has no room for its job."""
    return Site(yard, Engine(waiting={"process-1"}))


def wait_an_hour(site: Site) -> None:
    for _ in range(3600 // int(site.lease) * 3):
        site.worker.beat()
        site.worker.look()
        site.yard.clock.advance(site.lease / 3)


def test_a_job_that_waits_an_hour_for_room_is_queued_and_begins_when_there_is_some(
    crowded: Site, undisturbed: str
) -> None:
    wait_an_hour(crowded)
    shown = crowded.yard.training.get(crowded.job_id)
    assert (shown.status, shown.attempts, shown.training_start) == (JobStatus.QUEUED, 1, None)
    assert shown.waiting_for == "room in the executor of its worker"
    assert (crowded.engine.killed, crowded.crashes, crowded.engine.submitted) == ([], 0, 1)
    crowded.engine.waiting.clear()
    crowded.worker.look()
    shown = crowded.yard.training.get(crowded.job_id)
    assert (shown.status, shown.training_start, shown.waiting_for) == (
        JobStatus.RUNNING,
        crowded.yard.clock.now(),
        None,
    )
    for _ in crowded.process():
        pass
    assert crowded.yard.digest(crowded.job_id) == undisturbed


def test_the_time_to_begin_counts_from_when_the_process_runs(crowded: Site) -> None:
    wait_an_hour(crowded)
    crowded.engine.waiting.clear()
    for _ in range(2 * LEASES_TO_BEGIN - 1):
        crowded.worker.beat()
        crowded.worker.look()
        crowded.yard.clock.advance(crowded.lease / 2)
    assert crowded.engine.killed == []
    crowded.yard.clock.advance(crowded.lease)
    crowded.worker.beat()
    crowded.worker._watcher.look()
    assert crowded.engine.killed == ["process-1"]


def test_a_process_that_begins_before_its_worker_looks_runs(crowded: Site) -> None:
    crowded.worker.look()
    assert crowded.job.status is JobStatus.QUEUED
    steps = crowded.process(2)
    assert crowded.job.status is JobStatus.RUNNING
    crowded.engine.waiting.clear()
    crowded.worker.look()
    for _ in steps:
        pass
    assert crowded.job.status is JobStatus.SUCCEEDED


def test_a_job_that_has_begun_is_not_queued_again_by_a_list_that_is_late(crowded: Site) -> None:
    steps = crowded.process(2)
    crowded.worker.look()
    assert crowded.job.status is JobStatus.RUNNING
    for _ in steps:
        pass
    crowded.worker.look()
    assert crowded.job.status is JobStatus.SUCCEEDED


def test_a_job_that_is_cancelled_while_it_waits_for_room_ends_at_once(crowded: Site) -> None:
    crowded.worker.look()
    assert crowded.yard.training.cancel(crowded.job_id).status is JobStatus.CANCELLED
    crowded.worker.look()
    assert crowded.engine.killed == ["process-1"]


@pytest.mark.parametrize("how", ["its worker is lost", "its worker stops"])
def test_a_job_that_waited_for_room_in_vain_is_not_charged(crowded: Site, how: str) -> None:
    crowded.worker.look()
    if how == "its worker is lost":
        crowded.yard.lose_worker()
    else:
        crowded.worker.stop()
    assert (crowded.job.status, crowded.job.place, crowded.crashes) == (JobStatus.QUEUED, QueueState.READY, 0)


# ---- its death ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", [0, 1, 3, 5, 8])
def test_a_death_is_noticed_at_the_next_look_and_the_job_ends_as_if_nothing_had_happened(
    site: Site, undisturbed: str, items: int
) -> None:
    site.process(items)
    site.engine.die("process-1", "fell over")
    site.worker.look()
    assert site.engine.running == ["process-2"]
    assert site.job.attempts == 2
    for _ in site.process():
        pass
    assert site.yard.story(site.job_id) == STORY
    assert site.yard.digest(site.job_id) == undisturbed


def test_a_process_that_dies_before_it_takes_the_job_up_counts_too(site: Site) -> None:
    site.engine.die("process-1", "fell over")
    site.worker.look()
    assert (site.job.attempts, site.crashes) == (2, 1)


def test_a_process_that_leaves_in_order_before_it_takes_the_job_up_is_a_tenth_of_a_death(site: Site) -> None:
    """So three preemptions while it loads fail no job; one that never begins fails in the end."""
    for number in range(1, LOSSES_PER_CRASH * site.yard.runtime.settings.max_crashes + 1):
        assert (site.job.status, site.crashes, site.progress.losses) == (JobStatus.RUNNING, 0, number - 1)
        site.engine.die(f"process-{number}")
        site.worker.look()
    assert site.job.status is JobStatus.FAILED


def test_three_deaths_without_progress_fail_the_job_with_the_last_one_s_reason(site: Site) -> None:
    for number in (1, 2, 3):
        assert site.job.status is JobStatus.RUNNING
        site.process(1)
        site.engine.die(f"process-{number}", f"fault {number}\0\ud800")
        site.worker.look()
    assert site.job.status is JobStatus.FAILED
    assert "lost its worker 3 times" in site.job.error_message
    assert site.job.error_message.endswith("At last fault 3\\0\\ud800")
    assert "fault 2" not in site.job.error_message


def test_a_process_that_ends_in_order_without_ending_its_job_counts_as_a_death(site: Site) -> None:
    site.process(1)
    site.engine.die("process-1")
    site.worker.look()
    assert (site.job.attempts, site.crashes) == (2, 1)


def test_a_job_that_ended_is_not_a_death_and_makes_room_for_the_next(site: Site) -> None:
    for _ in site.process():
        pass
    other = site.yard.sft(2, "other")
    site.worker.look()
    assert site.engine.submitted == 1
    site.engine.die("process-1", "fell over after its job's end")
    site.worker.look()
    assert site.job.status is JobStatus.SUCCEEDED
    assert site.yard.job(other.id).place is QueueState.CLAIMED


def test_a_job_that_its_process_gave_back_is_not_a_death(site: Site) -> None:
    site.process(2).close()
    site.engine.die("process-1")
    site.worker.look()
    assert (site.job.attempts, site.crashes) == (2, 0)


class Busy(MemoryStore):
    busy = False

    def transact(self, step: Any, durable: bool = True) -> Any:
        if self.busy:
            raise StoreBusy("another process holds it")
        return super().transact(step, durable)


def test_a_death_during_which_the_store_is_busy_is_counted_later(build: Any) -> None:
    store = Busy(RECORDS)
    site = Site(build.build(store, max_crashes=1))
    site.engine.die("process-1", "the first word")
    store.busy = True
    with pytest.raises(StoreBusy):
        site.worker.look()
    site.engine.dead.clear()
    store.busy = False
    site.worker.look()
    assert "the first word" in site.job.error_message


def test_a_cancelled_job_whose_process_dies_is_cancelled(site: Site) -> None:
    site.process(2)
    site.yard.training.cancel(site.job_id)
    site.engine.die("process-1", "fell over")
    site.worker.look()
    assert site.job.status is JobStatus.CANCELLED


# ---- when it is needed no more -----------------------------------------------------------------------------------


def test_a_frozen_process_loses_its_job_after_the_lease_and_is_killed_at_once(site: Site, undisturbed: str) -> None:
    frozen = site.process(4)
    site.worker.look()
    site.yard.clock.advance(site.lease)
    site.worker.beat()
    site.worker.look()
    assert site.engine.killed == ["process-1"]
    site.worker.look()
    assert site.engine.running == ["process-2"]
    for _ in site.process():
        pass
    assert list(frozen) == []
    assert site.yard.story(site.job_id) == STORY
    assert site.yard.digest(site.job_id) == undisturbed


def test_a_process_that_beats_is_left_alone(site: Site) -> None:
    runner: Runner = site.yard.runner()
    runner.adopt(site.job_id)
    for _ in range(3 * LEASES_TO_BEGIN):
        runner.beat()
        site.worker.look()
        site.yard.clock.advance(site.lease / 2)
    assert (site.engine.killed, site.job.attempts) == ([], 1)


def test_a_process_that_is_still_loading_is_spoken_for_by_its_worker(site: Site) -> None:
    other = site.yard.runner()
    for _ in range(2 * LEASES_TO_BEGIN - 1):
        site.worker.beat()
        other.reclaim_expired()
        site.worker.look()
        site.yard.clock.advance(site.lease / 2)
    assert (site.engine.killed, site.job.attempts, site.crashes) == ([], 1, 0)


def test_a_process_that_never_takes_its_job_up_is_killed_and_counted(site: Site) -> None:
    for _ in range(2 * LEASES_TO_BEGIN):
        site.worker.beat()
        site.worker.look()
        site.yard.clock.advance(site.lease / 2)
    site.worker.look()
    assert site.engine.killed == ["process-1"]
    site.worker.look()
    assert site.engine.running == ["process-2"]
    assert site.crashes == 1


def test_a_process_that_does_not_begin_is_named_as_the_reason(build: Any) -> None:
    site = Site(build.build(max_crashes=1))
    site.yard.clock.advance(LEASES_TO_BEGIN * site.lease)
    site.worker.beat()
    site.worker._watcher.look()
    site.worker._watcher.look()
    assert site.job.error_message.endswith("At last its process did not begin within 300 seconds")


@pytest.mark.parametrize("why", ["succeeded", "cancelled", "to be cancelled"])
def test_a_process_whose_job_is_over_has_the_lease_to_leave(site: Site, why: str) -> None:
    steps = site.process(2)
    if why != "succeeded":
        site.yard.training.cancel(site.job_id)
    if why != "to be cancelled":
        for _ in steps:
            pass
    site.worker.look()
    site.yard.clock.advance(site.lease - 1)
    site.worker._watcher.look()
    assert site.engine.killed == []
    site.yard.clock.advance(1)
    site.worker._watcher.look()
    assert site.engine.killed == ["process-1"]
    site.worker._watcher.look()
    assert site.job.ended
    assert site.worker._runner.claimed_jobs == ()


def test_the_process_of_a_job_that_is_deleted_is_killed(site: Site) -> None:
    site.process(2)
    site.yard.runtime.store.transact(lambda tx: tx.remove(Job, site.job_id))
    site.worker.look()
    assert site.engine.killed == ["process-1"]
    site.worker.look()
    assert site.worker._runner.claimed_jobs == ()


# ---- stopping and coming back ------------------------------------------------------------------------------------


def test_stopping_gives_back_what_a_process_had_to_be_killed_for(site: Site) -> None:
    site.process(2)
    site.worker.stop()
    assert site.engine.closed
    assert (site.job.status, site.crashes) == (JobStatus.QUEUED, 0)


def test_stopping_leaves_alone_what_its_process_gave_back_itself(site: Site) -> None:
    site.process(2).close()
    other = site.yard.claim()
    site.worker.stop()
    assert (site.job.status, site.progress.epoch) == (JobStatus.RUNNING, other.claim.epoch)


def test_stopping_while_the_store_is_busy_stops_all_the_same(build: Any) -> None:
    store = Busy(RECORDS)
    site = Site(build.build(store))
    store.busy = True
    site.worker.stop()
    assert site.worker._runner.claimed_jobs == ()


def restarted(site: Site) -> Worker:
    """Another worker on the same machine, after the first was killed."""
    worker = Worker(site.yard.process(), site.engine)
    worker._watcher.reattach()
    return worker


def test_a_worker_that_comes_back_counts_the_dead_at_once(site: Site) -> None:
    site.process(1)
    site.engine.die("process-1", "gone")
    restarted(site).look()
    assert (site.job.attempts, site.crashes, site.job.handle) == (2, 1, "process-2")


def test_a_worker_that_comes_back_leaves_the_living_alone_and_watches_them(site: Site, undisturbed: str) -> None:
    steps = site.process(2)
    worker = restarted(site)
    for _ in range(3):
        site.yard.clock.advance(LEASES_TO_BEGIN * site.lease)
        site.worker.beat()
        worker._watcher.look()
    assert (site.engine.killed, site.job.attempts) == ([], 1)
    next(steps)
    site.engine.die("process-1", "gone")
    worker.look()
    assert site.job.attempts == 2
    for _ in site.process():
        pass
    assert site.yard.digest(site.job_id) == undisturbed


def test_what_was_found_again_takes_no_room_and_survives_the_worker(site: Site) -> None:
    site.process(2)
    worker, other = restarted(site), site.yard.sft(2, "other")
    worker.look()
    assert site.yard.job(other.id).place is QueueState.CLAIMED
    worker.stop()
    assert (site.job.status, site.job.attempts) == (JobStatus.RUNNING, 1)


def test_what_another_machine_runs_is_left_to_the_lease(site: Site) -> None:
    site.engine.foreign = {"process-1"}
    site.engine.die("process-1", "gone")
    worker = restarted(site)
    worker.look()
    assert site.job.attempts == 1
    site.yard.clock.advance(site.lease)
    worker.look()
    assert site.job.attempts == 2


def test_a_death_that_two_workers_see_counts_once(site: Site) -> None:
    site.process(1)
    other = restarted(site)
    site.engine.die("process-1", "gone")
    site.worker._watcher.look()
    other._watcher.look()
    assert site.crashes == 1


def test_a_job_that_was_killed_with_its_worker_is_not_charged_a_crash(site: Site) -> None:
    site.process(1)
    site.engine.running.clear()
    worker = restarted(site)
    worker._watcher._settle(worker._watcher._watches[0], Ended("gone", preempted=True))
    assert (site.job.status, site.crashes, site.progress.losses) == (JobStatus.QUEUED, 0, 1)


# ---- what outlives its worker --------------------------------------------------------------------------------------


@pytest.fixture
def cluster(yard: Any) -> Site:
    """A job in a cluster, whose worker is announced as alive."""
    site = Site(yard, Engine(leaves=True))
    site.worker.beat()
    return site


def successor(site: Site) -> Worker:
    """The worker of the next deployment, with an executor of its own."""
    site.engine.own.clear()
    worker = Worker(site.yard.process(), site.engine)
    worker.beat()
    worker.look()
    return worker


def ages(site: Site, worker: Worker, leases: int = 3) -> None:
    """Time passes for a worker, which beats and looks."""
    for _ in range(2 * leases):
        site.yard.clock.advance(site.lease / 2)
        worker.beat()
        worker.look()


def test_a_running_job_outlives_its_worker_and_ends_as_if_nothing_had_happened(cluster: Site, undisturbed: str) -> None:
    steps = cluster.process(3)
    cluster.worker.stop()
    assert (cluster.job.status, cluster.job.attempts, cluster.engine.running) == (JobStatus.RUNNING, 1, ["process-1"])
    after = successor(cluster)
    assert [watch.handle for watch in after._watcher._watches] == ["process-1"]
    for _ in steps:
        pass
    after.look()
    assert (cluster.job.attempts, cluster.engine.submitted) == (1, 1)
    assert cluster.yard.story(cluster.job_id) == STORY
    assert cluster.yard.digest(cluster.job_id) == undisturbed


def test_the_death_of_a_job_that_was_left_running_is_counted_by_the_next_worker(cluster: Site) -> None:
    cluster.process(1)
    cluster.worker.stop()
    after = successor(cluster)
    cluster.engine.die("process-1", "fell over")
    after.look()
    assert (cluster.job.attempts, cluster.crashes, cluster.job.handle) == (2, 1, "process-2")


def test_a_job_that_waits_for_room_keeps_its_place_when_its_worker_is_replaced(cluster: Site) -> None:
    cluster.engine.waiting.add("process-1")
    cluster.worker.look()
    cluster.worker.stop()
    assert (cluster.job.status, cluster.job.place) == (JobStatus.QUEUED, QueueState.CLAIMED)
    after = successor(cluster)
    ages(cluster, after, LEASES_TO_BEGIN)
    assert (cluster.job.attempts, cluster.engine.submitted, cluster.engine.killed) == (1, 1, [])
    cluster.engine.waiting.clear()
    after.look()
    for _ in cluster.process():
        pass
    assert cluster.job.status is JobStatus.SUCCEEDED


def test_a_process_that_begins_while_no_worker_is_there_adopts_its_job(cluster: Site) -> None:
    cluster.engine.waiting.add("process-1")
    cluster.worker.look()
    cluster.worker.stop()
    cluster.yard.clock.advance(10 * cluster.lease)
    steps = cluster.process(2)
    after = successor(cluster)
    for _ in steps:
        pass
    after.look()
    assert (cluster.job.status, cluster.job.attempts, cluster.job.error_message) == (JobStatus.SUCCEEDED, 1, None)


def test_a_process_that_has_not_begun_is_kept_alive_by_the_next_worker(cluster: Site) -> None:
    cluster.worker.stop()
    after = successor(cluster)
    ages(cluster, after, LEASES_TO_BEGIN - 2)
    assert (cluster.job.status, cluster.job.attempts, cluster.engine.killed) == (JobStatus.RUNNING, 1, [])
    ages(cluster, after)
    assert cluster.engine.killed == ["process-1"], "it has as long to begin as any other"


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "running"])
def test_what_a_worker_on_another_machine_leaves_is_found_when_it_has_stood_still_for_the_lease(
    cluster: Site, waits: bool
) -> None:
    if waits:
        cluster.engine.waiting.add("process-1")
        cluster.worker.look()
    else:
        cluster.process(1)
    other = successor(cluster)
    assert other._watcher._watches == [], "its worker is alive"
    for _ in range(6):
        cluster.yard.clock.advance(cluster.lease / 2)
        if not waits:
            cluster.runner.beat()
        other.beat()
        other.look()
    assert [watch.handle for watch in other._watcher._watches] == ["process-1"]
    assert (cluster.job.attempts, cluster.engine.submitted) == (1, 1)
    assert bool(other._runner.claimed_jobs) is waits


def test_the_workers_are_read_only_where_a_process_may_be_left(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    monkeypatch.setattr(process_monitor, "live_workers", lambda *given: read.append(given) or [])
    other = Worker(site.yard.runtime, site.engine)
    other._watcher.reattach()
    assert len(read) == 1
    site.yard.runtime.store.transact(lambda tx: tx.replace(attrs.evolve(tx.get(Job, site.job_id), handle="")))
    other._watcher.reattach()
    assert len(read) == 1


# ---- what never has room, and what meets an outage ---------------------------------------------------------------


def test_a_job_that_will_never_have_room_gives_its_place_back_and_says_why(yard: Any) -> None:
    site = Site(yard, HopelessEngine())
    site.worker.look()
    assert (site.job.place, site.job.refusals, site.engine.killed) == (QueueState.HELD_BACK, 1, ["process-1"])
    assert site.yard.jobs.get(site.job_id).waiting_for == "its next attempt: no node is so large"
    assert site.worker.has_room()
    assert site.crashes == 0


def test_a_worker_looks_at_the_artifacts_when_the_process_of_a_job_has_met_their_outage(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = site.process(2)
    runner = site.runner
    site.yard.trainer.before = raising(ArtifactsUnavailable("the object store cannot be reached"))
    for _ in steps:
        pass
    assert (site.job.place, site.progress.faults, site.crashes) == (QueueState.HELD_BACK, 0, 0)
    assert runner.doubts_artifacts
    looks: list[int] = []
    monkeypatch.setattr(type(site.yard.runtime.artifacts), "check", lambda self: looks.append(1))
    site.engine.die("process-1")
    site.worker.look()
    assert looks == [1]
    site.worker.look()
    assert looks == [1]


def raising(error: Exception) -> Callable[[str], None]:
    def before(item: str) -> None:
        raise error

    return before
