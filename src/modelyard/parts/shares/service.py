"""`platform.shares`: which share of the workers each entity gets, and how many of its jobs run at a time."""

from collections.abc import Mapping

import attrs

from modelyard.domain.identity import Principal, check_name
from modelyard.domain.job import Tenant
from modelyard.domain.record import KEY
from modelyard.errors import Forbidden, InvalidInput, Problem
from modelyard.platform.jobs.shares import ALL_KINDS, MOST_RUNNING, announce_all
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MOST_WEIGHT = 1000


@attrs.frozen
class EntityShare:
    """The share of an entity: with twice the `weight` of another it gets twice as many jobs, while both have jobs that
    wait. At most `running` of its jobs run at a time, and at most so many of a kind as `running_of` says."""

    entity: str
    weight: int = 1
    running: int | None = None
    running_of: Mapping[str, int] = attrs.field(factory=dict)

    @classmethod
    def of(cls, tenant: Tenant) -> "EntityShare":
        """Return what the host has set."""
        kinds = {kind: most for kind, most in tenant.limits.items() if kind != ALL_KINDS}
        return cls(tenant.entity, tenant.weight, tenant.limits.get(ALL_KINDS), kinds)


class Shares:
    """The shares of entities. Only the host may see and set them.

    platform.shares.set("acme", weight=3, running=8, running_of={"sft": 2})
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def set(
        self,
        entity: str,
        *,
        weight: int = 1,
        running: int | None = None,
        running_of: Mapping[str, int] | None = None,
    ) -> EntityShare:
        """Replace the share of an entity. It holds from the next claim on; what runs is not stopped.

        Raises `InvalidInput`, `Forbidden`.
        """
        self._require_host()
        by_kind = dict(running_of or {})
        if ALL_KINDS in by_kind:
            raise InvalidInput.at("running_of", msg="must name kinds of jobs; the limit of all is `running`")
        limits = {**({} if running is None else {ALL_KINDS: running}), **by_kind}
        self._check(entity, weight, limits)

        def step(tx: Tx) -> Tenant:
            tenant = tx.find(Tenant, KEY, entity)
            if tenant is None:
                tx.add(Tenant(entity, weight=weight, limits=limits))
            else:
                tx.replace(attrs.evolve(tenant, weight=weight, limits=limits))
                announce_all(tx, entity)
            return tx.get(Tenant, entity)

        return EntityShare.of(self._runtime.store.transact(step))

    def get(self, entity: str) -> EntityShare:
        """Return the share of an entity, or the default share if none was set."""
        self._require_host()
        found = self._runtime.store.read(lambda snapshot: snapshot.find(Tenant, KEY, entity))
        return EntityShare(entity) if found is None else EntityShare.of(found)

    def list(self) -> Listing[EntityShare]:
        """List the shares of the entities that have had jobs or were given a share, the least served first."""
        self._require_host()

        def place(id: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(Tenant, "by_taken", snapshot.get(Tenant, id))

        return index_listing(
            self._runtime,
            Tenant,
            "by_taken",
            place=place,
            order="asc",
            keep=lambda _: True,
            shown=lambda _, found: [EntityShare.of(tenant) for tenant in found],
        )

    def _require_host(self) -> None:
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may see and set the shares of entities; use a host key")

    def _check(self, entity: str, weight: int, limits: Mapping[str, int]) -> None:
        check_name(entity, "entity")
        problems, kinds = [], sorted(self._runtime.job_types.keys())
        if type(weight) is not int or not 1 <= weight <= MOST_WEIGHT:
            problems.append(Problem(("weight",), f"must be a whole number from 1 to {MOST_WEIGHT}"))
        for kind, most in limits.items():
            place = ("running",) if kind == ALL_KINDS else ("running_of", kind)
            if type(most) is not int or not 1 <= most <= MOST_RUNNING:
                problems.append(Problem(place, f"must be a whole number from 1 to {MOST_RUNNING}"))
            if kind not in (ALL_KINDS, *kinds):
                problems.append(Problem(place, f"is not a kind of job; they are {', '.join(kinds)}"))
        if problems:
            raise InvalidInput(problems)
