"""The queue as a principal sees it: jobs of every kind in one list."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard import Example, Message, Platform, Role, open_platform
from modelyard.domain.evaluation.run import RunState
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.job import Job, JobKind, JobStatus
from modelyard.errors import Forbidden, InvalidInput, NotFound

ROWS = [{"prompt": "yes", "expected": "yes"}] * 2


@pytest.fixture
def platform() -> Iterator[Platform]:
    """One training, an evaluation and a rescoring of it, all in the queue, of two projects."""
    with open_platform() as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        example = Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))
        platform.training.sft("local/p/m", [example] * 4)
        run = platform.evaluations.run("e", "echo", ROWS, project="q").run
        platform.evaluations.submit_rescore(run.id, "contains")
        yield platform


def test_jobs_of_every_kind_are_listed_in_pages(platform: Platform) -> None:
    page = platform.jobs.list().page(limit=2)
    rest = platform.jobs.list().page(after=page.items[-1].id)
    assert [job.kind for job in (*page, *rest)] == [JobKind.SFT, JobKind.EVALUATE, JobKind.RESCORE]
    assert (page.has_more, rest.has_more) == (True, False)
    assert [job.project for job in platform.jobs.list(project="q", order="desc")] == ["q", "q"]


def test_jobs_of_a_kind_are_listed_in_pages(platform: Platform) -> None:
    for _ in range(3):
        platform.evaluations.run("e", "echo", ROWS, project="q")
    jobs = [*platform.jobs.list()]
    for kind in platform.job_types:
        assert [*platform.jobs.list(kind=kind)] == [job for job in jobs if job.kind == kind]
    (trained,) = platform.jobs.list(kind="sft", status=JobStatus.QUEUED, project="p")
    assert trained.kind == "sft"
    assert not platform.jobs.list(kind="sft", status=JobStatus.FAILED)
    newest = platform.jobs.list(kind="evaluate", order="desc")
    page = newest.page(limit=3)
    rest = newest.page(after=page.items[-1].id)
    assert [*page, *rest] == [job for job in reversed(jobs) if job.kind == "evaluate"]
    assert (page.has_more, rest.has_more) == (True, False)


def test_a_page_of_a_kind_reads_no_more_than_a_page(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        platform.evaluations.run("e", "echo", ROWS, project="q")
    snapshots = type(platform._runtime.store.read(lambda snapshot: snapshot))
    read: list[Job] = []
    page = snapshots.page

    def counted(*args: Any, **options: Any) -> list[Any]:
        found = page(*args, **options)
        read.extend(one for one in found if isinstance(one, Job))
        return found

    monkeypatch.setattr(snapshots, "page", counted)
    platform.jobs.list(kind="sft").page(1)
    assert [job.kind for job in read] == ["sft"]
    read.clear()
    platform.jobs.list(kind="evaluate", order="desc").page(2)
    assert {job.kind for job in read} == {"evaluate"}


def test_a_kind_that_is_misspelt_is_refused_with_the_nearest(platform: Platform) -> None:
    with pytest.raises(InvalidInput, match="did you mean 'evaluate'"):
        platform.jobs.list(kind="evalute")


def test_a_job_says_what_it_works_on_and_how_far_it_has_come(platform: Platform) -> None:
    _, evaluated, rescored = platform.jobs.list()
    assert (evaluated.status, evaluated.progress, evaluated.total) == (JobStatus.SUCCEEDED, 2, 2)
    assert (rescored.status, rescored.progress, rescored.total) == (JobStatus.QUEUED, 0, None)
    assert platform.evaluations.runs.get(rescored.subject).source_evaluation_run_id == evaluated.subject


def test_the_id_of_a_run_stands_for_its_last_job_and_that_of_a_model_for_none(platform: Platform) -> None:
    trained, evaluated, _ = platform.jobs.list()
    assert platform.jobs.get(evaluated.subject) == platform.jobs.get(evaluated.id) == evaluated
    for unknown in (trained.subject, "nothing"):
        with pytest.raises(NotFound, match=f"Job '{unknown}' not found"):
            platform.jobs.get(unknown)


def test_a_job_of_any_kind_is_cancelled_and_one_that_has_ended_stays(platform: Platform) -> None:
    trained, evaluated, rescored = platform.jobs.list()
    for job in (trained, rescored):
        assert platform.jobs.cancel(job.id).status is JobStatus.CANCELLED
    assert platform.evaluations.runs.get(rescored.subject).state is RunState.CANCELLED
    assert platform.jobs.cancel(evaluated.id) == evaluated


def test_what_lies_outside_of_the_scope_is_not_there(platform: Platform) -> None:
    trained, evaluated, _ = platform.jobs.list()
    tenant = platform.acting_as(Principal("key", "local", Scope("local", frozenset({"p"}))))
    assert [job.id for job in tenant.jobs.list()] == [trained.id]
    for ask in (tenant.jobs.get, tenant.jobs.cancel):
        with pytest.raises(NotFound):
            ask(evaluated.id)
    with pytest.raises(Forbidden):
        tenant.jobs.list(project="q")
