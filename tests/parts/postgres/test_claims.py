"""Claims that the server makes itself come to the same as those of steps, and are left to these if in doubt."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any

import attrs
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus, Tenant
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import Capacity
from modelyard.errors import StoreTooNew
from modelyard.parts.postgres import claims_fast
from modelyard.parts.postgres.store import PostgresStore
from modelyard.parts.postgres.wire import Abandoned, Wire
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
            for act in (*acts[0], *acts[1]):
                assert there.act(*act) == here.act(*act), act

        same()
    assert claimed[True] > 40, claimed
    assert claimed[False] > 0, claimed


def claimed_by(store: PostgresStore, jobs: int, entity: str = "a") -> tuple[Queue, Runner]:
    """A queue, and a runner that has claimed its first job in steps: the server may claim the next."""
    queue = Queue(Yard.build(store))
    queue.submit(entity, jobs)
    runner = queue.yard.runner()
    assert queue.claim(runner) is not None
    return queue, runner


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each claim that the server was asked for was made by it."""
    made: list[bool] = []
    real = PostgresStore.claim_next

    def noted(store: PostgresStore, ask: NextClaim) -> Any:
        answer = real(store, ask)
        made.append(answer[0] is not None)
        return answer

    monkeypatch.setattr(PostgresStore, "claim_next", noted)
    return made


def test_a_claim_whose_answer_is_lost_is_found_again(yard_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is committed, and its runner has it: no other job is claimed, and none waits for a lease to end."""
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue, runner = claimed_by(store, 3)
        many = Wire.many

        def losing(self: Wire, *given: Any) -> Any:
            many(self, *given)
            monkeypatch.setattr(Wire, "many", many)
            self._connection.close()
            self.fault = psycopg.OperationalError("lost")
            raise Abandoned

        monkeypatch.setattr(Wire, "many", losing)
        job = queue.claim(runner)
        assert job is not None
        held = store.read(lambda snapshot: snapshot.page(JobProgress, "by_held", True))
        assert len(held) == 2
        assert {one.job_id for one in held} == {claimed.job.id for claimed in runner.claimed_jobs}
        assert queue.claim(runner) is not None


def test_a_connection_that_is_lost_before_the_commit_claims_again(
    yard_address: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue, runner = claimed_by(store, 3)
        with psycopg.connect(yard_address, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s, 5000)", [store._writer._connection.info.backend_pid])
        assert queue.claim(runner) is not None
        assert len(store.read(lambda snapshot: snapshot.page(JobProgress, "by_held", True))) == 2
        assert queue.claim(runner) is not None
        assert asked[-1]


@pytest.mark.parametrize("what", ["no right", "discarded"])
def test_without_its_function_claims_are_made_in_steps(
    yard_address: str, asked: list[bool], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    if what == "no right":
        monkeypatch.setattr(claims_fast, "_CREATE", "SELECT 1 FROM nowhere")
    with closing(PostgresStore(yard_address, RECORDS)) as store:
        queue, runner = claimed_by(store, 4)
        if what == "discarded":
            assert queue.claim(runner) is not None
            assert asked == [True]
            store._writer._connection.execute("DISCARD TEMP")
        assert queue.claim(runner) is not None
        assert not asked[-1]
        assert queue.claim(runner) is not None


def test_a_migrated_schema_refuses_claims_too(yard_address: str, asked: list[bool]) -> None:
    with suppress(StoreTooNew), closing(PostgresStore(yard_address, RECORDS)) as store:  # it cannot sync either
        queue, runner = claimed_by(store, 3)
        with psycopg.connect(yard_address, autocommit=True) as other:
            other.execute(
                "INSERT INTO modelyard.modelyard_migrations SELECT max(number) + 1, 'newer' FROM"
                " modelyard.modelyard_migrations"
            )
        with pytest.raises(StoreTooNew):
            queue.claim(runner)
        assert not any(asked)


@pytest.mark.slow
def test_claims_of_one_entity_at_the_same_time_take_a_job_each(yard_address: str) -> None:
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(PostgresStore(yard_address, RECORDS))) for _ in range(3)]
        yards = [Yard.build(one) for one in stores]
        queue = Queue(yards[0])
        jobs = queue.submit("a", 60)
        runners = [yard.runner() for yard in yards for _ in range(2)]

        def work(runner: Runner) -> list[str]:
            return [claimed.job.id for _ in range(10) if (claimed := runner.claim())]

        with ThreadPoolExecutor(len(runners)) as pool:
            got = [one for each in pool.map(work, runners) for one in each]
        assert sorted(got) == sorted(job.id for job in jobs)
        tenant = stores[0].read(lambda snapshot: snapshot.get(Tenant, "a"))
        assert (tenant.turn, tenant.taken) == (60 * STRIDE, 59 * STRIDE)
        assert {one.turn for one in stores[0].read(lambda snapshot: demands_of(snapshot, "a"))} == {tenant.turn}
