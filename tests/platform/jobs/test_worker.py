"""Workers: they run jobs, show that they live, take over from the dead, and survive whatever a trainer does."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from typing import Any, NoReturn, TypeVar

import attrs
import pytest

from modelyard.clock import SystemClock
from modelyard.domain.events import JobChanged, JobEventRecorded, LeaseTaken
from modelyard.domain.job import JobKind, JobStatus, Needs, QueueState, SupersededEvent
from modelyard.domain.schema import RECORDS
from modelyard.domain.training import GRADIENT_STEP
from modelyard.domain.worker import WorkerProcess, WorkerRecord
from modelyard.errors import StoreBusy, TrainingError
from modelyard.executors.inline import InlineExecutor
from modelyard.executors.thread import ThreadExecutor
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.jobs.runner import BEATS_PER_LEASE, Runner
from modelyard.platform.jobs.shares import demands_of, ready_needs
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.liveness import LivenessMonitor
from modelyard.protocols import SavedState, Started, Step, Store, Trained, Tx
from modelyard.stores.memory import MemoryStore
from polling import until

JOB_TYPES = job_types_of(())


T = TypeVar("T")

ROWS = 10
STORY = [("training_started", 0), *(("gradient_step", number) for number in range(1, 6)), ("training_ended", 0)]


def check_finished_as_if_undisturbed(yard: Any, job_id: str, digest: str) -> None:
    assert yard.job(job_id).status is JobStatus.SUCCEEDED
    assert yard.story(job_id) == STORY
    assert [event.seq for event in yard.events(job_id)] == list(range(1, len(STORY) + 1))
    assert yard.digest(job_id) == digest
    assert [one.step for one in yard.models.checkpoints(yard.job(job_id).lane)] == [0, 1]


# ---- running -----------------------------------------------------------------------------------------------------


def test_a_worker_runs_jobs_in_the_calling_thread_until_none_is_left(yard: Any) -> None:
    jobs = [yard.sft(4, model) for model in ("a", "b", "a")]
    worker = yard.worker()
    assert worker.run_next()
    worker.run_until_idle()
    assert not worker.run_next()
    assert [job.status for job in jobs] == [JobStatus.SUCCEEDED] * 3
    assert [job.step for job in jobs] == [1, 1, 2]


def test_each_item_is_stored_before_the_next_is_requested(yard: Any) -> None:
    job = yard.sft(4)
    seen = {}
    yard.trainer.before = lambda item: seen.setdefault(item, yard.story(job.id))
    yard.worker().run_until_idle()
    assert seen["started"] == []
    assert seen["step 1"] == STORY[:1]
    assert seen["state 2"] == STORY[:3]
    assert seen["trained"] == STORY[:3]


def test_a_job_leaves_its_checkpoint_s_files_and_no_others(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.worker().run_until_idle()
    (checkpoint,) = [one for one in yard.models.checkpoints(yard.job(job.id).lane) if one.step]
    assert yard.files() == {file["artifact"] for file in checkpoint.files.values()}


def test_the_observer_sees_every_status(yard: Any) -> None:
    yard.sft(2)
    yard.worker().run_until_idle()
    assert [one.status.value for one in yard.seen if isinstance(one, JobChanged)] == ["queued", "running", "succeeded"]


def test_a_job_continues_from_the_checkpoint_before_it_across_kinds(yard: Any) -> None:
    first, second = yard.sft(4), yard.training.rl(yard.model(), yard.groups(1.0, 2.0))
    yard.worker().run_until_idle()
    one, two = (first.result(), second.result())
    assert (one.step, two.step) == (1, 2)
    assert two.parent_id == one.id


# ---- crashes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", range(9))
def test_a_job_whose_worker_is_lost_after_any_item_ends_as_if_nothing_had_happened(
    yard: Any, undisturbed: str, items: int
) -> None:
    job = yard.sft(ROWS)
    steps = yard.abandon(items)
    yard.lose_worker()
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)
    kept = yard.files()
    for _ in steps:
        pass
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)
    assert yard.files() == kept


@pytest.mark.parametrize("items", [0, 3, 5, 8])
def test_the_same_holds_in_a_file(yard_on_disk: Any, undisturbed: str, items: int) -> None:
    job = yard_on_disk.sft(ROWS)
    yard_on_disk.abandon(items)
    yard_on_disk.lose_worker()
    yard_on_disk.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard_on_disk, job.id, undisturbed)


def test_a_job_whose_workers_are_lost_at_every_other_item_still_ends_alike(yard: Any, undisturbed: str) -> None:
    job = yard.sft(ROWS)
    for items in (3, 3, 4, 4, 2):
        yard.abandon(items)
        yard.lose_worker()
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_the_observer_gets_the_position_of_a_repeated_step(yard: Any) -> None:
    """Abandoned after step 4, with step 2 saved: steps 3 and 4 run again and keep their places."""
    job = yard.sft(ROWS)
    yard.abandon(6)
    yard.lose_worker()
    yard.worker().run_until_idle()
    reported = [one.seq for one in yard.seen if isinstance(one, JobEventRecorded) and one.type == GRADIENT_STEP]
    places = [event.seq for event in yard.events(job.id) if event.type == GRADIENT_STEP]
    assert reported == places[:4] + places[2:]


def test_the_data_of_a_repeated_step_are_those_of_the_attempt_that_survived(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.abandon(5)
    before = yard.events(job.id)
    yard.lose_worker()
    yard.worker().run_until_idle()
    after = yard.events(job.id)[: len(before)]
    assert [event.id for event in before] == [event.id for event in after]
    assert [event.epoch for event in after] == [1, 1, 1, 2]
    old = yard.runtime.store.read(lambda s: s.page(SupersededEvent, "by_event", before[3].id))
    assert [one.epoch for one in old] == [1]


class Killed(BaseException):
    """The process is gone."""


@attrs.define
class MortalStore:
    """Dies at its nth write, before or after the commit, and answers nothing any more."""

    inner: Store
    writes: int
    after_commit: bool
    blocking: bool = False
    durability: str = "none"

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        self.writes -= 1
        if self.writes < 0 or (self.writes == 0 and not self.after_commit):
            raise Killed
        result = self.inner.transact(step, durable)
        if self.writes == 0:
            raise Killed
        return result

    def read(self, query: Callable[[Any], T]) -> T:
        if self.writes <= 0:
            raise Killed
        return self.inner.read(query)


@pytest.mark.parametrize("after_commit", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("writes", range(1, 12))
def test_a_process_that_is_killed_around_any_of_its_commits_changes_nothing_in_the_end(
    build: Any, undisturbed: str, writes: int, after_commit: bool
) -> None:
    yard = build.build()
    job = yard.sft(ROWS)
    doomed = Runner(attrs.evolve(yard.runtime, store=MortalStore(yard.runtime.store, writes, after_commit)))
    try:
        doomed.run(yard.claim(doomed))
    except Killed:
        yard.lose_worker()
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_a_missing_or_altered_saved_state_restarts_the_job(build: Any, undisturbed: str) -> None:
    for harm in ("gone", "altered"):
        yard = build.build()
        job = yard.sft(ROWS)
        yard.abandon(6)
        (state,) = yard.job(job.id).resume.values()
        yard.runtime.artifacts.remove(state["artifact"])
        if harm == "altered":
            yard.runtime.artifacts._kept[state["artifact"]] = b'["other weights", 2]'
        yard.lose_worker()
        yard.worker().run_until_idle()
        check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_a_worker_that_lost_its_job_writes_nothing_more_and_stops(yard: Any) -> None:
    job = yard.sft(ROWS)
    zombie = yard.abandon(3)
    yard.lose_worker()
    before, files = yard.events(job.id), yard.files()
    assert list(zombie) == []
    assert yard.events(job.id) == before
    assert yard.files() == files
    assert yard.job(job.id).status is JobStatus.QUEUED


def test_a_job_that_loses_three_workers_without_a_step_fails_and_the_lane_continues(yard: Any) -> None:
    job, other = yard.sft(ROWS), yard.sft(2)
    for _ in range(3):
        yard.abandon(1)
        yard.lose_worker()
    assert job.status is JobStatus.FAILED
    assert "lost its worker 3 times" in job.refresh().error_message
    yard.worker().run_until_idle()
    assert other.step == 1


def test_a_lease_depends_on_idle_time_and_not_on_any_wall_clock(yard: Any) -> None:
    yard.sft(ROWS)
    holder, watcher = yard.runner(), yard.runner()
    steps = holder.steps(yard.claim(holder))
    next(steps)
    yard.abandoned.append(steps)
    lease = yard.runtime.settings.lease
    watcher.reclaim_expired()
    for _ in range(5):
        yard.clock.advance(lease - 1)
        yard.clock.jump(1e6)
        holder.beat()
        watcher.reclaim_expired()
    assert not [one for one in yard.seen if isinstance(one, LeaseTaken)]
    yard.clock.advance(lease)
    watcher.reclaim_expired()
    assert [one.from_worker for one in yard.seen if isinstance(one, LeaseTaken)] == [holder.id]


def test_a_runner_does_not_take_its_own_jobs_away(yard: Any) -> None:
    yard.sft(ROWS)
    runner = yard.runner()
    claimed = yard.claim(runner)
    yard.lose_worker(runner)
    assert yard.job(claimed.job.id).place is QueueState.CLAIMED


# ---- cancelling --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("items", range(1, 9))
def test_a_cancelled_job_stops_at_its_next_item_and_leaves_no_artifacts(yard: Any, items: int) -> None:
    job = yard.sft(ROWS)
    runner = yard.runner()
    steps = runner.steps(yard.claim(runner))
    for _ in range(items):
        next(steps)
    job.cancel()
    assert len(list(steps)) <= 1
    assert job.status is JobStatus.CANCELLED
    assert job.refresh().error_message == "cancelled by host"
    assert yard.story(job.id)[-1] == ("training_failed", 0)
    assert yard.files() == set()
    assert yard.models.get(yard.job(job.id).lane).last_step == 0


def test_a_cancellation_that_comes_before_the_last_write_wins(yard: Any) -> None:
    job = yard.sft(4)
    yard.trainer.before = lambda item: job.cancel() if item == "trained" else None
    yard.worker().run_until_idle()
    assert job.status is JobStatus.CANCELLED
    assert [name for name, _ in yard.story(job.id)].count("training_failed") == 1
    assert yard.files() == set()


def test_a_cancelled_job_whose_worker_is_dead_ends_when_it_is_taken_over(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.abandon(3)
    job.cancel()
    yard.lose_worker()
    assert job.status is JobStatus.CANCELLED


def test_a_cancelled_job_that_hangs_in_a_step_is_ended_after_the_lease(yard: Any) -> None:
    job = yard.sft(ROWS)
    runner = yard.runner()
    steps = runner.steps(yard.claim(runner))
    next(steps)
    job.cancel()
    runner.beat()
    yard.clock.advance(yard.runtime.settings.lease - 1)
    runner.beat()
    assert job.status is JobStatus.RUNNING
    yard.clock.advance(1)
    runner.beat()
    assert job.status is JobStatus.CANCELLED
    assert list(steps) == []


# ---- faults ------------------------------------------------------------------------------------------------------


def raising(error: BaseException, at: str) -> Callable[[str], None]:
    def before(item: str) -> None:
        if item == at:
            raise error

    return before


FAULTS = (
    ValueError(),
    MemoryError(),
    RecursionError(),
    GeneratorExit(),
    StopIteration(),
    Killed(),
    OSError("\ud800\0"),
)


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("at", ["started", "step 1", "step 4", "trained"])
def test_any_error_of_a_trainer_fails_only_its_job(
    yard: Any, error: BaseException, at: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "modelyard")  # pytest-xdist cannot pass on a log with half a character
    job, other = yard.sft(ROWS), yard.sft(2, "other")
    yard.trainer.before = raising(error, at)
    worker = yard.worker()
    assert worker.run_next()
    assert job.status is JobStatus.FAILED
    assert "start a new job" in job.refresh().error_message
    assert yard.story(job.id)[-1] == ("training_failed", 0)
    yard.trainer.before = lambda _: None
    worker.run_until_idle()
    assert other.status is JobStatus.SUCCEEDED
    assert len(yard.files()) == 1


@pytest.mark.parametrize(("error", "traced"), [(ValueError("odd"), True), (TrainingError("too little data"), False)])
def test_the_log_of_a_worker_has_the_cause_of_a_failure_with_a_traceback_if_unexpected(
    yard: Any, error: Exception, traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "modelyard")
    job = yard.sft(ROWS)
    yard.trainer.before = raising(error, "step 1")
    yard.worker().run_next()
    reported = [record for record in caplog.records if job.id in record.getMessage()][-1]
    assert str(error) in reported.getMessage()
    assert any(record.exc_info for record in caplog.records) is traced


def test_an_interrupt_in_the_main_thread_gives_the_job_back_and_continues(yard: Any, undisturbed: str) -> None:
    job = yard.sft(ROWS)
    for interrupt in (KeyboardInterrupt, SystemExit):
        yard.trainer.before = raising(interrupt(), "step 4")
        with pytest.raises(interrupt):
            yard.worker().run_next()
        assert yard.job(job.id).status is JobStatus.QUEUED
        assert yard.progress(job.id).crashes == 0
    yard.trainer.before = lambda _: None
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_an_interrupt_that_a_trainer_raises_in_another_thread_fails_the_job(yard: Any) -> None:
    job = yard.sft(ROWS)
    yard.trainer.before = raising(SystemExit(), "step 1")
    thread = threading.Thread(target=yard.worker().run_next)
    thread.start()
    thread.join()
    assert job.status is JobStatus.FAILED


class Odd:
    """A trainer that yields what it is given."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def methods(self, base_model: str) -> tuple[str, ...]:
        return ("sft",)

    def train(self, *_: Any) -> Iterator[Any]:
        return iter(self.items)


