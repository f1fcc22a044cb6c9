"""Jobs that fail, die, lose their lease or are slow at a step: the run ends as if nothing had happened, or says why."""

from random import Random
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.job import JobProgress, JobStatus
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import JobFailed, TrainingError
from modelyard.executors.inline import InlineExecutor
from modelyard.parts.doubles.faults.faults import Faults, Killed, Slow, TakenOver
from modelyard.testing.clock import ManualClock

ROWS = [
    {"messages": [{"role": "user", "content": f"question {n}"}, {"role": "assistant", "content": f"answer {n}"}]}
    for n in range(6)
]


@pytest.fixture
def platform(faults: Faults) -> Any:
    with faults.open_platform(trainers=[TabularTrainer(save_every=2)], randomness=Random(7).randbytes) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        yield platform


def begun(platform: Any) -> Any:
    return platform.training.sft("p/m", ROWS, batch_size=1)


def undisturbed() -> str:
    with open_platform(clock=ManualClock(), randomness=Random(7).randbytes) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        return str(begun(platform).result().digest)


def steps(job: Any) -> list[int]:
    return [n for n, event in enumerate((e for e in job.events() if e.type == "gradient_step"), 1)]


def test_a_job_fails_at_a_step_and_says_why(faults: Faults, platform: Any) -> None:
    faults.step(TrainingError("the loss is not a number; try a lower learning_rate"), at=4)
    job = begun(platform)
    with pytest.raises(JobFailed, match="the loss is not a number"):
        job.result()
    assert (job.status, len(steps(job))) == (JobStatus.FAILED, 3)
    assert begun(platform).result().step == 1


@pytest.mark.parametrize("at", [1, 3, 6])
def test_a_killed_job_stays_claimed_until_its_lease_is_over_and_then_ends_as_if_undisturbed(
    faults: Faults, clock: ManualClock, platform: Any, at: int
) -> None:
    faults.step(Killed(), at=at)
    job = begun(platform)
    platform.worker().run_next()
    assert (job.status, job.refresh().attempts) == (JobStatus.RUNNING, 1)
    platform.worker().run_until_idle()
    assert job.status is JobStatus.RUNNING
    clock.advance(platform._runtime.settings.lease)
    platform.worker().run_until_idle()
    assert (job.status, job.refresh().attempts) == (JobStatus.SUCCEEDED, 2)
    assert job.result().digest == undisturbed()
    assert steps(job) == [1, 2, 3, 4, 5, 6]
    assert not faults.unused


def test_a_caller_that_waits_for_a_job_takes_over_from_dead_workers(
    faults: Faults, clock: ManualClock, platform: Any
) -> None:
    faults.step(Killed(), at=2, times=2)
    job = begun(platform)
    assert job.result().digest == undisturbed()
    assert job.refresh().attempts == 3
    assert 60 <= clock.monotonic() < 62


def test_a_job_that_kills_what_runs_it_again_and_again_fails(faults: Faults, platform: Any) -> None:
    faults.step(Killed(), at=1, times=10)
    with pytest.raises(JobFailed, match="crash"):
        begun(platform).result()
    assert len(faults.happened) == platform._runtime.settings.max_crashes


def test_a_worker_does_not_beat_for_a_job_that_was_killed(faults: Faults, clock: ManualClock, platform: Any) -> None:
    faults.step(Killed(), at=2)
    with platform.worker(executor=InlineExecutor()):
        job = begun(platform)
        clock.advance(minutes=1)
        assert (job.status, job.refresh().attempts) == (JobStatus.SUCCEEDED, 2)


def test_a_job_that_was_taken_over_is_finished_by_one_and_written_to_by_one(faults: Faults, platform: Any) -> None:
    faults.step(TakenOver(), at=3)
    job = begun(platform)
    platform.worker().run_next()
    assert (job.status, len(list(job_steps(platform, job)))) == (JobStatus.QUEUED, 2)
    assert job.result().digest == undisturbed()
    assert steps(job) == [1, 2, 3, 4, 5, 6]


def job_steps(platform: Any, job: Any) -> list[Any]:
    return [event for event in platform.training.events(job.id).page(limit=100) if event.type == "gradient_step"]


def test_a_slow_step_keeps_its_lease_since_the_heartbeat_continues(
    faults: Faults, clock: ManualClock, platform: Any
) -> None:
    faults.step(Slow(600), at=3)
    job = begun(platform)
    seen: list[Any] = []
    other = platform.worker()
    for minute in range(1, 10):
        clock.after(60 * minute, lambda: seen.append((other.run_next(), job.refresh().last_heartbeat)))
    platform.worker().run_next()
    assert (job.status, job.refresh().attempts, clock.monotonic()) == (JobStatus.SUCCEEDED, 1, 600)
    assert [ran for ran, _ in seen] == [False] * 9
    assert [(beat - seen[0][1]).total_seconds() for _, beat in seen] == [60.0 * n for n in range(9)]


def test_a_job_whose_process_dies_before_it_begins_is_counted_at_once(
    faults: Faults, clock: ManualClock, platform: Any
) -> None:
    faults.submit(Killed())
    with platform.worker():
        job = begun(platform)
        clock.advance(5)
        assert (job.status, job.refresh().attempts) == (JobStatus.SUCCEEDED, 2)


def test_a_job_that_the_executor_refuses_goes_back_and_is_tried_again(
    faults: Faults, clock: ManualClock, platform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    faults.submit(OSError("no more processes"), times=2)
    with platform.worker():
        job = begun(platform)
        clock.advance(5)
        assert job.status is JobStatus.SUCCEEDED
    assert [record.exc_info[1].args for record in caplog.records if record.exc_info] == [("no more processes",)] * 2


def test_rl_is_disturbed_too(faults: Faults, platform: Any) -> None:
    from modelyard import Rollout, gather

    def attempt(seed: int) -> Any:
        rollout = Rollout(platform.chat, model="local/p/m", max_tokens=4, seed=seed)
        rollout.ask("hello")
        return rollout.trajectory(reward=float(seed))

    faults.step(TrainingError("out of memory"))
    with pytest.raises(JobFailed, match="out of memory"):
        platform.training.rl("p/m", [gather(attempt, range(2))]).result()


def test_a_job_cannot_be_killed_where_its_store_is_not_known(faults: Faults) -> None:
    faults.step(Killed())
    with open_platform(clock=faults.clock, trainers=[faults.trainer(TabularTrainer())]) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        with pytest.raises(JobFailed, match=r"faults\.store"):
            begun(platform).result()


def running(snapshot: Any) -> Any:
    return snapshot.page(JobProgress, "by_held", True)


def test_of_several_running_jobs_the_right_one_is_killed(faults: Faults, platform: Any) -> None:
    platform.models.create("other", project="p", base_model="tabular-mini")
    faults.step(Killed(), at=5)
    first = platform.training.sft("p/other", ROWS, batch_size=2)
    faults.step(Slow(10), at=2)
    second = begun(platform)
    faults.clock.after(5, lambda: platform.worker().run_next())
    platform.worker().run_next()
    assert (first.status, second.status) == (JobStatus.SUCCEEDED, JobStatus.RUNNING)
    assert [one.job_id for one in platform._runtime.store.read(running)] == [second.id]
