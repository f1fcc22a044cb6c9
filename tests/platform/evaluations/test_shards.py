"""A run in several shards has the numbers of a run in one, no matter who works on them and what dies meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, Settings, open_platform
from modelyard.domain.evaluation.run import EvaluationRun, RunState
from modelyard.domain.job import Job, JobStatus
from modelyard.errors import Conflict, InvalidInput, JobFailed, NotFound, RateLimited, RunAlreadyFinished
from modelyard.platform.evaluations import job as job_module
from modelyard.platform.evaluations import shards
from modelyard.platform.evaluations.shards import ANOTHER, last_jobs
from modelyard.platform.jobs.runner import Runner
from modelyard.testing.clock import ManualClock

ROWS = [{"prompt": f"row {n}", "expected": f"row {n}" if n % 3 else "other"} for n in range(11)]
TRIALS = 2


@attrs.define(eq=False)
class Site:
    """A platform in memory with a clock of its own. Its ids are numbers, so that two runs alike have equal reports."""

    clock: ManualClock = attrs.field(factory=ManualClock)
    settings: Settings = attrs.field(factory=Settings)
    platform: Platform = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.platform = open_platform(clock=self.clock, settings=self.settings)

    def submit(self, count: int, **options: Any) -> EvaluationRun:
        options = {"trials": TRIALS, "seed": 5, "concurrency": 2, **options}
        return self.platform.evaluations.submit(
            "quiz", "echo", ROWS, ["exact_match", "contains"], shards=count, **options
        )

    def jobs(self, run: EvaluationRun) -> list[Job]:
        return self.platform._runtime.store.read(lambda snapshot: last_jobs(snapshot, run.id))

    def runner(self) -> Runner:
        return Runner(self.platform._runtime)

    def begin(self, run: EvaluationRun, shard: int, writes: int) -> Iterator[None]:
        """Begin a shard and make so many writes of it."""
        runner = self.runner()
        claimed = runner.claim(self.jobs(run)[shard].lane)
        assert claimed is not None
        steps = runner.steps(claimed)
        for _ in range(writes):
            next(steps, None)
        return steps

    def lose(self) -> None:
        """Let the leases of all workers run out."""
        runner = self.runner()
        runner.reclaim_expired()
        self.clock.advance(self.platform._runtime.settings.lease)
        runner.reclaim_expired()

    def work(self) -> None:
        self.platform.worker().run_until_idle()

    def state(self, run: EvaluationRun) -> RunState:
        return self.platform.evaluations.runs.get(run.id).state

    def report(self, run: EvaluationRun) -> str:
        return report(self.platform, run.id)


def report(platform: Platform, run_id: str) -> str:
    """The report of a run, as text and in full, without what names this run, its time and its kills."""
    result = platform.evaluations.result(run_id)
    found = platform.evaluations.report(run_id).aggregate
    text = f"{result}\n{attrs.evolve(found, possibly_repeated=0)}"
    for known in (run_id, run_id[-8:], result.run.started_at.isoformat(), f"{result.run.started_at:%Y-%m-%d %H:%M:%S}"):
        text = text.replace(known, "")
    return text


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    with made.platform:
        yield made


@pytest.fixture
def expected(site: Site) -> str:
    run = site.submit(1)
    site.work()
    return site.report(run)


# ---- the same numbers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [2, 3, 7, 50])
def test_the_report_is_the_same_in_any_number_of_shards(site: Site, expected: str, shards: int) -> None:
    run = site.submit(shards)
    assert len(site.jobs(run)) == min(shards, len(ROWS))
    site.work()
    assert site.report(run) == expected
    found = site.platform.evaluations.result(run.id).rows
    assert sorted((row.index, row.trial) for row in found) == [(n, t) for n in range(len(ROWS)) for t in range(TRIALS)]


@pytest.mark.parametrize("writes", [2, 4])
def test_a_shard_that_is_lost_is_continued_where_it_was(site: Site, expected: str, writes: int) -> None:
    run = site.submit(3)
    begun = site.begin(run, 1, writes)
    done = site.platform.evaluations.runs.status(run.id).completed_rows
    site.lose()
    site.work()
    assert site.report(run) == expected
    for _ in begun:
        pass
    again = [row for row in site.platform.evaluations.predictions.list(run_id=run.id) if row.possibly_repeated]
    assert (done > 0, len(again) < len(ROWS) * TRIALS) == (True, True)
    assert {row.index % 3 for row in again if row.index is not None} <= {1}


@examples(4)
@given(st.data(), st.sampled_from([2, 3, 7]))
def test_the_report_is_the_same_whatever_is_killed(data: st.DataObject, shards: int) -> None:
    site = Site(settings=Settings(max_crashes=10))
    with site.platform:
        undisturbed, run = site.submit(1), site.submit(shards)
        abandoned = []
        for _ in range(data.draw(st.integers(1, 4), "kills")):
            ready = [n for n, job in enumerate(site.jobs(run)) if job.status is JobStatus.QUEUED]
            if ready:
                shard = data.draw(st.sampled_from(ready), "shard")
                abandoned.append(site.begin(run, shard, data.draw(st.integers(0, 6), "writes")))
                site.lose()
        site.work()
        for steps in abandoned:  # a worker that was taken for dead wakes up, and writes nothing more
            for _ in steps:
                pass
        assert site.report(run) == site.report(undisturbed)


def test_two_platforms_share_the_shards_of_a_run_and_either_follows_it(tmp_path: Path) -> None:
    with ExitStack() as stack:
        one, two = (stack.enter_context(open_platform(tmp_path / "yard.db")) for _ in range(2))
        options: Any = {"trials": TRIALS, "seed": 5}
        alone = one.evaluations.run("quiz", "echo", ROWS, ["exact_match", "contains"], **options)
        run = one.evaluations.submit("quiz", "echo", ROWS, ["exact_match", "contains"], shards=4, **options)
        for platform in (one, two, two, one):
            assert platform.worker().run_next()
            status, same = (each.evaluations.runs.status(run.id) for each in (one, two))
            assert status == same
        seen = [event.id for event in one.evaluations.events(run.id, follow=False)]
        assert seen == [event.id for event in two.evaluations.events(run.id)]
        assert two.evaluations.result(run.id).run.summary == alone.run.summary


def test_run_waits_for_shards_and_does_their_work_where_no_worker_is_alive(site: Site, expected: str) -> None:
    shown: list[tuple[int, int | None, float | None]] = []
    result = site.platform.evaluations.run(
        "quiz",
        "echo",
        ROWS,
        ["exact_match", "contains"],
        trials=TRIALS,
        seed=5,
        shards=3,
        progress=lambda done, total, numbers: shown.append((done, total, numbers.get("score"))),
    )
    assert site.report(result.run) == expected
    assert (shown[-1][:2], shown[-1][2]) == ((22, 22), pytest.approx(result.score))
    assert [done for done, _, _ in shown] == sorted({done for done, _, _ in shown})


def test_a_rescoring_in_shards_is_the_same_as_one_in_one(site: Site) -> None:
    source = site.submit(1)
    site.work()
    runs = [site.platform.evaluations.submit_rescore(source.id, "contains", shards=shards) for shards in (1, 3)]
    site.work()
    one, three = (site.platform.evaluations.result(run.id) for run in runs)
    assert one.run.summary == three.run.summary
    assert [(row.index, row.scores) for row in one.rows] == [(row.index, row.scores) for row in three.rows]


def test_shards_that_end_at_the_same_time_complete_the_run_once(site: Site, expected: str, monkeypatch: Any) -> None:
    """Each has read that the other is still at work; the transaction of the second sees that it was the last."""
    looked: list[bool] = []
    real: Callable[..., bool] = job_module._Attempt._is_last

    def late(self: Any, snapshot: Any) -> bool:
        looked.append(real(self, snapshot))
        return looked[-1] and len(looked) > 2

    monkeypatch.setattr(job_module._Attempt, "_is_last", late)
    run = site.submit(2)
    site.work()
    assert looked == [False, True, True]
    assert site.report(run) == expected


# ---- as one run ------------------------------------------------------------------------------------------------------


def test_status_and_listings_show_one_run(site: Site) -> None:
    run, evaluations = site.submit(3), site.platform.evaluations
    assert [one.id for one in evaluations.runs.list()] == [run.id]
    assert [job.subject for job in site.platform.jobs.list()] == [run.id] * 3
    assert (evaluations.runs.status(run.id).completed_rows, evaluations.runs.status(run.id).total_rows) == (0, 0)
    site.platform.worker().run_next()
    status = evaluations.runs.status(run.id)
    assert (status.completed_rows, status.total_rows, status.run.state) == (8, 22, RunState.RUNNING)
    site.work()
    assert evaluations.runs.status(run.id).completed_rows == 22
    assert site.platform._runtime.artifacts.names() is not None
    assert list(site.platform._runtime.artifacts.names()) == []


def test_events_of_all_shards_continue_from_any_of_them_without_loss_or_repetition(site: Site) -> None:
    run, evaluations = site.submit(3), site.platform.evaluations
    for _ in range(site.platform._runtime.settings.max_crashes):
        site.begin(run, 0, 0)
        site.lose()
    evaluations.submit_resume(run.id)  # so that each shard has two jobs
    begun = site.begin(run, 1, 3)
    early = list(evaluations.events(run.id, follow=False))
    site.lose()
    site.work()
    for _ in begun:
        pass
    events = list(evaluations.events(run.id))
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    kinds = [event.type for event in events]
    assert (kinds.count("evaluation_started"), kinds.count("shard_ended"), kinds.count("evaluation_ended")) == (3, 2, 1)
    assert kinds.count("evaluation_failed") == 3
    for number, event in enumerate(events):
        rest = list(evaluations.events(run.id, event.id, follow=False))
        assert [one.id.partition("~")[0] for one in rest] == [one.id.partition("~")[0] for one in events[number + 1 :]]
    known = {one.id.partition("~")[0] for one in early}
    later = {one.id.partition("~")[0] for one in evaluations.events(run.id, early[-1].id, follow=False)}
    assert known | later == {one.id.partition("~")[0] for one in events}
    assert not known & later
    for unknown in ("nothing", "x~1.2", "x~1.2.-3", f"{events[0].id}.4"):
        with pytest.raises(NotFound):
            list(evaluations.events(run.id, unknown, follow=False))


def test_a_run_that_is_cancelled_ends_with_its_last_shard_and_keeps_what_is_done(site: Site) -> None:
    run = site.submit(3)
    steps = site.begin(run, 0, 3)
    site.platform.evaluations.runs.cancel(run.id, "enough")
    assert [job.status for job in site.jobs(run)] == [JobStatus.RUNNING, JobStatus.CANCELLED, JobStatus.CANCELLED]
    assert site.state(run) is RunState.RUNNING
    with pytest.raises(Conflict):
        site.platform.evaluations.runs.finish(run.id)
    for _ in steps:
        pass
    ended = site.platform.evaluations.runs.get(run.id)
    assert (ended.state, ended.reason) == (RunState.CANCELLED, "enough")
    assert list(site.platform._runtime.artifacts.names()) == []
    with pytest.raises(RunAlreadyFinished):
        site.platform.evaluations.resume(run.id)


def test_cancelling_one_shard_s_job_cancels_the_run(site: Site) -> None:
    run = site.submit(3)
    site.platform.jobs.cancel(site.jobs(run)[2].id)
    assert {job.status for job in site.jobs(run)} == {JobStatus.CANCELLED}
    assert site.state(run) is RunState.CANCELLED


def test_a_run_that_is_deleted_takes_its_shards_and_files_with_it(site: Site) -> None:
    run = site.submit(3)
    steps = site.begin(run, 1, 3)
    assert site.platform.evaluations.runs.delete(run.id) == 1  # not an id for each of its letters
    for _ in steps:
        pass
    assert {job.status for job in site.jobs(run)} == {JobStatus.CANCELLED}
    assert list(site.platform._runtime.artifacts.names()) == []


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_shard_that_kills_its_workers_fails_the_run_and_what_is_left_is_resumed(site: Site, expected: str) -> None:
    run = site.submit(3)
    site.platform.worker().run_next()
    for _ in range(site.platform._runtime.settings.max_crashes):
        site.begin(run, 1, 0)
        site.lose()
    statuses = [job.status for job in site.jobs(run)]
    assert statuses == [JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED]
    assert site.jobs(run)[2].error_message == f"cancelled by {ANOTHER}"
    failed = site.platform.evaluations.runs.get(run.id)
    assert failed.state is RunState.FAILED
    assert "lost its worker 3 times" in str(failed.reason)
    assert len(list(site.platform._runtime.artifacts.names())) == 1
    site.platform.evaluations.submit_resume(run.id)
    assert [job.status for job in site.jobs(run)] == [JobStatus.SUCCEEDED, JobStatus.QUEUED, JobStatus.QUEUED]
    site.work()
    assert site.report(run) == expected
    assert list(site.platform._runtime.artifacts.names()) == []


def test_the_error_budget_is_that_of_the_whole_run(site: Site) -> None:
    """Five of eleven rows fail, two or three in each shard: more than four in all, and in no shard."""
    rows = [{"prompt": "x", "expected": "x"} if n % 2 == 0 else {"other": n} for n in range(11)]
    for count in (1, 2, 3):
        for budget, state in ((5, RunState.COMPLETED), (4, RunState.FAILED), (0.4, RunState.FAILED)):
            run = site.platform.evaluations.submit(
                "quiz", "echo", rows, "exact_match", error_budget=budget, shards=count, concurrency=1
            )
            site.work()
            assert (count, budget, site.state(run)) == (count, budget, state)


def test_a_run_that_failed_by_its_error_budget_resumes_in_all_its_shards(site: Site) -> None:
    rows = [{"prompt": "x", "expected": "x"} if n % 2 == 0 else {"other": n} for n in range(11)]
    with pytest.raises(JobFailed, match="5 of 11 rows failed, more than the error budget of 4"):
        site.platform.evaluations.run("quiz", "echo", rows, "exact_match", error_budget=4, shards=3, concurrency=1)
    (run,) = site.platform.evaluations.runs.list()
    result = site.platform.evaluations.resume(run.id)
    assert (len(result.rows), len(result.errors)) == (11, 5)


def test_a_sibling_that_ends_after_another_shard_has_failed_ends_the_run(site: Site, monkeypatch: Any) -> None:
    """Where the process that ended the first died before it could cancel the others."""
    run = site.submit(2)
    monkeypatch.setattr(shards, "stop_others", lambda *_: None)
    for _ in range(site.platform._runtime.settings.max_crashes):
        site.begin(run, 0, 0)
        site.lose()
    assert [job.status for job in site.jobs(run)] == [JobStatus.FAILED, JobStatus.QUEUED]
    assert site.state(run) is RunState.RUNNING
    site.work()
    assert [job.status for job in site.jobs(run)] == [JobStatus.FAILED, JobStatus.SUCCEEDED]
    assert site.state(run) is RunState.FAILED


# ---- requests --------------------------------------------------------------------------------------------------------


def test_functions_cannot_be_sent_to_shards_and_numbers_are_checked(site: Site) -> None:
    with pytest.raises(InvalidInput, match="workers cannot run a function"):
        site.platform.evaluations.run("quiz", lambda row: "x", ROWS, shards=2)
    for count in (0, 257, 1.5, True):
        with pytest.raises(InvalidInput, match="must be a whole number from 1 to 256"):
            site.submit(count)  # type: ignore[arg-type]


def test_shards_count_as_queued_jobs_and_need_what_the_request_says() -> None:
    site = Site(settings=Settings(max_queued_jobs=3))
    with site.platform:
        with pytest.raises(RateLimited):
            site.submit(4)
        assert list(site.platform.evaluations.runs.list()) == []
        run = site.submit(3, needs={"accelerators": 1})
        site.work()
        assert {job.status for job in site.jobs(run)} == {JobStatus.QUEUED}
        site.platform.worker(accelerators=1).run_until_idle()
        assert site.state(run) is RunState.COMPLETED


def test_the_same_request_under_a_key_is_one_run(site: Site) -> None:
    first, again = (site.submit(3, idempotency_key="k") for _ in range(2))
    assert first.id == again.id
    assert len(list(site.platform.jobs.list())) == 3


@pytest.mark.parametrize("needs", [{"priority": 1}, {"accelerators": 1}, {"memory": 1}])
def test_needs_of_a_run_that_no_worker_runs_are_refused(needs: Any) -> None:
    platform = Site().platform
    with pytest.raises(InvalidInput, match="give shards"):
        platform.evaluations.run("quiz", "echo", ROWS, ["exact_match"], needs=needs)
    assert platform.evaluations.submit("quiz", "echo", ROWS, ["exact_match"], needs=needs).id