@pytest.mark.parametrize(
    ("items", "reported"),
    [
        ((), "in the place of a result"),
        ((Started(1), "nonsense"), "in the place of a result"),
        ((Step(1, {}),), "before Started"),
        ((Started(2), Step(2, {})), "step 2 after 0"),
        ((Started(2), Step(1, {}), Step(1, {})), "step 1 after 1"),
        ((Started(2), Step(1, {}), SavedState(2, {})), "saved step 2 after 1"),
        ((Started(1), Step(1, {"loss": float("nan")})), "step 1 has loss = nan"),
        ((Started(1), Step(1, {"loss": float("inf")})), "lower learning_rate"),
        ((Started(1), Step(1, {"loss": "0.5"})), "not a finite number"),
        ((Started(1), Step(1, {"loss": None})), "not a finite number"),
        ((Started(1), Step(1, {"loss": True})), "not a finite number"),
        ((Started(0), Trained({}, {"loss": float("nan")})), "the result has loss"),
        ((Started(0), Trained({"a": [b"x"], "b": iter(lambda: NoReturn.x, 1)}, {})), "AttributeError"),
        ((Started(0), Trained({"a": [b"x"], "b": [1]}, {})), "TypeError"),
    ],
)
def test_a_trainer_that_breaks_its_laws_fails_the_job_with_the_broken_law(
    yard: Any, items: tuple[Any, ...], reported: str
) -> None:
    job = yard.sft(2)
    yard.runtime = attrs.evolve(yard.runtime, trainers=(Odd(*items),))
    yard.worker().run_until_idle()
    assert job.status is JobStatus.FAILED
    assert reported in job.refresh().error_message
    assert yard.files() == set()


