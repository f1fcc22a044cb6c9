"""A job for which there is no place holds up no other: it has its own pause, says why, and has an end."""

import logging
from collections.abc import Callable
from contextlib import closing
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import Claim, JobStatus, Needs, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import Capacity
from modelyard.errors import ClusterError, JobRefused
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.jobs.queue import MAX_REFUSALS, request_pause
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.worker import Worker
from modelyard.stores.memory import MemoryStore
from yard_fixtures import Yard

LEASE = 30.0
ROW = {"data": {"prompt": "x", "expected": "x"}}


class Picky(InlineExecutor):
    """Refuses what needs accelerators, as long as there are none; or does not answer."""

    isolates = True

    def __init__(self) -> None:
        super().__init__()
        self.cards, self.down, self.asked = 0, False, 0

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        self.asked += 1
        if self.down:
            raise ClusterError("nobody answers")
        if needs.accelerators > self.cards:
            raise JobRefused("no such gres")
        return super().submit(claim, run, needs)


@attrs.define(eq=False)
class Site:
    yard: Yard = attrs.field(factory=lambda: Yard.build(MemoryStore(RECORDS), lease=LEASE))
    executor: Picky = attrs.field(factory=Picky)
    worker: Worker = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.worker = Worker(self.yard.runtime, self.executor, capacity=Capacity(None, None))

    def submit(self, number: int, cards: int = 0) -> str:
        rows, needs = self.yard.examples(4), {"accelerators": cards} if cards else None
        return self.yard.training.sft(self.yard.model(f"m{number}"), rows, needs=needs).id

    def job(self, id: str) -> Any:
        return self.yard.job(id)

    def pass_time(self, seconds: float) -> None:
        until = self.yard.clock.monotonic() + seconds
        while self.yard.clock.monotonic() < until:
            self.worker.look()
            self.yard.clock.advance(1)


@pytest.fixture
def site() -> Site:
    return Site()


@pytest.mark.slow
@examples(30)
@given(st.lists(st.sampled_from([0, 0, 1, 2]), min_size=1, max_size=12))
def test_jobs_that_can_be_placed_are_not_held_up_by_those_that_cannot(cards: list[int]) -> None:
    site = Site()
    ids = [site.submit(number, each) for number, each in enumerate(cards)]
    site.worker.look()
    for id, each in zip(ids, cards, strict=True):
        job = site.job(id)
        assert (job.status, job.place) == (
            (JobStatus.QUEUED, QueueState.HELD_BACK) if each else (JobStatus.SUCCEEDED, QueueState.DONE)
        )


def test_a_refused_job_says_why_and_when_it_is_tried_again(site: Site) -> None:
    id = site.submit(1, cards=1)
    site.worker.look()
    waits = site.yard.jobs.get(id).waiting_for
    assert waits == "its next attempt: no such gres"
    site.executor.cards = 1
    site.pass_time(2)
    assert site.job(id).status is JobStatus.SUCCEEDED


@pytest.mark.parametrize("refused", [1, 2])
def test_a_run_forgets_that_no_place_was_found_before(site: Site, refused: int) -> None:
    """In whichever executor it begins, and so does what comes after it."""
    id, seen = site.submit(1, cards=1), []
    while site.executor.asked < refused:
        site.pass_time(1)
    site.executor.cards = 1
    runner = Runner(site.yard.runtime, capacity=Capacity(None, None))
    site.yard.clock.advance(LEASE)
    runner.reclaim_expired()
    claimed = runner.claim()
    assert claimed is not None
    assert (claimed.job.refusals, claimed.job.held_back) == (refused, "no such gres")
    with closing(runner.steps(claimed)) as steps:
        for _ in steps:
            seen.append((site.job(id).refusals, site.job(id).held_back, claimed.job.refusals))
            break
    assert seen == [(0, "", 0)]
    job = site.job(id)
    assert (job.status, job.refusals, job.held_back) == (JobStatus.QUEUED, 0, "")
    assert "no such gres" not in str(site.yard.jobs.get(id).waiting_for)


def test_a_job_that_is_refused_again_and_again_fails_with_the_reason(site: Site) -> None:
    id = site.submit(1, cards=1)
    site.pass_time(MAX_REFUSALS * (LEASE + 1))
    job = site.job(id)
    assert (job.status, site.executor.asked) == (JobStatus.FAILED, MAX_REFUSALS)
    assert job.error_message == f"no place was found for it in {MAX_REFUSALS} attempts: no such gres"
    assert site.yard.progress(id).crashes == 0


@pytest.mark.slow
def test_a_cluster_that_does_not_answer_is_charged_to_no_job(site: Site) -> None:
    ids = [site.submit(number) for number in range(3)]
    site.executor.down = True
    site.pass_time(3600)
    assert [(site.job(id).status, site.job(id).refusals) for id in ids] == [(JobStatus.QUEUED, 0)] * 3
    assert site.executor.asked < 1.2 * 3600 / LEASE
    site.executor.down = False
    site.pass_time(LEASE + 1)
    assert {site.job(id).status for id in ids} == {JobStatus.SUCCEEDED}


def test_a_held_back_job_keeps_its_place_in_its_lane(site: Site) -> None:
    first, second = site.submit(1, cards=1), site.submit(1)
    site.worker.look()
    assert [site.job(id).place for id in (first, second)] == [QueueState.HELD_BACK, QueueState.WAITING]
    site.yard.jobs.cancel(first)
    site.pass_time(1)
    assert [site.job(id).status for id in (first, second)] == [JobStatus.CANCELLED, JobStatus.SUCCEEDED]


def test_a_held_back_job_may_be_paused(site: Site) -> None:
    first, second = site.submit(1, cards=1), site.submit(1)
    site.worker.look()
    site.yard.runtime.store.transact(lambda tx: request_pause(tx, first, "me"))
    site.pass_time(LEASE)
    assert [site.job(id).place for id in (first, second)] == [QueueState.PAUSED, QueueState.DONE]


def test_a_wall_clock_that_is_set_back_holds_no_job_back_for_longer_than_a_lease(site: Site) -> None:
    id = site.submit(1, cards=1)
    site.worker.look()
    site.executor.cards = 1
    site.yard.clock.jump(-86_400)
    site.pass_time(LEASE + 1)
    assert site.job(id).status is JobStatus.SUCCEEDED


def test_each_refusal_is_one_line_of_the_log(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "modelyard")
    id = site.submit(1, cards=1)
    while site.executor.asked < 3:
        site.pass_time(1)
    said = [line.getMessage() for line in caplog.records if id in line.getMessage()]
    assert len(said) == 3, said
    assert all("is held back for" in one and one.endswith("no such gres") for one in said)
    caplog.clear()
    site.executor.cards = 1
    site.pass_time(LEASE)
    said = [line.getMessage().partition(") ")[2] for line in caplog.records if id in line.getMessage()]
    assert said == ["begins", "succeeded"]


def test_a_job_that_fails_for_want_of_a_place_is_not_said_to_be_held_back_then(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "modelyard")
    id = site.submit(1, cards=1)
    site.pass_time(MAX_REFUSALS * (LEASE + 1))
    said = [line.getMessage() for line in caplog.records if id in line.getMessage()]
    assert sum("is held back" in one for one in said) == MAX_REFUSALS - 1
    assert "failed: no place was found" in said[-1]
    assert len(said) == MAX_REFUSALS
