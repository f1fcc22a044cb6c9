"""Who waits for a job or follows it goes on when the store was away: no event is missing or seen twice."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.schema import RECORDS
from modelyard.errors import OutcomeUnknown, StoreBusy, StoreError
from modelyard.platform.jobs.waiting import wait_for_success
from modelyard.platform.training.handle import JobHandle
from modelyard.stores.memory import MemoryStore
from yard_fixtures import Yard

STEPS = 4


@attrs.define(eq=False)
class Failing:
    """A store whose calls fail as `calls` says, once it is armed: each one is passed on, fails, or is not known of."""

    inner: Any
    calls: list[type[StoreError] | None] = attrs.field(factory=list)

    def read(self, query: Callable[[Any], Any]) -> Any:
        if self.calls and self.calls.pop(0) is not None:
            raise StoreBusy("the server is away")
        return self.inner.read(query)

    def transact(self, step: Callable[[Any], Any], durable: bool = True) -> Any:
        error = self.calls.pop(0) if self.calls else None
        if error is StoreBusy:
            raise error("the server is away")
        found = self.inner.transact(step, durable)
        if error is not None:
            raise error("the server went away in the commit")
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def failing_yard() -> tuple[Yard, Failing]:
    yard = Yard.build(MemoryStore(RECORDS), lease=5.0)
    store = Failing(yard.runtime.store)
    yard.runtime = attrs.evolve(yard.runtime, store=store)
    return yard, store


def followed(handle: JobHandle) -> list[str]:
    return [event.id for event in handle.events()]


def followed_on_a_loop(handle: JobHandle) -> list[str]:
    async def follow() -> list[str]:
        return [event.id async for event in handle.aevents()]

    return asyncio.run(follow())


def waited(handle: JobHandle) -> list[str]:
    wait_for_success(handle._runtime, handle._look, timeout=None, show=handle.refresh)
    return [event.id for event in handle.events()]


def resumed(handle: JobHandle) -> list[str]:
    """Follow in two pieces."""
    first = next(iter(handle.events())).id
    return [first, *(event.id for event in handle.events(after=first))]


WAYS = [followed, followed_on_a_loop, waited, resumed]
CALLS = st.lists(st.sampled_from([None, None, None, StoreBusy, StoreBusy, OutcomeUnknown]), max_size=120)


@pytest.mark.slow
@examples(60)
@given(st.sampled_from(WAYS), CALLS, st.integers(0, 30), st.booleans())
def test_an_outage_of_the_store_ends_no_follower(
    way: Callable[[JobHandle], list[str]], calls: list[type[StoreError] | None], gap: int, ran_before: bool
) -> None:
    """The job runs in the thread that follows, or has run before."""
    yard, store = failing_yard()
    handle = yard.sft(STEPS)
    if ran_before:
        yard.worker().run_until_idle()
    store.calls = [*[None] * gap, *calls]
    seen = way(handle)
    store.calls.clear()
    assert seen == [event.id for event in yard.events(handle.id)]
    assert yard.job(handle.id).status == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_worker_in_the_calling_thread_ends_a_job_whose_end_could_not_be_written(length: int) -> None:
    for call in range(40):
        yard, store = failing_yard()
        job, worker = yard.sft(STEPS), yard.worker()
        store.calls = [*[None] * call, *[StoreBusy] * length]
        for _ in range(10):
            with suppress(StoreBusy):
                worker.run_until_idle()
            yard.clock.advance(1)
        store.calls.clear()
        assert yard.job(job.id).status == "succeeded", f"stands still after an outage at call {call}"
        assert yard.job(job.id).attempts <= 2


def test_a_cancellation_that_is_refused_as_busy_was_not_stored() -> None:
    for call in range(10):
        yard, store = failing_yard()
        job = yard.sft(STEPS)
        store.calls = [*[None] * call, StoreBusy]
        refused = False
        try:
            job.cancel()
        except StoreBusy:
            refused = True
        store.calls.clear()
        assert refused is (yard.job(job.id).status != "cancelled"), f"an outage at call {call}"