def without_trainer(yard: Any) -> Worker:
    """Another worker on the same store, which has no trainer."""
    return Worker(attrs.evolve(yard.runtime, trainers=(), liveness=LivenessMonitor()), InlineExecutor())


def test_a_worker_leaves_a_job_alone_whose_trainer_it_lacks_and_another_runs_it(yard: Any) -> None:
    job = yard.sft(2)
    without_trainer(yard).run_until_idle()
    assert (job.refresh().status, job.refresh().attempts) == (JobStatus.QUEUED, 0)
    yard.worker().run_until_idle()
    assert job.refresh().status is JobStatus.SUCCEEDED


def test_a_waiting_job_names_the_workers_that_could_run_it_or_that_none_can(yard: Any) -> None:
    job = yard.sft(2)
    assert job.refresh().waiting_for == "a worker: none is alive"
    unable = without_trainer(yard)
    unable.look()
    none = "a worker that can run sft of 'base-model': none that is alive has the trainer or the model for it"
    assert job.refresh().waiting_for == none
    assert yard.jobs.get(job.id).waiting_for == none
    assert [one.waiting_for for one in yard.jobs.list()] == [none]
    able = yard.worker()
    able.beat()
    assert job.refresh().waiting_for == f"one of the workers that can run sft of 'base-model': {able.id}"
    able.run_until_idle()
    unable.look()
    assert (job.refresh().waiting_for, unable._record.declines) == (None, ())


