"""While artifacts cannot be had, jobs wait: nothing is charged to them, and workers look before they claim."""

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import JobStatus, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable, StorageFull, StoreError
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.jobs.queue import MAX_FAULTS
from modelyard.platform.jobs.worker import Worker
from modelyard.stores.memory import MemoryStore
from yard_fixtures import Yard

LEASE = 30.0
FAULTS: list[Callable[[], StoreError]] = [
    lambda: ArtifactsUnavailable("the object store cannot be reached"),
    lambda: StoreError("a store of the host's own that knows no better error"),
    lambda: StorageFull("no room for artifacts"),
]


@attrs.define(eq=False)
class Away:
    """Artifacts that fail with `fault`, if there is one; `slow` ones fail only what is not a look."""

    inner: Any
    fault: Callable[[], StoreError] | None = None
    slow: bool = False
    looks: int = 0

    def check(self) -> None:
        self.looks += 1
        if self.fault is not None and not self.slow:
            raise self.fault()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if self.fault is not None:
                raise self.fault()
            return found(*arguments, **options)

        return call


@attrs.define(eq=False)
class Site:
    yard: Yard
    artifacts: Away
    worker: Worker

    @classmethod
    def build(cls) -> "Site":
        yard = Yard.build(MemoryStore(RECORDS), lease=LEASE)
        artifacts = Away(yard.runtime.artifacts)
        yard.runtime = attrs.evolve(yard.runtime, artifacts=artifacts)
        return cls(yard, artifacts, Worker(yard.runtime, InlineExecutor()))

    def pass_time(self, seconds: float, pause: float = 1.0) -> None:
        until = self.yard.clock.monotonic() + seconds
        while self.yard.clock.monotonic() < until:
            self.worker.look()
            self.yard.clock.advance(pause)


@pytest.fixture
def site() -> Site:
    return Site.build()


@pytest.mark.slow
@examples(20)
@given(
    st.integers(1, 3),
    st.sampled_from(FAULTS),
    st.lists(st.floats(1, 3600), min_size=1, max_size=3),
    st.sampled_from(["started", "step 2", "state 4", "trained"]),
)
def test_no_outage_of_the_artifacts_is_charged_to_a_job(
    jobs: int, fault: Callable[[], StoreError], outages: list[float], moment: str
) -> None:
    site = Site.build()
    handles = [site.yard.sft(10, f"m{number}") for number in range(jobs)]

    def before(item: str) -> None:
        if item == moment and outages:
            site.artifacts.fault = fault

    site.yard.trainer.before = before
    while outages:
        site.worker.look()
        site.pass_time(outages.pop(), 7.0)
        assert not any(
            site.yard.job(one.id).ended for one in handles if site.yard.job(one.id).place is not QueueState.DONE
        )
        assert {site.yard.job(one.id).status for one in handles} <= {JobStatus.QUEUED, JobStatus.SUCCEEDED}
        assert all(site.yard.progress(one.id).faults == 0 for one in handles)
        site.artifacts.fault = None
        site.pass_time(2 * LEASE)
    site.pass_time(2 * LEASE)
    assert {site.yard.job(one.id).status for one in handles} == {JobStatus.SUCCEEDED}


@pytest.mark.slow
def test_a_worker_looks_before_it_claims_again_less_and_less_often(site: Site) -> None:
    job = site.yard.sft(10)
    site.artifacts.fault = FAULTS[0]
    site.pass_time(3600)
    assert (site.yard.job(job.id).attempts, site.yard.progress(job.id).faults) == (1, 0)
    assert 3600 / LEASE <= site.artifacts.looks < 1.2 * 3600 / LEASE
    assert site.yard.jobs.get(job.id).waiting_for.endswith("the object store cannot be reached")


@pytest.mark.slow
def test_steps_that_are_made_again_do_not_shorten_the_pauses(site: Site) -> None:
    """A store that answers a look but takes no artifact costs an attempt a lease, and no more."""
    job = site.yard.sft(10)
    site.artifacts.slow = True

    def before(item: str) -> None:
        site.artifacts.fault = FAULTS[0] if item.startswith("state") else None

    site.yard.trainer.before = before
    site.pass_time(3600)
    found = site.yard.job(job.id)
    assert found.status is JobStatus.QUEUED
    assert found.attempts < 1.2 * 3600 / LEASE


@pytest.mark.slow
def test_many_jobs_that_make_their_steps_again_do_not_shorten_the_pauses_either(site: Site) -> None:
    jobs = [site.yard.sft(10, f"m{number}") for number in range(20)]
    site.artifacts.slow = True

    def before(item: str) -> None:
        site.artifacts.fault = FAULTS[0] if item.startswith("state") else None

    site.yard.trainer.before = before
    site.pass_time(3600)
    assert sum(site.yard.job(job.id).attempts for job in jobs) < 1.2 * 3600 / LEASE + 2 * len(jobs)


def test_a_fault_of_the_store_while_the_artifacts_answer_is_counted(site: Site) -> None:
    job = site.yard.sft(10)
    site.artifacts.slow, site.artifacts.fault = True, FAULTS[1]
    site.pass_time(MAX_FAULTS * LEASE)
    assert site.yard.job(job.id).status is JobStatus.FAILED


def test_an_artifact_that_is_gone_fails_its_job_at_once(site: Site) -> None:
    job = site.yard.sft(10)
    site.artifacts.slow, site.artifacts.fault = True, lambda: ArtifactMissing("it is gone")
    site.worker.look()
    assert site.yard.job(job.id).status is JobStatus.FAILED


def test_the_end_of_a_job_is_announced_though_its_files_cannot_be_removed(site: Site) -> None:
    job = site.yard.sft(10)
    site.artifacts.fault = FAULTS[0]
    assert site.yard.jobs.cancel(job.id).status is JobStatus.CANCELLED
