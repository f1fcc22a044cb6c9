"""Jobs that need accelerators or memory go to workers that give them, and to no other."""

from typing import Any

import attrs
import pytest

from modelyard.domain.job import JobKind, JobStatus, Needs
from modelyard.domain.worker import Capacity
from modelyard.errors import InvalidInput
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.training.billing import OVER_BUDGET


def request(yard: Any, model: str = "m", **needs: int) -> Any:
    return yard.training.sft(yard.model(model), [{"messages": ROW}] * 2, needs=needs)


ROW = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


def test_a_job_waits_for_a_worker_with_the_accelerators_and_the_memory_that_it_needs(yard: Any) -> None:
    job = request(yard, accelerators=2, memory=64)
    for capacity in (Capacity(), Capacity(1), Capacity(2, 63), Capacity(0, None)):
        small = Worker(yard.runtime, InlineExecutor(), capacity=capacity)
        small.beat()
        small.look()
        assert job.refresh().status is JobStatus.QUEUED
    needs = "sft of 'base-model' with 2 accelerators and 64 GiB of memory"
    assert job.refresh().waiting_for == f"a worker that can run {needs}: none that is alive has what it needs"
    Worker(yard.runtime, InlineExecutor(), capacity=Capacity(2, 64)).look()
    assert job.refresh().status is JobStatus.SUCCEEDED


def test_jobs_without_needs_pass_those_that_wait(yard: Any) -> None:
    first, second = request(yard, "big", accelerators=1), yard.sft(2, "small")
    yard.worker().run_until_idle()
    assert [job.refresh().status for job in (first, second)] == [JobStatus.QUEUED, JobStatus.SUCCEEDED]


def test_what_running_jobs_have_is_not_given_twice(yard: Any) -> None:
    for number, cards in enumerate((2, 1, 1)):
        request(yard, f"m{number}", accelerators=cards)
    runner = Runner(yard.runtime, capacity=Capacity(3))
    held = [runner.claim(), runner.claim(), runner.claim()]
    assert [claimed and claimed.job.accelerators for claimed in held] == [2, 1, None]
    assert held[1] is not None
    runner.give_back(held[1])
    last = runner.claim()
    assert last is not None
    assert last.job.accelerators == 1


def test_a_cluster_takes_any_job(yard: Any) -> None:
    request(yard, accelerators=1000, memory=100_000)
    assert Runner(yard.runtime, capacity=Capacity(None, None)).claim() is not None


@pytest.mark.parametrize(
    ("needs", "place"),
    [
        ({"accelerators": -1}, ("needs", "accelerators")),
        ({"accelerators": True}, ("needs", "accelerators")),
        ({"memory": 1.5}, ("needs", "memory")),
        ({"memory": 100_001}, ("needs", "memory")),
        ({"cards": 1}, ("needs", "cards")),
        ("2 cards", ("needs",)),
    ],
)
def test_needs_that_cannot_be_are_refused_before_any_data_are_read(yard: Any, needs: Any, place: Any) -> None:
    with pytest.raises(InvalidInput) as wrong:
        yard.training.sft(yard.model(), iter(()), needs=needs)
    assert [problem.loc for problem in wrong.value.problems] == [place]


def test_a_job_that_continues_another_needs_the_same(yard: Any) -> None:
    job = request(yard, accelerators=1, memory=8)
    job.cancel()

    ended = attrs.evolve(yard.job(job.id), result={OVER_BUDGET: True})
    yard.runtime.store.transact(lambda tx: tx.replace(ended))
    assert yard.job(yard.training.resume(job.id).id).needs == Needs(JobKind.SFT, "base-model", False, 1, 8)