def test_a_worker_passes_over_jobs_that_it_cannot_run_without_reading_each(yard: Any) -> None:
    reads = []

    class Counting:
        def __init__(self, snapshot: Any) -> None:
            self._snapshot = snapshot

        def page(self, *given: Any, **more: Any) -> Any:
            reads.append(found := self._snapshot.page(*given, **more))
            return found

    for number in range(50):
        yard.sft(2, f"m{number}")
    other = yard.new_job("elsewhere", JobKind.RESCORE)
    yard.runtime.store.transact(lambda tx: enqueue(tx, other, 1000))
    needs = yard.runtime.store.read(lambda snapshot: ready_needs(Counting(snapshot), demands_of(snapshot, "acme")))
    assert needs == [Needs(JobKind.SFT, "base-model"), Needs(JobKind.RESCORE)]
    assert sum(map(len, reads)) == 2
    claimed = Runner(attrs.evolve(yard.runtime, trainers=())).claim()
    assert claimed is not None
    assert claimed.job.id == other.id


def test_the_oldest_job_that_can_be_run_is_claimed_first_for_any_needs(yard: Any) -> None:
    first, second = yard.new_job("a", JobKind.RESCORE), yard.new_job("b", JobKind.EVALUATE)
    for job in (first, second):
        yard.runtime.store.transact(lambda tx, job=job: enqueue(tx, job, 1000))
    assert yard.claim().job.id == first.id


