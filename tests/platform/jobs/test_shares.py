"""Jobs of entities are taken in turns, by weight; within an entity by priority; and no entity runs more than it may."""

from collections import Counter
from functools import partial
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.job import Demand, Job, JobKind, JobStatus, QueueState, Tenant
from modelyard.domain.schema import RECORDS
from modelyard.domain.worker import Capacity
from modelyard.platform.jobs.claims import Claimant, claim
from modelyard.platform.jobs.expired_claims import READ_AT_ONCE
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.shares import choose, take_turn
from modelyard.stores.memory import MemoryStore
from share_simulation import Queue, check_shares
from yard_fixtures import Yard

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1)


class CountingStore:
    """Counts the records that each call of a snapshot returns."""

    def __init__(self, store: Any) -> None:
        self._store, self.rows = store, list[int]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, query: Any) -> Any:
        return self._store.read(lambda snapshot: query(_Counting(snapshot, self.rows)))

    def transact(self, step: Any, durable: bool = True) -> Any:
        return self._store.transact(lambda tx: step(_Counting(tx, self.rows)), durable)


class _Counting:
    def __init__(self, snapshot: Any, rows: list[int]) -> None:
        self._snapshot, self._rows = snapshot, rows

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._snapshot, name)

        def call(*given: Any, **more: Any) -> Any:
            answer = found(*given, **more)
            self._rows.append(len(answer) if isinstance(answer, list) else 1)
            return answer

        return call if name in ("page", "select", "find", "get", "count") else found


def counted(site: Queue) -> Any:
    return CountingStore(site.yard.runtime.store)


def queue() -> Queue:
    return Queue(Yard.build(MemoryStore(RECORDS)))


@pytest.fixture
def memory() -> Queue:
    return queue()


@pytest.mark.slow
@examples(30)
@given(WEIGHTS)
def test_entities_that_wait_get_their_shares(weights: dict[str, int]) -> None:
    site = queue()
    for entity, weight in weights.items():
        site.weigh(entity, weight)
        site.submit(entity, 40)
    check_shares(site.serve(40), weights)


def test_the_same_holds_in_a_file(yard_on_disk: Any) -> None:
    site, weights = Queue(yard_on_disk), {"a": 1, "b": 3, "c": 2}
    for entity, weight in weights.items():
        site.weigh(entity, weight)
        site.submit(entity, 20)
    check_shares(site.serve(30), weights)


@pytest.mark.slow
@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 6), st.integers(0, 8)), min_size=1, max_size=12), WEIGHTS
)
def test_nobody_starves_whoever_comes_whenever(bursts: list[tuple[str, int, int]], weights: dict[str, int]) -> None:
    """Between two jobs of an entity that waits, each other one gets its share at most, and two jobs."""
    site = queue()
    for entity, weight in weights.items():
        site.weigh(entity, weight)
    waiting: Counter[str] = Counter()
    since: dict[str, Counter[str]] = {}
    for entity, number, claims in [*bursts, ("a", 0, 1000)]:
        site.submit(entity, number)
        if number and not waiting[entity]:
            since[entity] = Counter()
        waiting[entity] += number
        for _ in range(claims):
            for served in site.serve(1):
                waiting[served] -= 1
                for one, seen in since.items():
                    seen[served] += 1
                    mine, its = weights.get(one, 1), weights.get(served, 1)
                    assert one == served or not waiting[one] or seen[served] <= its / mine + 2
                since[served] = Counter()
    assert not +waiting


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_newcomer_waits_for_one_job_however_many_another_has_queued(
    request: pytest.FixtureRequest, kind: str
) -> None:
    site = queue() if kind == "memory" else Queue(request.getfixturevalue("yard_on_disk"))
    site.submit("crowd", 300)
    assert site.serve(100) == ["crowd"] * 100
    site.submit("guest")
    assert site.serve(2).index("guest") <= 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 4])
def test_of_ten_thousand_jobs_of_another_each_worker_ends_one_before_a_newcomer_runs(
    memory: Queue, workers: int
) -> None:
    memory.submit("crowd", 10_000)
    busy = [memory.claim() for _ in range(workers)]
    memory.submit("guest", workers + 1)
    for job in busy:
        assert job is not None
        memory.end(job)
    assert memory.serve(1) == ["guest"]


def test_who_was_away_gets_nothing_for_it(memory: Queue) -> None:
    memory.submit("a", 200)
    memory.submit("b", 1)
    memory.serve(100)
    memory.submit("b", 50)
    assert Counter(memory.serve(20)) in ({"a": 10, "b": 10}, {"a": 9, "b": 11})


def test_who_could_not_be_served_gets_nothing_for_it_and_lends_nothing(memory: Queue) -> None:
    memory.submit("cards", 30, accelerators=1)
    memory.submit("a", 60)
    assert memory.serve(50) == ["a"] * 50
    memory.submit("b", 30)
    assert Counter(memory.serve(10)) in ({"a": 5, "b": 5}, {"a": 4, "b": 6})
    able = Runner(memory.yard.runtime, capacity=Capacity(8, None))
    served = [job.entity for _ in range(9) if (job := memory.claim(able)) is not None]
    assert max(Counter(served).values()) <= 4


