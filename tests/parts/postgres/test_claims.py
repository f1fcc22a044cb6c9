"""Claims that the server makes itself come to the same as those of steps, and are left to these if in doubt."""

from collections import Counter
from contextlib import closing
from typing import Any

import attrs
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus, Needs, Tenant
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import Capacity
from modelyard.parts.postgres.claims_fast import TurnClaims
from modelyard.parts.postgres.store import PostgresStore
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.shares import STRIDE, demands_of
from modelyard.protocols import NextClaim
from modelyard.stores.memory import MemoryStore
from share_simulation import JOB_TYPES, Queue
from yard_fixtures import Yard

KINDS = JobKind.SFT, JobKind.RL
WEIGHTS = {"a": 1, "b": 2, "c": 3}

_submit = st.tuples(
    st.just("submit"), st.sampled_from("aabc"), st.sampled_from(KINDS), st.integers(-1, 1), st.sampled_from([0, 0, 2])
)
_claim = st.tuples(st.just("claim"), st.sampled_from([0, 0, 0, 1]))
_other = st.tuples(st.sampled_from(["end", "cancel", "suspect"]), st.integers(0, 3))
_acts = st.tuples(
    st.lists(_submit, min_size=6, max_size=12),
    st.lists(st.one_of(_claim, _claim, _claim, _claim, _submit, _other), min_size=8, max_size=24),
)


class Play:
    """A queue with two runners, one of which has no accelerators and cannot run one of the kinds."""

    def __init__(self, store: Any) -> None:
        self.queue = Queue(Yard.build(store))
        for entity, weight in WEIGHTS.items():
            self.queue.weigh(entity, weight, {"": 2} if entity == "c" else None)
        able = {kind: attrs.evolve(JOB_TYPES[kind], can_run=lambda *_: True) for kind in KINDS}
        few, runtime = {JobKind.SFT: able[JobKind.SFT]}, self.queue.yard.runtime
        self.runners = [
            Runner(runtime, able, capacity=Capacity(100, 100)),
            Runner(runtime, few, capacity=Capacity(0, 0), alone=False),
        ]
        self.jobs: list[str] = []

    def act(self, what: str, *given: Any) -> object:
        if what in ("submit", "claim"):
            return getattr(self, f"_{what}")(*given)
        going = [one for name in self.jobs if not (one := self._get(Job, name)).ended]
        return getattr(self, f"_{what}")(going[given[0]]) if given[0] < len(going) else None

    def _get(self, cls: type[Any], name: str) -> Any:
        return self.queue.yard.runtime.store.read(lambda snapshot: snapshot.get(cls, name))

    def _submit(self, entity: str, kind: str, rank: int, cards: int) -> None:
        (job,) = self.queue.submit(entity, kind=kind, rank=rank, accelerators=cards)
        self.jobs.append(job.id)

    def _claim(self, which: int) -> object:
        self.queue.yard.clock.advance(1.0)
        runner, read = self.runners[which], self.queue.yard.runtime.store.read
        claimed = runner.claim(suspects=which == 0)
        if claimed is None:
            return None
        runner.drop(claimed)
        job, progress = claimed.job, claimed.progress
        assert (job, progress) == (self._get(Job, job.id), self._get(JobProgress, job.id))
        shares = [
            (self._get(Tenant, one), read(lambda snapshot, one=one: demands_of(snapshot, one))) for one in WEIGHTS
        ]
        return attrs.evolve(job, seq=0), progress, shares

    def _end(self, job: Job) -> None:
        if job.status is JobStatus.RUNNING:
            self.queue.end(job)

    def _cancel(self, job: Job) -> None:
        if job.status is JobStatus.QUEUED:
            self.queue.cancel(job)

    def _suspect(self, job: Job) -> None:
        suspect = attrs.evolve(self._get(JobProgress, job.id), suspect=True)
        self.queue.yard.runtime.store.transact(lambda tx: tx.replace(suspect))


def empty(address: str) -> None:
    with psycopg.connect(address, autocommit=True) as connection:
        for table in ("jobs", "job_progress", "job_events", "tenants", "demands"):
            connection.execute(f"DELETE FROM modelyard.{table}")  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_server_claims_what_the_steps_would_claim_and_writes_the_same(
    yard_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With weights, priorities, kinds, amounts, a limit and suspects, by runners that can do more or less."""
    claimed: Counter[bool] = Counter()
    real = PostgresStore.claim_next

    def counted(store: PostgresStore, ask: NextClaim) -> Any:
        answer = real(store, ask)
        claimed[answer[0] is not None] += 1
        return answer

    monkeypatch.setattr(PostgresStore, "claim_next", counted)
    with closing(PostgresStore(yard_address, RECORDS)) as store:

        @examples(40)
        @given(_acts)
        def same(acts: tuple[list[tuple[Any, ...]], list[tuple[Any, ...]]]) -> None:
            empty(yard_address)
            here, there = Play(MemoryStore(RECORDS)), Play(store)
            for act in sum(acts, []):
                assert there.act(*act) == here.act(*act), act

        same()
    assert claimed[True] > 40, claimed
    assert claimed[False] > 0, claimed