@pytest.mark.parametrize("status", ["offered", "withdrawn"])
def test_an_evaluation_is_left_to_workers_that_have_its_model(yard: Any, status: str) -> None:
    job = yard.new_job("run", JobKind.EVALUATE, base_model="echo" if status == "offered" else "withdrawn")
    yard.runtime.store.transact(lambda tx: enqueue(tx, job, 1000))
    assert (yard.runner().claim() is not None) is (status == "offered")


def test_training_data_that_are_gone_fail_the_job(yard: Any) -> None:
    job = yard.sft(2)
    yard.runtime.artifacts.remove(yard.job(job.id).spec["artifact"])
    yard.worker().run_until_idle()
    assert "gone" in job.refresh().error_message


def test_a_trainer_that_cannot_be_closed_changes_nothing(yard: Any) -> None:
    class Clinging(Odd):
        def train(self, *_: Any) -> Iterator[Any]:
            yield Started(0)
            try:
                yield Trained({}, {})
            finally:
                raise RuntimeError("I will not go")

    job = yard.sft(2)
    yard.runtime = attrs.evolve(yard.runtime, trainers=(Clinging(),))
    yard.worker().run_until_idle()
    assert job.status is JobStatus.SUCCEEDED


def test_a_store_that_is_busy_sends_the_job_back_and_it_is_not_lost(build: Any, undisturbed: str) -> None:
    class Busy(MortalStore):
        def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
            self.writes -= 1
            if self.writes == 0:
                raise StoreBusy("another process holds it")
            return self.inner.transact(step, durable)

        def read(self, query: Callable[[Any], T]) -> T:
            return self.inner.read(query)

    yard = build.build()
    job = yard.sft(ROWS)
    runner = Runner(attrs.evolve(yard.runtime, store=Busy(yard.runtime.store, 6, False)))
    runner.run(yard.claim(runner))
    assert yard.job(job.id).status is JobStatus.QUEUED
    assert (yard.progress(job.id).crashes, yard.progress(job.id).faults) == (0, 0)
    assert runner.claim() is None, "it claims nothing for a while"
    yard.runtime.clock.sleep(yard.runtime.settings.lease)
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


