"""Admit a request and record its usage: limits, reservations on budgets, and the ledger, as functions of `tx`.

A request is admitted in one transaction before the backend is called, and settled in the transaction of its ledger row.
Where neither a budget nor a limit applies, nothing is reserved and there is no first transaction.
"""

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.completion import StoredCompletion
from modelyard.domain.identity import Limits
from modelyard.domain.record import KEY
from modelyard.domain.usage import Admission, Budget, LedgerEntry, RateWindow, UsageTotal, day_of, empty_total
from modelyard.errors import BudgetExceeded, RateLimited, RecordConflict, RecordNotFound
from modelyard.flow import AsyncDriver, Call, Driver, Flow, Transact
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

STALE = 15 * 60.0
"""Seconds after which an unchanged admission of another process counts as that of a dead one."""

_WATCHED = 1000
_ROUNDING = 1e-9
_NOTHING = Decimal(0)


# ---- admission -------------------------------------------------------------------------------------------------


def reserve(runtime: Runtime, admission: Admission, limits: Limits) -> Flow[Admission | None]:
    """Admit a request. Returns what it has reserved, or None where it has reserved nothing.

    `admission` names the key and what may be spent at most. Stale admissions of dead processes are settled when the
    request would be refused otherwise. Raises `RateLimited`, `BudgetExceeded`.
    """
    store, now = runtime.store, runtime.clock.monotonic()
    runtime.cache.running.add(admission.id)
    try:
        try:
            held = yield Transact(store, lambda tx: admit(tx, admission, limits, now), durable=False)
        except (RateLimited, BudgetExceeded):
            stale = yield Call(lambda: stale_admissions(runtime, admission.entity), store.blocking)
            if not stale:
                raise
            held = yield Transact(store, lambda tx: _readmit(tx, stale, admission, limits, now), durable=False)
    except BaseException:
        runtime.cache.running.discard(admission.id)
        raise
    return held  # type: ignore[no-any-return]


def admit(tx: Tx, admission: Admission, limits: Limits, now: float) -> Admission | None:
    """Apply the rules: rate, requests at once, then every budget. `now` is on the monotonic clock."""
    if limits.requests_per_minute is not None:
        _take_token(tx, admission.key_id, limits.requests_per_minute, now)
    at_once = limits.concurrent_requests
    if at_once is not None and tx.count(Admission, "by_key", admission.key_id) >= at_once:
        raise RateLimited(f"this key may run {at_once} requests at once; wait until one has ended", 1.0)
    budgets = budgets_of(tx, admission.entity, admission.key_id)
    for budget in budgets:
        _reserve(tx, budget, admission.reserved)
    if not budgets and at_once is None:
        return None
    held = attrs.evolve(admission, budgets=tuple(budget.id for budget in budgets))
    tx.add(held)
    return held


def budgets_of(snapshot: Snapshot, entity: str, key_id: str) -> list[Budget]:
    """Return the budgets that apply to a key's requests on an entity."""
    ids = (entity, budget_id(entity, key_id)) if key_id else (entity,)
    return [budget for id_ in ids if (budget := find_budget(snapshot, id_)) is not None]


def budget_id(entity: str, key_id: str | None) -> str:
    """Return the id of the budget of an entity, or of one key of it."""
    return f"{entity}/{key_id}" if key_id else entity


def find_budget(snapshot: Snapshot, id: str) -> Budget | None:
    """Return the budget, or None where there is none."""
    return snapshot.find(Budget, KEY, id)


def _take_token(tx: Tx, key_id: str, per_minute: int, now: float) -> None:
    """Take a token from the bucket, which starts full and refills evenly; a clock that restarted refills nothing."""
    window = tx.find(RateWindow, KEY, key_id)
    if window is None:
        tokens, keep = float(per_minute), tx.add
    else:
        refill, keep = max(0.0, now - window.at) * per_minute / 60, tx.replace
        tokens = min(float(per_minute), window.tokens + refill)
    if tokens < 1 - _ROUNDING:
        wait = (1 - tokens) * 60 / per_minute
        raise RateLimited(f"this key may make {per_minute} requests a minute; try again in {wait:.1f} s", wait)
    keep(RateWindow(key_id, max(0.0, tokens - 1), now))


def _reserve(tx: Tx, budget: Budget, amount: Decimal) -> None:
    if amount > budget.remaining:
        raise BudgetExceeded(
            f"this request may cost up to {amount:f} USD and the budget of {budget.limit:f} USD has "
            f"{max(budget.remaining, _NOTHING):f} left; ask for fewer tokens, or have the budget raised"
        )
    tx.replace(budget.reserve(amount))


# ---- recording usage ------------------------------------------------------------------------------------------


@attrs.define(eq=False)
class RecordUsage(Transact):
    """A step that records what was produced, and may run again. `on_committed` is called afterwards.

    A driver whose caller has a transaction of its own may leave the step to that transaction.
    """

    durable: bool = attrs.field(default=False, init=False)
    on_committed: Callable[[], None] = attrs.field(kw_only=True)

    def perform(self, driver: Driver[Any]) -> None:
        """Run the transaction in this thread."""
        self.store.transact(self.step, durable=False)
        self.on_committed()

    async def aperform(self, driver: AsyncDriver[Any]) -> None:
        """Run the transaction without blocking the event loop."""
        await super().aperform(driver)
        self.on_committed()


def book(tx: Tx, entry: LedgerEntry, held: Admission | None, stored: StoredCompletion | None) -> None:
    """Add a completion to the ledger and its totals, settle what it reserved, and store it if requested.

    Repeating it changes nothing.
    """
    try:
        tx.add(entry)
    except RecordConflict:
        return
    _count(tx, entry)
    if held is not None:
        settle(tx, held, entry.cost)
    if stored is not None:
        tx.add(stored)


def settle(tx: Tx, held: Admission, spent: Decimal = _NOTHING) -> None:
    """Release what a request has reserved, and add what it spent. A second call releases nothing."""
    try:
        tx.remove(Admission, held.id)
        reserved = held.reserved
    except RecordNotFound:
        reserved = _NOTHING
    for id_ in held.budgets:
        budget = find_budget(tx, id_)
        if budget is not None and (reserved or spent):
            tx.replace(budget.settle(reserved, spent))


def _count(tx: Tx, entry: LedgerEntry) -> None:
    day = day_of(entry.created_at)
    total = tx.find(UsageTotal, KEY, entry.entity, day, entry.project, entry.key_id, entry.model)
    if total is None:
        tx.add(empty_total(entry, day).plus(entry))
    else:
        tx.replace(total.plus(entry))


# ---- admissions of dead processes --------------------------------------------------------------------------------


def stale_admissions(runtime: Runtime, entity: str) -> list[Admission]:
    """Return the admissions of other processes that have not changed for longer than `STALE`."""
    found = runtime.store.read(lambda snapshot: snapshot.page(Admission, "by_entity", entity, limit=_WATCHED))
    others = {admission.id: admission for admission in found if admission.id not in runtime.cache.running}
    now = runtime.clock.monotonic()
    seconds = runtime.liveness.idle_seconds(f"admissions of {entity}", dict.fromkeys(others, 0), now)
    return [others[id_] for id_, idle in seconds.items() if idle > STALE]


def _readmit(tx: Tx, stale: Sequence[Admission], admission: Admission, limits: Limits, now: float) -> Admission | None:
    for held in stale:
        settle(tx, held)
    return admit(tx, admission, limits, now)
