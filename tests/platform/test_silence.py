"""Who cannot read has seen no silence: an outage of the store, however long, makes no process, job or lease dead."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import QueueState
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import ProcessRecord, WorkerProcess
from modelyard.errors import StoreBusy
from modelyard.executors.inline import InlineExecutor
from modelyard.platform.jobs.announced import alive, forget_dead, watches_over_others
from modelyard.platform.jobs.expired_claims import ExpiredClaims
from modelyard.platform.jobs.worker import Worker
from modelyard.platform.liveness import LivenessMonitor
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage import presence
from modelyard.stores.memory import MemoryStore
from yard_fixtures import Yard

LEASE = 30.0
BEAT = LEASE / 3


@attrs.define(eq=False)
class Interrupted:
    """A store whose reads fail, or take long, as one that is away does: each as `outage` says next."""

    inner: Any
    clock: Any
    outage: list[tuple[float, bool]] = attrs.field(factory=list)

    def read(self, query: Callable[[Any], Any]) -> Any:
        if self.outage:
            seconds, fails = self.outage.pop(0)
            self.clock.advance(seconds)
            if fails:
                raise StoreBusy("the server is away")
        return self.inner.read(query)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@attrs.define(eq=False)
class Watched:
    """Something alive, and a process that watches it: `look` returns whether it takes it for dead."""

    beat: Callable[[], object]
    look: Callable[[], bool]


def job(yard: Yard, seen: Runtime) -> Watched:
    """A job whose worker is on another machine."""
    worker, expired = Worker(yard.runtime, InlineExecutor()), ExpiredClaims(seen)
    made = yard.sft(2)
    assert worker._runner.claim() is not None

    def look() -> bool:
        expired.reclaim((), lambda _: False)
        return yard.job(made.id).place is not QueueState.CLAIMED

    return Watched(worker._runner.beat, look)


def worker_process(yard: Yard, seen: Runtime) -> Watched:
    """A process with workers, as others see it."""
    worker = Worker(yard.runtime, InlineExecutor())
    worker.beat()

    def look() -> bool:
        lives = alive(seen)
        forget_dead(seen)
        left = yard.runtime.store.read(lambda snapshot: snapshot.page(WorkerProcess, "all"))
        return not (lives and left)

    return Watched(worker.beat, look)


def first_process(yard: Yard, seen: Runtime) -> Watched:
    """The processes that are before another in watching over the rest."""
    workers = [Worker(yard.runtime, InlineExecutor()) for _ in range(3)]
    for number, worker in enumerate(workers):
        worker._process = type(worker._process)(yard.runtime)
        worker._process.id = f"0{number}"

    def beat() -> None:
        for worker in workers:
            worker.beat()

    beat()
    return Watched(beat, lambda: watches_over_others(seen, "1"))


def server(yard: Yard, seen: Runtime) -> Watched:
    """A server on another machine that has reserved something."""
    here = presence.presence_of(yard.runtime)
    here.machine = "elsewhere"
    yard.runtime.store.transact(here.sign_on)

    def look() -> bool:
        presence.release_dead(seen)
        left = yard.runtime.store.read(lambda snapshot: snapshot.page(ProcessRecord, "all"))
        return here.id not in {one.id for one in left}

    return Watched(lambda: yard.runtime.store.transact(here._beat), look)


WATCHES = [job, worker_process, first_process, server]
OUTAGES = st.lists(st.tuples(st.floats(0, 20 * LEASE), st.booleans()), min_size=1, max_size=4)


@pytest.mark.slow
@examples(30)
@given(st.sampled_from(WATCHES), st.lists(OUTAGES, min_size=1, max_size=3))
def test_an_outage_of_the_store_is_no_silence_of_those_who_write_to_it(
    watch: Callable[[Yard, Runtime], Watched], outages: list[list[tuple[float, bool]]]
) -> None:
    yard = Yard.build(MemoryStore(RECORDS), lease=LEASE, admission_lease=LEASE)
    store = Interrupted(yard.runtime.store, yard.clock)
    watched = watch(yard, attrs.evolve(yard.process(), store=store, liveness=LivenessMonitor()))
    for outage in outages:
        for _ in range(3):
            watched.beat()
            assert not watched.look()
            yard.clock.advance(BEAT)
        store.outage = outage.copy()
        while store.outage:
            with suppress(StoreBusy):
                assert not watched.look()
            yard.clock.advance(1)
        for pause in (0, 1, BEAT / 2):  # it is back, and what was held up beats within the usual time
            yard.clock.advance(pause)
            assert not watched.look()
        watched.beat()
    yard.clock.advance(LEASE / 2)
    watched.look()
    yard.clock.advance(LEASE / 2)
    until_seen = [watched.look() or yard.clock.advance(1) for _ in range(int(LEASE))]
    assert any(until_seen), "the dead are not found any more"