def test_the_work_is_chosen_by_kind_and_a_missing_kind_is_left_alone(yard: Any) -> None:
    job = yard.new_job("lane", JobKind.EVALUATE)
    other = yard.new_job("other", JobKind.RESCORE)
    done: list[str] = []

    def evaluate(claimed: Any) -> Iterator[None]:
        done.append(claimed.job.id)
        claimed.record("row_judged", {"score": 1}, step=1, total=1)
        yield

    for one in (job, other):
        yard.runtime.store.transact(lambda tx, one=one: enqueue(tx, one, 10))
    runner = Runner(yard.runtime, {JobKind.EVALUATE: attrs.evolve(JOB_TYPES[JobKind.EVALUATE], run=evaluate)})
    runner.run(yard.claim(runner))
    assert runner.claim() is None
    assert runner.claim("other") is None
    assert done == [job.id]
    assert yard.story(job.id)[0] == ("row_judged", 1)
    assert yard.job(other.id).status is JobStatus.QUEUED


# ---- threads of its own ------------------------------------------------------------------------------------------


@pytest.fixture
def lively(build: Any) -> Any:
    """A yard on the real clock, whose workers look often."""
    yard = build.build(MemoryStore(RECORDS), poll=0.002, lease=30.0)
    yard.runtime = attrs.evolve(yard.runtime, clock=SystemClock())
    return yard


def test_a_worker_that_is_entered_runs_what_comes_and_signs_off(lively: Any) -> None:
    with Worker(lively.runtime, ThreadExecutor(2), 2) as worker:
        assert alive(lively.runtime)
        jobs = [lively.sft(4, model) for model in ("a", "b", "a")]
        assert [job.wait().step for job in jobs] == [1, 1, 2]
        assert {lively.progress(job.id).worker_id for job in jobs} == {worker.id}
    assert not alive(lively.runtime)
    assert lively.runtime.store.read(lambda s: s.count(WorkerRecord, "all", "worker")) == 0


def test_jobs_of_different_models_run_side_by_side_and_those_of_one_in_order(lively: Any) -> None:
    both, running = threading.Barrier(2, timeout=60), []

    def before(item: str) -> None:
        if item == "started":
            running.append(threading.current_thread().name)
            both.wait()

    lively.trainer.before = before
    with Worker(lively.runtime, ThreadExecutor(4), 4):
        first = [lively.sft(2, model) for model in ("a", "b", "a", "b")]
        ended = [lively.job(job.wait().id).ended_at for job in first]
    started = [lively.job(job.id).started_at for job in first]
    assert started[2] >= ended[0]
    assert started[3] >= ended[1]
    assert len(running) == 4


