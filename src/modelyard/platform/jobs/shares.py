"""The shares of entities in the workers, as functions of a transaction: start-time fair queueing. Each claim moves its
entity on in virtual time, by less the larger its weight is, and the entity that is furthest behind is next; whoever
could not run for a while is counted from now. So who has queued many jobs delays another by one of each worker."""

from collections import Counter
from collections.abc import Sequence

import attrs

from modelyard.domain.job import Job, Needs, QueueState, Tenant
from modelyard.domain.record import KEY
from modelyard.platform.jobs.claims import ready_needs, take_ready
from modelyard.protocols import Snapshot, Tx

READY = "jobs/ready"

STRIDE = 1_000_000
"""How far one job moves an entity of weight 1; 1,000 is the largest weight."""

ALL_KINDS = ""
MOST_RUNNING = 10_000


def floor(snapshot: Snapshot) -> int:
    """Return the virtual time: the latest turn that was taken. No claim is counted from an earlier one."""
    latest = snapshot.page(Tenant, "by_taken", limit=1, descending=True)
    return latest[0].taken if latest else 0


def ready(tx: Tx, entity: str, limited: bool = False) -> None:
    """Announce that a job of an entity may be claimed: one is ready; or, if it is `limited`, one has ended."""
    tenant = tx.find(Tenant, KEY, entity)
    if limited and (tenant is None or not tenant.limits):
        return
    tx.notify(READY)
    if tenant is None:
        tx.add(Tenant(entity, waiting=True))
    elif not tenant.waiting:
        tx.replace(attrs.evolve(tenant, waiting=True))


def allowed_needs(snapshot: Snapshot, tenant: Tenant) -> Sequence[Needs]:
    """Return what the ready jobs of an entity need that its limits let run."""
    needs = ready_needs(snapshot, tenant.entity)
    if not needs or not tenant.limits:
        return needs
    claimed = snapshot.select(Job, ("kind",), "needs", QueueState.CLAIMED, tenant.entity, limit=MOST_RUNNING)
    running = Counter(kind for (kind,) in claimed)
    running[ALL_KINDS] = len(claimed)
    full = {kind for kind, most in tenant.limits.items() if running[kind] >= most}
    return [] if ALL_KINDS in full else [one for one in needs if one.kind not in full]


def take_turn(tx: Tx, entity: str, able: Sequence[Needs], earliest: int) -> Job | None:
    """Take an entity's first job that has one of these needs. If none of its jobs may run, it waits no longer."""
    tenant = tx.find(Tenant, KEY, entity)
    if tenant is None:
        return None
    allowed = allowed_needs(tx, tenant) if tenant.limits or not able else able
    if not allowed:
        tx.replace(attrs.evolve(tenant, waiting=False))
        return None
    job = take_ready(tx, entity, [one for one in able if one in allowed])
    if job is not None:
        taken = max(tenant.turn, earliest)
        tx.replace(attrs.evolve(tenant, taken=taken, turn=taken + STRIDE // tenant.weight))
    return job