@pytest.mark.slow
@examples(30)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 2)), min_size=1, max_size=20))
def test_within_an_entity_the_highest_priority_is_first_and_then_the_oldest(jobs: list[tuple[int, int]]) -> None:
    """Whatever else they need."""
    site = queue()
    ids = [(rank, site.submit("a", rank=rank, memory=memory)[0].id) for rank, memory in jobs]
    served = [job.id for _ in ids if (job := site.claim()) is not None]
    assert served == [id for _, id in sorted(ids, key=lambda one: one[0])]


def test_a_priority_takes_nothing_from_others(memory: Queue) -> None:
    memory.submit("a", 20, rank=-1000)
    memory.submit("b", 20)
    check_shares(memory.serve(20), {"a": 1, "b": 1})


@examples(30)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([JobKind.SFT, JobKind.RL, None])), max_size=40),
    st.dictionaries(st.sampled_from(["", JobKind.SFT, JobKind.RL]), st.integers(1, 3), min_size=1),
)
def test_no_entity_runs_more_than_it_may_and_a_limit_leaves_no_place_empty(
    moves: list[tuple[str, str | None]], limits: dict[str, int]
) -> None:
    site = queue()
    site.weigh("a", limits=limits)
    running: list[Job] = []
    queued: Counter[tuple[str, str]] = Counter()
    for entity, kind in moves:
        if kind is not None:
            site.submit(entity, kind=kind)
            queued[entity, kind] += 1
        elif running:
            site.end(running.pop(0))
        if len(running) < 4 and (job := site.claim()) is not None:
            running.append(job)
            queued[job.entity, job.kind] -= 1
        mine = Counter(job.kind for job in running if job.entity == "a")
        mine[""] = mine.total()
        assert all(mine[one] <= most for one, most in limits.items())
        left = [kind for (one, kind), number in queued.items() if number and one == "a"]
        free = [one for one in left if mine[""] < limits.get("", 9) and mine[one] < limits.get(one, 9)]
        if len(running) < 4 and (free or any(number for (one, _), number in queued.items() if one == "b")):
            runner = site.yard.runner()
            chosen, _ = choose(site.yard.runtime.store.read, runner._fits())
            assert chosen is not None


def test_a_limit_of_an_entity_is_at_most_what_runs_until_one_ends(memory: Queue) -> None:
    memory.weigh("a", limits={"": 1})
    memory.submit("a", 2)
    memory.submit("b", 1)
    first, second = memory.claim(), memory.claim()
    assert first is not None
    assert second is not None
    assert {first.entity, second.entity} == {"a", "b"}
    assert memory.claim() is None
    memory.end(first if first.entity == "a" else second)
    third = memory.claim()
    assert third is not None
    assert third.entity == "a"


def test_a_worker_that_chose_before_another_has_reached_the_limit_takes_nothing(memory: Queue) -> None:
    memory.weigh("a", limits={"": 1})
    memory.submit("a", 2)
    store, runner = memory.yard.runtime.store, memory.yard.runner()
    chosen, _ = choose(store.read, runner._fits())
    assert chosen is not None
    assert memory.claim() is not None
    claim_it = partial(claim, claimant=Claimant("w"), now=memory.yard.clock.now())
    assert store.transact(lambda tx: take_turn(tx, chosen.entity, runner._fits(), claim_it))[0] is None


@pytest.mark.slow
@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 2), st.integers(0, 6)), max_size=12),
    WEIGHTS,
)
def test_what_a_worker_remembers_of_its_last_claims_changes_nothing(
    moves: list[tuple[str, int, int, int]], weights: dict[str, int]
) -> None:
    """Workers that claim again and again serve as those that know nothing do, whatever comes and goes meanwhile."""
    fresh, kept = queue(), queue()
    runners = [kept.yard.runner() for _ in range(2)]
    for site in (fresh, kept):
        for entity, weight in weights.items():
            site.weigh(entity, weight, limits={"": weight})
    for entity, number, memory, claims in moves:
        for site in (fresh, kept):
            site.submit(entity, number, memory=memory)
        for turn in range(claims):
            jobs = fresh.claim(), kept.claim(runners[turn % 2])
            assert len({job and (job.entity, job.lane) for job in jobs}) == 1
            for site, job in zip((fresh, kept), jobs, strict=True):
                if job is not None and turn % 2:
                    site.end(job)


def test_jobs_from_before_entities_had_shares_are_claimed(memory: Queue) -> None:
    """Of all entities, also if the oldest job cannot run, and if there are more than are read at once."""
    memory.submit("cards", READ_AT_ONCE, accelerators=4)
    jobs = [job for entity in "abc" for job in memory.submit(entity)]
    store = memory.yard.runtime.store
    for one in store.read(lambda snapshot: snapshot.page(Demand, "by_turn")):
        store.transact(lambda tx, one=one: tx.remove(Demand, *attrs.astuple(one)[:5]))
    for entity in "ab":
        store.transact(lambda tx, entity=entity: tx.remove(Tenant, entity))
    worker = memory.yard.worker()
    worker.run_until_idle()
    worker.run_until_idle()
    assert all(memory.yard.job(job.id).status is not JobStatus.QUEUED for job in jobs)


