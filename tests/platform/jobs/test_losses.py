"""Jobs that lose their worker: who is charged and who runs alone; what hangs; what the disk breaks."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

import attrs
import pytest

from modelyard.domain.job import ENDED, Claim, Gain, Job, JobKind, JobProgress, JobStatus, Needs, QueueState
from modelyard.domain.worker import WorkerRecord
from modelyard.errors import OutcomeUnknown, StorageFull, StoreBusy, StoreError
from modelyard.platform.evaluations.service import Evaluations
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.expired_claims import PAGE
from modelyard.platform.jobs.queue import LOSSES_PER_CRASH, MAX_FAULTS, WorkerLoss, crash
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.worker import Worker
from modelyard.process_identity import machine
from modelyard.protocols import ExecutorState, Running, Store, Tx

T = TypeVar("T")

ROWS = 10
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, 6)), ("training_ended", 0)]
DEAD = f"{machine()}/{2**22 + 1}-1"
"""A process of this machine that cannot be."""


def check_finished_as_if_undisturbed(yard: Any, job_id: str, digest: str) -> None:
    assert yard.job(job_id).status is JobStatus.SUCCEEDED
    assert yard.story(job_id) == STORY
    assert yard.digest(job_id) == digest


# ---- suspects ----------------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Shared:
    """An executor whose jobs are all in one process, and do nothing until a test runs them."""

    isolates: bool = False
    submitted: list[tuple[str, Needs]] = attrs.field(factory=list)

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        self.submitted.append((claim.job_id, needs))
        return claim.job_id

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return dict.fromkeys(handles, Running())

    def cancel(self, handle: str) -> None:
        raise AssertionError("a thread cannot be ended")

    def reattach(self, handle: str, alive: bool) -> bool:
        return False

    def close(self, leave: bool = False) -> None:
        pass


def begin(yard: Any, concurrency: int = 8, isolates: bool = False) -> tuple[Worker, Shared]:
    """A worker that has claimed what it may."""
    executor = Shared(isolates)
    worker = Worker(yard.runtime, executor, concurrency)
    worker.look()
    return worker, executor


def end(yard: Any, worker: Worker) -> None:
    """Run the jobs of a worker to their end."""
    for claimed in worker._runner.claimed_jobs:
        worker._runner.run(claimed)


def test_what_was_in_a_process_that_died_runs_alone_before_it_is_charged_and_the_poison_dies_alone(yard: Any) -> None:
    healthy = [yard.sft(4, f"m{number}") for number in range(4)]
    poison = yard.sft(4, "poison")
    everything = {job.id for job in (*healthy, poison)}
    assert {id for id, _ in begin(yard)[1].submitted} == everything
    yard.lose_worker()
    assert {yard.progress(id).crashes for id in everything} == {0}
    deaths = 0
    while poison.refresh().status not in ENDED or not all(job.refresh().status in ENDED for job in healthy):
        worker, executor = begin(yard)
        ((job_id, needs),) = executor.submitted
        assert needs.alone
        worker.look()
        assert len(executor.submitted) == 1, "nothing runs next to a suspect"
        if job_id == poison.id:
            yard.lose_worker()
            deaths += 1
        else:
            end(yard, worker)
    assert [job.refresh().status for job in healthy] == [JobStatus.SUCCEEDED] * 4
    assert (poison.refresh().status, deaths) == (JobStatus.FAILED, 3)


def test_a_suspect_waits_until_the_process_is_empty_and_no_later_job_passes_it(yard: Any) -> None:
    for model in "ab":
        yard.sft(4, model)
    begin(yard)
    yard.lose_worker()
    worker, executor = begin(yard)
    yard.sft(4, "c")
    end(yard, worker)
    worker.look()
    assert [needs.alone for _, needs in executor.submitted] == [True, True]
    end(yard, worker)
    worker.look()
    assert [needs.alone for _, needs in executor.submitted] == [True, True, False]


def test_a_suspect_does_not_join_what_runs_and_holds_back_what_came_after_it(yard: Any) -> None:
    first = yard.sft(4, "a")
    begin(yard)
    yard.sft(4, "b")
    worker, executor = begin(yard)
    yard.lose_worker(worker._runner)
    yard.sft(4, "c")
    worker.look()
    assert len(executor.submitted) == 1
    end(yard, worker)
    worker.look()
    assert [id for id, needs in executor.submitted if needs.alone] == [first.id] == [executor.submitted[-1][0]]


def test_suspects_run_side_by_side_where_each_has_its_own_process(yard: Any) -> None:
    for model in "abc":
        yard.sft(4, model)
    begin(yard, isolates=True)
    yard.lose_worker()
    _, executor = begin(yard, isolates=True)
    assert [needs.alone for _, needs in executor.submitted] == [True] * 3


def test_a_suspect_that_is_lost_before_a_process_of_its_own_has_adopted_it_is_charged_a_tenth(yard: Any) -> None:
    job = yard.sft(4)
    for losses in range(LOSSES_PER_CRASH):
        begin(yard, isolates=True)
        yard.lose_worker()
        assert job.refresh().status is JobStatus.QUEUED
        assert (yard.progress(job.id).crashes, yard.progress(job.id).losses) == (0, losses)


def test_a_suspect_that_is_lost_once_a_process_has_adopted_it_is_charged(yard: Any) -> None:
    job = yard.sft(4)
    begin(yard, isolates=True)
    yard.lose_worker()
    begin(yard, isolates=True)
    yard.runner().adopt(job.id)
    yard.lose_worker()
    assert (yard.progress(job.id).crashes, yard.progress(job.id).losses) == (1, 0)


def lose_at(yard: Any, item: str) -> None:
    """Have the worker that claims the next job die just before an item of its training."""
    runner, lost = yard.runner(), []

    def before(coming: str) -> None:
        if coming == item and not lost:
            lost.append(coming)
            yard.lose_worker()

    yard.trainer.before = before
    runner.run(yard.claim(runner))
    yard.trainer.before = lambda coming: None
    assert lost


@pytest.mark.parametrize("taken_up_before", [0, 3])
def test_a_process_that_is_killed_while_the_model_loads_again_and_again_fails_no_job_that_works(
    yard: Any, undisturbed: str, taken_up_before: int
) -> None:
    job = yard.sft(ROWS)
    if taken_up_before:
        yard.abandon(taken_up_before)
        yard.lose_worker()
    for losses in range(1, LOSSES_PER_CRASH + 1):
        lose_at(yard, "started")
        assert (yard.progress(job.id).crashes, yard.progress(job.id).losses) == (0, losses)
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


@pytest.mark.parametrize("again", [False, True])
def test_a_process_that_dies_once_the_model_is_loaded_is_charged_to_its_job(yard: Any, again: bool) -> None:
    job = yard.sft(ROWS)
    if again:
        lose_at(yard, "started")
    lose_at(yard, "step 1")
    assert (yard.progress(job.id).crashes, yard.progress(job.id).losses) == (1, int(again))


def test_a_process_that_ends_by_itself_while_the_model_loads_is_charged_to_its_job(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.claim().note(Gain.LOADING)
    loss, types = WorkerLoss("a signal of its own", preempted=False, alone=True), yard.runtime.job_types
    event_id, now = yard.runtime.ids(), yard.clock.now()
    yard.runtime.store.transact(lambda tx: crash(tx, types, tx.get(Job, job.id), event_id, now, 3, loss))
    assert (yard.progress(job.id).crashes, yard.progress(job.id).losses) == (1, 0)


def test_an_evaluation_that_is_killed_before_any_answer_has_come_is_charged_a_tenth(yard: Any) -> None:
    row = {"prompt": "x", "expected": "x"}
    Evaluations(yard.runtime, yard.principal).submit("quiz", "echo", [row], "exact_match", project="p")
    [submitted] = yard.runtime.store.read(lambda snapshot: [job.id for job in snapshot.page(Job, "all")])
    for losses in range(1, LOSSES_PER_CRASH + 1):
        runner = yard.runner()
        steps = runner.steps(yard.claim(runner))
        next(steps)
        yard.abandoned.append(steps)
        yard.lose_worker()
        assert (yard.progress(submitted).crashes, yard.progress(submitted).losses) == (0, losses)


def test_a_suspect_that_has_saved_its_state_is_one_no_longer(yard: Any) -> None:
    job = yard.sft(ROWS)
    begin(yard)
    yard.lose_worker()
    assert yard.progress(job.id).suspect
    yard.abandon(3)
    assert yard.progress(job.id).suspect
    yard.lose_worker()
    yard.abandon(4)
    assert not yard.progress(job.id).suspect


def test_a_server_that_is_killed_again_and_again_fails_no_job_that_works(yard: Any, undisturbed: str) -> None:
    """Each time within the same steps, before a state is saved."""
    job = yard.sft(ROWS)
    for _ in range(12):
        yard.abandon(2)
        yard.lose_worker()
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


# ---- who is gone, and who hangs ----------------------------------------------------------------------------------


def test_a_job_of_a_process_that_is_dead_on_this_machine_is_taken_at_once(
    yard: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    yard.sft(2)
    claimed = yard.claim()
    yard.runtime.store.transact(lambda tx: tx.add(WorkerRecord("w", 1, yard.clock.now(), process=DEAD)))
    runner = yard.runner()
    runner.reclaim_expired()
    assert yard.job(claimed.job.id).status is JobStatus.RUNNING
    assert not alive(yard.runtime)
    monkeypatch.setattr(claimed, "progress", attrs.evolve(claimed.progress, process=DEAD))
    yard.runtime.store.transact(lambda tx: tx.replace(claimed.progress))
    runner.reclaim_expired()
    assert yard.job(claimed.job.id).status is JobStatus.QUEUED


def test_waiting_for_a_job_of_a_worker_that_was_killed_on_this_machine_takes_no_time(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.abandon(2)
    killed = attrs.evolve(yard.progress(job.id), process=DEAD)
    yard.runtime.store.transact(lambda tx: tx.replace(killed))
    yard.runtime.store.transact(lambda tx: tx.add(WorkerRecord(killed.worker_id, 1, yard.clock.now(), process=DEAD)))
    began = yard.clock.monotonic()
    assert job.result().step == 1
    assert yard.clock.monotonic() - began < yard.runtime.settings.poll


def test_waiting_for_a_job_with_a_silent_worker_warns_once(yard: Any, caplog: pytest.LogCaptureFixture) -> None:
    job = yard.sft(ROWS)
    yard.abandon(2)
    events = job.events()
    next(events)
    assert caplog.text == ""
    assert [event.type for event in events][-1] == "training_ended"
    reported = f"job {job.id}: waiting up to 30 s for the lease of a worker that stopped responding"
    assert caplog.messages.count(reported) == 1
    assert yard.clock.monotonic() < 2 * yard.runtime.settings.lease


@pytest.mark.slow
def test_every_job_that_is_held_is_watched_however_many_there_are(yard: Any) -> None:
    now, runner = yard.clock.now(), yard.runner()
    names = [f"job-{number:04}" for number in range(10 * PAGE + 1)]

    def add_claimed(tx: Tx) -> None:
        for name in names:
            job = Job(name, JobKind.SFT, "acme", "p", name, now, status=JobStatus.RUNNING, place=QueueState.CLAIMED)
            tx.add(job)
            tx.add(JobProgress(name, now, epoch=1, worker_id="gone", held=True))

    yard.runtime.store.transact(add_claimed)
    for _ in range(11):
        runner.reclaim_expired()
    yard.clock.advance(yard.runtime.settings.lease)
    yard.runtime.store.transact(lambda tx: tx.replace(attrs.evolve(tx.get(JobProgress, names[0]), beat=1)))
    for _ in range(12):
        runner.reclaim_expired()
    assert yard.runtime.store.read(lambda s: [one.job_id for one in s.page(JobProgress, "by_held", True)]) == names[:1]


def test_a_job_that_records_nothing_for_longer_than_its_kind_may_is_given_back_and_charged(
    build: Any, caplog: pytest.LogCaptureFixture
) -> None:
    yard = build.build(longest_step=100.0)
    job, seen = yard.sft(ROWS), []

    def before(item: str) -> None:
        if item == "step 1":
            yard.clock.advance(99)
            runner.beat()
            seen.append(job.status)
            yard.clock.advance(1)
            runner.beat()
            seen.append(job.status)
            runner.beat()

    yard.trainer.before, runner = before, yard.runner()
    claimed = yard.claim(runner)
    runner.run(claimed)
    assert seen == [JobStatus.RUNNING, JobStatus.QUEUED]
    assert (yard.progress(job.id).crashes, runner.claimed_jobs) == (1, ())
    assert "it recorded nothing for 100 seconds" in caplog.text
    assert yard.story(job.id) == STORY[:1], "what hung writes nothing more"


def test_a_job_that_hangs_keeps_its_place_in_the_process_until_it_ends(build: Any) -> None:
    yard = build.build(longest_step=100.0)
    first, _ = yard.sft(ROWS), yard.sft(ROWS, "other")
    executor = Shared()
    worker = Worker(yard.runtime, executor)

    def before(item: str) -> None:
        if item == "step 1" and not worker._runner.claimed_jobs[0].hung:
            yard.clock.advance(100)
            worker.beat()
            worker.look()
            assert [id for id, _ in executor.submitted] == [first.id]

    yard.trainer.before = before
    worker.look()
    end(yard, worker)
    worker.look()
    assert len(executor.submitted) == 2


# ---- faults of the store -----------------------------------------------------------------------------------------


@attrs.define(eq=False)
class Faulty:
    """A store whose disk fails each write from the n-th on, until `writes` is set again."""

    inner: Store
    writes: int
    fault: Exception
    blocking: bool = False
    durability: str = "none"

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        self.writes -= 1
        if self.writes <= 0:
            raise self.fault
        return self.inner.transact(step, durable)

    def read(self, query: Callable[[Any], T]) -> T:
        return self.inner.read(query)


@pytest.mark.parametrize(
    "fault", [StorageFull("full"), StoreError("input/output error"), StoreBusy("busy"), OutcomeUnknown("lost")]
)
@pytest.mark.parametrize("writes", range(1, 9))
def test_a_fault_of_the_disk_gives_the_job_back_whose_end_is_written_once_it_passes(
    build: Any, undisturbed: str, fault: Exception, writes: int
) -> None:
    yard = build.build()
    job = yard.sft(ROWS)
    store = Faulty(yard.runtime.store, writes + 1, fault)
    runner = Runner(attrs.evolve(yard.runtime, store=store))
    runner.run(yard.claim(runner))
    assert job.status is JobStatus.RUNNING
    store.writes = 1000
    runner.beat()
    charged = not isinstance(fault, (StoreBusy, OutcomeUnknown))
    assert (job.status, yard.progress(job.id).faults, runner.claimed_jobs) == (JobStatus.QUEUED, charged, ())
    yard.clock.advance(yard.runtime.settings.lease)
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_a_fault_that_does_not_pass_fails_the_job_after_longer_and_longer_pauses(build: Any) -> None:
    yard = build.build()
    job = yard.sft(ROWS)

    def full(item: str) -> None:
        raise StorageFull("the disk is full")

    yard.trainer.before = full
    began = yard.clock.monotonic()
    yard.worker().run_until_idle()
    assert (job.status, job.refresh().attempts) == (JobStatus.FAILED, MAX_FAULTS)
    assert job.refresh().error_message == "it failed 10 times without any progress: the disk is full"
    assert yard.clock.monotonic() - began >= 1 + 2 + 4 + 8 + 16 + 4 * 30


@pytest.mark.parametrize("fault", [StoreBusy("it is away"), OutcomeUnknown("the connection was lost")])
def test_an_outage_of_the_store_is_charged_to_no_job_however_often_it_hits_one(build: Any, fault: Exception) -> None:
    yard = build.build()
    job = yard.sft(ROWS)

    def away(item: str) -> None:
        raise fault

    yard.trainer.before, worker = away, yard.worker()
    for _ in range(3 * MAX_FAULTS):
        worker.run_until_idle()
        assert str(fault) in yard.jobs.get(job.id).waiting_for
        yard.clock.advance(yard.runtime.settings.lease)
    assert (job.status, yard.progress(job.id).faults) == (JobStatus.QUEUED, 0)
    yard.trainer.before = lambda item: None
    worker.run_until_idle()
    assert job.status is JobStatus.SUCCEEDED
