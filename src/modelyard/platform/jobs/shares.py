"""The shares of entities in the workers, as functions of a transaction: start-time fair queueing. Each claim moves its
entity on in virtual time, by less the larger its weight is, and the entity that is furthest behind is next; an entity
that could not run for a while is counted from now. So an entity with many queued jobs delays another by one job of each
worker. A claim reads the first `Demand` of each needs, however many entities and jobs there are."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.job import MIXED, TENANT, Demand, Job, JobProgress, Needs, QueueState, Tenant
from modelyard.domain.record import KEY
from modelyard.domain.worker import MOST
from modelyard.platform.listing import Cursor
from modelyard.platform.paging import cursor_at
from modelyard.protocols import DomainStep, Snapshot, Store, Tx

Fits = Callable[[Needs], bool]
"""Whether a worker can run a job with these needs now. If so, it can run one that needs less."""

Claimed = tuple[Job, JobProgress]
ClaimJob = Callable[..., Claimed | None]

READY = "jobs/ready"

STRIDE = 1_000_000
"""How far one job moves an entity of weight 1; 1,000 is the largest weight."""

ALL_KINDS = ""
MOST_RUNNING = 10_000

MOST_DEMANDS = 100
"""How many needs of an entity have a demand each, and how many amounts its priorities are compared for."""

PAGE = 100
_ALL_DEMANDS = 100_000
_BEFORE_ALL = (-100_000, -1)
"""Before the rank and the number of every job."""


# ---- jobs that become ready ----------------------------------------------------------------------------------------


def announce_ready(tx: Tx, entity: str, needs: Needs) -> None:
    """Announce that an entity has a ready job with these needs."""
    tx.notify(READY)
    _demand(tx, entity, needs)


def announce_freed(tx: Tx, entity: str) -> None:
    """Announce that a claimed job of an entity has ended or was given back: if it is limited, another one may run."""
    tenant = _tenant(tx, entity)
    if tenant is not None and tenant.limits:
        announce_all(tx, entity)


def withdraw(tx: Tx, job: Job) -> None:
    """Note that a job is ready no longer, and was not claimed."""
    demand = tx.find(Demand, KEY, job.entity, job.kind, job.base_model, job.accelerators, job.memory)
    if demand is not None and not first_jobs(tx, demand, anything):
        tx.remove(Demand, *attrs.astuple(demand)[:5])


def announce_all(tx: Tx, entity: str) -> None:
    """Announce all ready jobs of an entity."""
    tx.notify(READY)
    after: Cursor | None = None
    while page := tx.page(Job, "needs", QueueState.READY, entity, after=after, limit=1):
        needs = page[0].needs
        exact = _demand(tx, entity, needs)
        after = (*(_after_amounts(needs) if exact else _after_model(needs)), *_BEFORE_ALL)


def _demand(tx: Tx, entity: str, needs: Needs) -> bool:
    """Add the demand of a ready job unless there is one, or a limit is reached. Return whether it has exact amounts."""
    exact, mixed = (needs.accelerators, needs.memory), (MIXED, MIXED)
    if tx.find(Demand, KEY, entity, needs.kind, needs.base_model, *exact) is not None:
        return True
    tenant = _tenant(tx, entity)
    if tenant is None:
        tenant = Tenant(entity)
        tx.add(tenant)
    if is_full(tx, tenant, needs.kind):
        return False
    if len(tx.select(Demand, ("turn",), "by_entity", entity, limit=MOST_DEMANDS)) < MOST_DEMANDS:
        tx.add(Demand(entity, needs.kind, needs.base_model, *exact, turn=tenant.turn))
        return True
    if tx.find(Demand, KEY, entity, needs.kind, needs.base_model, *mixed) is None:
        tx.add(Demand(entity, needs.kind, needs.base_model, *mixed, turn=tenant.turn))
    return False


def is_full(snapshot: Snapshot, tenant: Tenant, kind: str) -> bool:
    """Return whether as many jobs of an entity are claimed as may be, of a kind or in all."""
    in_all, of_kind = tenant.limits.get(ALL_KINDS), tenant.limits.get(kind)
    claimed = QueueState.CLAIMED, tenant.entity
    return (in_all is not None and snapshot.count(Job, "needs", *claimed) >= in_all) or (
        of_kind is not None and snapshot.count(Job, "by_kind", *claimed, kind) >= of_kind
    )


def limit_reached(snapshot: Snapshot, entity: str, kind: str) -> str | None:
    """Return what a ready job of an entity waits for if no other one of its kind may run, in words."""
    tenant = _tenant(snapshot, entity)
    full = tenant is not None and is_full(snapshot, tenant, kind)
    return f"a running job of {entity!r} to end: it has as many as its share allows" if full else None


# ---- who is next ---------------------------------------------------------------------------------------------------


def virtual_time(snapshot: Snapshot) -> int:
    """Return the latest turn that was taken. No claim is counted from an earlier one."""
    latest = snapshot.select(Tenant, ("taken",), "by_taken", limit=1, descending=True)
    return latest[0][0] if latest else 0


def choose(read: Callable[[Callable[[Snapshot], Any]], Any], fits: Fits) -> tuple[Demand | None, set[Needs]]:
    """Choose the demand that is furthest behind of those with a job that fits. Return what other ready jobs need too:
    of each kind and model, some. Each page is a read of its own, which PostgreSQL answers in one round trip."""
    best: Demand | None = None
    seen: set[Needs] = set()
    group: Needs | None = None
    after: Cursor | None = None
    while page := read(partial(_by_turn, after=after)):
        for demand in page:
            seen.add(demand.needs)
            if demand.needs == group or not fits(demand.needs):
                continue
            if best is not None and best.turn <= demand.turn:
                group = demand.needs
            elif not demand.mixed or read(partial(first_jobs, demand=demand, fits=fits)):
                group, best = demand.needs, demand
        if len(page) < PAGE:
            break
        last = page[-1]
        passes = last.mixed and group != last.needs and fits(last.needs)  # the next of these may have one that fits
        after = cursor_at(Demand, "by_turn", last) if passes else (*_beyond(last.needs, fits), -1, "")
    return best, seen


def _by_turn(snapshot: Snapshot, after: Cursor | None = None) -> list[Demand]:
    return snapshot.page(Demand, "by_turn", after=after, limit=PAGE)


def _beyond(needs: Needs, fits: Fits) -> tuple[object, ...]:
    """Return where the next needs begin that may fit, in the order of kinds, models and amounts."""
    if fits(needs):
        return _after_amounts(needs)
    if needs.memory and fits(attrs.evolve(needs, memory=0)):
        return needs.kind, needs.base_model, needs.accelerators + 1, MIXED
    return _after_model(needs)


def _after_amounts(needs: Needs) -> tuple[object, ...]:
    return needs.kind, needs.base_model, needs.accelerators, needs.memory + 1


def _after_model(needs: Needs) -> tuple[object, ...]:
    return needs.kind, needs.base_model, MOST + 1, MIXED


def first_jobs(snapshot: Snapshot, demand: Demand, fits: Fits) -> list[Job]:
    """Return the first ready job of each amounts of a demand that fit, for `MOST_DEMANDS` amounts at most."""
    of = QueueState.READY, demand.entity, demand.kind
    if not demand.mixed:
        return snapshot.page(Job, "by_needs", *of, *attrs.astuple(demand)[2:5], limit=1)
    found: list[Job] = []
    after: Cursor = (demand.base_model, MIXED, MIXED, *_BEFORE_ALL)
    while len(found) < MOST_DEMANDS and (page := snapshot.page(Job, "by_kind", *of, after=after, limit=1)):
        if page[0].base_model != demand.base_model:
            break
        if fits(page[0].needs):
            found.append(page[0])
        after = (*_beyond(page[0].needs, fits)[1:], *_BEFORE_ALL)
    return found


def anything(needs: Needs) -> bool:
    return True


def ready_needs(snapshot: Snapshot, demands: Sequence[Demand], fits: Fits = anything) -> Sequence[Needs]:
    """Return what the ready jobs of an entity with these demands need that fit, that of its first job first."""
    able = [one for one in demands if fits(one.needs)]
    if len(able) == 1 and not able[0].mixed:
        return [able[0].needs]
    jobs = [job for demand in able for job in first_jobs(snapshot, demand, fits)]
    return [job.needs for job in sorted(jobs, key=lambda job: (job.rank, job.seq))]


def demands_of(snapshot: Snapshot, entity: str) -> Sequence[Demand]:
    return snapshot.page(Demand, "by_entity", entity, limit=_ALL_DEMANDS)


def claim_in_turn(
    store: Store, fits: Fits, claim: ClaimJob, guess: Demand | None = None
) -> tuple[Claimed | None, Demand | None, set[Needs]]:
    """Claim the first job of the entity that is next. Return it, the demand that was chosen, and what ready jobs need.
    A `guess` of that demand saves a question if it is right: the step that claims checks it."""
    found: Claimed | None = None
    if guess is None:
        best, seen = choose(store.read, fits)
    else:
        check = partial(_take_if_next, guess=guess, fits=fits, claim=claim)
        asks = [*asks_of_turn(guess), _by_turn]
        found, best, seen = store.transact(DomainStep(check, [(TENANT, guess.entity)], asks), durable=False)
    while found is None and best is not None:
        take = partial(take_turn, entity=best.entity, fits=fits, claim=claim)
        # A claim that the crash of a database server undoes has done nothing.
        found, again = store.transact(DomainStep(take, [(TENANT, best.entity)], asks_of_turn(best)), durable=False)
        if not again:
            break
        best, seen = choose(store.read, fits)
    return found, best, seen


def _take_if_next(
    tx: Tx, guess: Demand, fits: Fits, claim: ClaimJob
) -> tuple[Claimed | None, Demand | None, set[Needs]]:
    best, seen = choose(lambda query: query(tx), fits)
    is_next = best is not None and best.entity == guess.entity
    return (take_turn(tx, guess.entity, fits, claim)[0] if is_next else None), best, seen


def asks_of_turn(demand: Demand) -> list[Callable[[Tx], object]]:
    """Return the questions of a claim of a job with this demand, each of one statement."""
    needs = [] if demand.mixed else [demand.needs]
    take = partial(take_ready, entity=demand.entity, needs=needs)
    return [partial(_tenant, entity=demand.entity), partial(demands_of, entity=demand.entity), virtual_time, take]


def _tenant(snapshot: Snapshot, entity: str) -> Tenant | None:
    return snapshot.find(Tenant, KEY, entity)


def take_turn(tx: Tx, entity: str, fits: Fits, claim: ClaimJob) -> tuple[Claimed | None, bool]:
    """Claim the first job of an entity that fits, and move the entity on in virtual time. Without a claim, return
    whether its demands have changed, so that another entity is to be chosen."""
    tenant, demands = _tenant(tx, entity), demands_of(tx, entity)
    if tenant is None:
        return None, False
    allowed = [one for one in demands if not (tenant.limits and is_full(tx, tenant, one.kind))]
    job = take_ready(tx, entity, ready_needs(tx, allowed, fits))
    if job is None:
        return None, _forget(tx, tenant, demands)
    claimed = claim(tx, job=job)
    if claimed is not None:
        taken = max(tenant.turn, virtual_time(tx))
        tenant = attrs.evolve(tenant, taken=taken, turn=taken + STRIDE // tenant.weight)
        tx.replace(tenant)
        for demand in demands:
            tx.replace(attrs.evolve(demand, turn=tenant.turn))
        if tenant.limits:
            _forget(tx, tenant, demands)
    return claimed, False


def take_ready(tx: Tx, entity: str, needs: Sequence[Needs]) -> Job | None:
    for one in needs:
        where = (one.kind, one.base_model, one.accelerators, one.memory)
        job = tx.take(Job, "by_needs", QueueState.READY, entity, *where)
        if job is not None:
            return job
    return None


def _forget(tx: Tx, tenant: Tenant, demands: Sequence[Demand]) -> bool:
    """Remove the demands without a job that may run. Return whether there were any."""
    past = [one for one in demands if is_full(tx, tenant, one.kind) or not first_jobs(tx, one, anything)]
    for one in past:
        tx.remove(Demand, *attrs.astuple(one)[:5])
    return bool(past)