AMOUNTS = st.tuples(st.sampled_from([JobKind.SFT, JobKind.RL]), st.integers(0, 3), st.integers(0, 3))


@pytest.mark.slow
@examples(60)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), AMOUNTS, st.integers(-1, 1)), max_size=30),
    st.sampled_from([Capacity(0, 0), Capacity(1, 2), Capacity(2, None), Capacity(None, 1), Capacity(None, None)]),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_whatever_stands_before_it_a_job_that_can_run_is_claimed_in_its_turn(
    jobs: list[tuple[str, tuple[str, int, int], int]], capacity: Capacity, page: int, demands: int
) -> None:
    """With any pages, and however few needs have a demand of their own; in the order of the entities' turns."""
    site, limits = queue(), pytest.MonkeyPatch()
    with limits.context() as patch:
        patch.setattr("modelyard.platform.jobs.shares.PAGE", page)
        patch.setattr("modelyard.platform.jobs.shares.MOST_DEMANDS", demands)
        waiting: list[Job] = []
        for entity, (kind, accelerators, memory), rank in jobs:
            waiting += site.submit(entity, kind=kind, rank=rank, accelerators=accelerators, memory=memory)
        turns: Counter[str] = Counter()
        while able := [job for job in waiting if capacity.gives(job.needs)]:
            claimed = site.claim(Runner(site.yard.runtime, capacity=capacity))
            assert claimed is not None
            assert capacity.gives(claimed.needs)
            least = min(turns[job.entity] for job in able)
            assert turns[claimed.entity] == least
            mine = [job.rank for job in able if job.entity == claimed.entity]
            assert demands < 4 or claimed.rank == min(mine)
            turns[claimed.entity] += 1
            waiting.remove(next(job for job in waiting if job.id == claimed.id))
            site.end(claimed)
        assert site.claim(Runner(site.yard.runtime, capacity=capacity)) is None


def test_of_entities_with_many_needs_the_next_is_asked_if_the_first_has_no_job_that_fits(
    memory: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modelyard.platform.jobs.shares.PAGE", 1)
    monkeypatch.setattr("modelyard.platform.jobs.shares.MOST_DEMANDS", 1)
    for entity in "ab":
        memory.submit(entity, accelerators=1)
        memory.submit(entity, accelerators=2)
    (mine,) = memory.submit("b")
    claimed = memory.claim()
    assert claimed is not None
    assert claimed.id == mine.id


def test_a_claim_that_a_crash_of_the_database_has_undone_is_made_again_for_the_run_that_goes_on(memory: Queue) -> None:
    """And not run twice in one process."""
    (job,) = memory.submit("a")
    store, runner = memory.yard.runtime.store, memory.yard.runner()
    before = memory.yard.job(job.id), memory.yard.progress(job.id)
    claimed = runner.claim()
    assert claimed is not None
    for record in before:
        store.transact(lambda tx, record=record: tx.replace(record))
    assert runner.claim() is None
    assert runner.claimed_jobs == (claimed,)
    claimed.record("gradient_step", {"loss": 1.0}, 1)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["needs of one", "entities", "needs of many", "entities that wait for nothing"])
def test_a_claim_reads_as_little_whatever_stands_before_it(memory: Queue, before: str) -> None:
    """That a worker cannot run."""
    entities = 3 if before == "needs of one" else 400
    for number in range(400):
        entity = f"crowd-{number % entities}"
        amount = number if before.startswith("needs") else 1
        cards = 0 if before == "entities that wait for nothing" else 1
        kind = JobKind.RL if number % 2 else JobKind.DPO
        jobs = memory.submit(entity, accelerators=cards, memory=amount, kind=kind)
        if not cards:
            memory.cancel(jobs[0])
    (mine,) = memory.submit("guest")
    reads = counted(memory)
    claimed = Runner(attrs.evolve(memory.yard.runtime, store=reads)).claim()
    assert claimed is not None
    assert claimed.job.id == mine.id
    assert sum(reads.rows) <= 700


def test_who_waits_for_nothing_is_noted_once(memory: Queue) -> None:
    (job,) = memory.submit("a")
    assert memory.claim() is not None
    assert memory.claim() is None
    assert memory.yard.runtime.store.read(lambda snapshot: snapshot.page(Demand, "by_turn")) == []
    assert memory.yard.job(job.id).place is QueueState.CLAIMED


@pytest.mark.slow
@pytest.mark.parametrize("queued", [10, 1000])
def test_a_claim_reads_as_much_however_long_the_queue_is(memory: Queue, queued: int) -> None:
    for entity in "abc":
        memory.submit(entity, queued // 3)
    store = counted(memory)
    runner = Runner(attrs.evolve(memory.yard.runtime, store=store))
    assert runner.claim() is not None
    assert (len(store.rows), sum(store.rows)) == (5, 7)