def test_leaving_gives_running_jobs_back_after_their_current_item(lively: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def before(item: str) -> None:
        if item == "step 3":
            begun.set()
            assert go_on.wait(60)

    lively.trainer.before = before
    worker = Worker(lively.runtime, ThreadExecutor(1))
    threading.Thread(target=lambda: worker._stopping.wait(60) and go_on.set(), daemon=True).start()
    with worker:
        job = lively.sft(ROWS)
        assert begun.wait(60)
    left = lively.progress(job.id)
    assert (job.status, left.crashes, left.step) == (JobStatus.QUEUED, 0, 3)
    worker.stop()


def test_the_heartbeat_continues_during_a_slow_step(build: Any) -> None:
    yard = build.build(MemoryStore(RECORDS), lease=0.01, poll=0.002)
    yard.runtime = attrs.evolve(yard.runtime, clock=SystemClock())
    beats: list[int] = []

    def before(item: str) -> None:
        if item == "step 2":
            at = yard.progress(job.id).beat
            until(lambda: yard.progress(job.id).beat >= at + 3)
            beats.append(at)

    yard.trainer.before = before
    job = yard.sft(4)
    yard.worker().run_until_idle()
    assert job.status is JobStatus.SUCCEEDED
    assert beats


def test_a_worker_whose_platform_is_closed_under_it_ends_by_itself(lively: Any) -> None:
    worker = Worker(lively.runtime, ThreadExecutor(1))
    with worker:
        lively.runtime.store.close()
        worker._loop._thread.join(60)
        assert not worker._loop._thread.is_alive()


def test_an_executor_that_refuses_sends_the_job_back(yard: Any) -> None:
    class Refusing(ThreadExecutor):
        def submit(self, *_: Any) -> str:
            raise RuntimeError("no more threads")

    job = yard.sft(2)
    worker = Worker(yard.runtime, Refusing())
    worker.look()
    assert yard.job(job.id).place is QueueState.READY
    assert worker._runner.claimed_jobs == ()


# ---- who is alive ------------------------------------------------------------------------------------------------


def test_a_worker_counts_as_alive_until_it_has_stood_still_for_the_lease(yard: Any) -> None:
    worker = yard.worker()
    assert not alive(yard.runtime)
    worker.beat()
    assert alive(yard.runtime)
    yard.clock.advance(yard.runtime.settings.lease - 1)
    assert alive(yard.runtime)
    worker.beat()
    yard.clock.advance(yard.runtime.settings.lease - 1)
    assert alive(yard.runtime)
    yard.clock.advance(yard.runtime.settings.lease)
    assert not alive(yard.runtime)


def records(yard: Any) -> Mapping[str, int]:
    """Return the workers that are announced, and the beats of their processes."""
    found = yard.runtime.store.read(lambda s: s.page(WorkerRecord, "all", "worker"))
    beats = {one.id: one.beat for one in yard.runtime.store.read(lambda s: s.page(WorkerProcess, "all"))}
    return {record.id: beats[record.process_id] for record in found}


def test_the_record_of_a_dead_worker_is_removed_and_one_that_wakes_up_announces_itself_again(yard: Any) -> None:
    frozen, other = yard.worker(), yard.worker()
    frozen.beat()
    other.look()
    yard.clock.advance(yard.runtime.settings.lease)
    other.look()
    assert records(yard) == {}
    frozen.beat()
    assert set(records(yard)) == {frozen.id}


def test_a_worker_that_wakes_up_while_it_is_being_forgotten_is_kept(build: Any) -> None:
    yard = build.build()
    frozen, other = yard.worker(), yard.worker()
    frozen.beat()
    other.look()
    yard.clock.advance(yard.runtime.settings.lease)
    other.runtime = attrs.evolve(yard.runtime, store=Between(yard.runtime.store, frozen.beat))
    other.look()
    assert records(yard) == {frozen.id: 1}


@attrs.define
class Between:
    """A store before whose next write something else happens."""

    inner: Store
    first: Callable[[], None]

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        happens, self.first = self.first, lambda: None
        happens()
        return self.inner.transact(step, durable)

    def read(self, query: Callable[[Any], T]) -> T:
        return self.inner.read(query)


def test_closing_a_run_halfway_gives_the_job_back(yard: Any, undisturbed: str) -> None:
    job = yard.sft(ROWS)
    runner = yard.runner()
    with closing(runner.steps(yard.claim(runner))) as steps:
        for _ in range(4):
            next(steps)
    assert yard.job(job.id).place is QueueState.READY
    assert yard.progress(job.id).crashes == 0
    yard.worker().run_until_idle()
    check_finished_as_if_undisturbed(yard, job.id, undisturbed)


# ---- many of them --------------------------------------------------------------------------------------------------


def announced(yard: Any, number: int) -> list[Worker]:
    """Workers that have announced themselves and looked once, without threads of their own."""
    workers = [yard.worker() for _ in range(number)]
    for worker in workers:
        worker.beat()
    for worker in workers:
        worker.look()
    return workers


def test_the_first_of_many_processes_watch_over_the_others_and_the_rest_sleep(yard: Any) -> None:
    beat, poll = yard.runtime.settings.lease / BEATS_PER_LEASE, yard.runtime.settings.poll
    workers = announced(yard, 5)
    assert [worker._watches_others for worker in workers] == [True, True, True, False, False]
    assert [worker._until_next_turn() for worker in workers] == [poll] * 5  # they do not hear of jobs yet
    for worker in workers:
        worker._process._ready = yard.runtime.store.subscribe("jobs/ready", lambda: None)
    assert [worker._until_next_turn() for worker in workers] == [poll, poll, poll, beat, beat]


def test_when_the_first_workers_are_gone_others_take_their_place_and_their_jobs(yard: Any) -> None:
    *_, last = announced(yard, 4)
    job = yard.sft(4)
    yard.abandon(1)
    last.look()
    assert (last._watches_others, yard.job(job.id).attempts) == (False, 1)
    for _ in range(3):
        yard.clock.advance(yard.runtime.settings.lease)
        last.beat()
        last.look()
    assert (last._watches_others, yard.job(job.id).attempts) == (True, 2)
    assert yard.job(job.id).status is JobStatus.SUCCEEDED
