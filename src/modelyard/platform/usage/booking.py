"""Record usage: the ledger, its totals, and what a request has reserved, as functions of `tx`."""

from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain import events
from modelyard.domain.record import KEY
from modelyard.domain.usage import ENTITY, Admission, Budget, BudgetPeriod, LedgerEntry, UsageTotal, total_of
from modelyard.errors import RecordConflict, RecordNotFound, StoreClosed, StoreError
from modelyard.flow import AsyncDriver, Driver, Transact
from modelyard.lazy import log
from modelyard.platform.runtime import Booking, Runtime
from modelyard.protocols import DomainStep, Snapshot, Tx

_NOTHING = Decimal(0)


@attrs.define(eq=False)
class CompletionBooking:
    """What records a completion and settles what it has `reserved`; without an `entry` it only settles.

    `booked` is called with the entry once it is committed. `keep` stores the answer in the same transaction.
    """

    runtime: Runtime
    id: str
    entry: LedgerEntry | None
    reserved: Admission | None
    booked: Callable[[LedgerEntry], None]
    keep: Callable[[Tx], object] | None = None
    warnings: list[Budget] = attrs.field(factory=list)

    def step(self, tx: Tx, totals: "Totals | None" = None) -> None:
        """Record it, its total in `totals` where they are given. Repeating it changes nothing."""
        if self.warnings:
            self.warnings.clear()
        if self.entry is not None:
            book(tx, self.entry, self.reserved, self.keep, self.warnings, totals)
        elif self.reserved is not None:
            settle(tx, self.reserved)

    def on_committed(self) -> None:
        """Forget it, and report it, once."""
        if self.runtime.cache.bookings.pop(self.id, None) is None or self.entry is None:
            return
        self.booked(self.entry)
        if self.warnings:
            warn_of(self.runtime, self.warnings)


@attrs.define(eq=False)
class RecordUsage(Transact):
    """A step that records what was produced, and may run again. The booking learns when it is committed.

    A driver whose caller has a transaction of its own may leave the booking to that transaction.
    """

    durable: bool = attrs.field(default=False, init=False)
    booking: CompletionBooking = attrs.field(kw_only=True)

    def perform(self, driver: Driver[Any]) -> None:
        """Run the transaction in this thread."""
        self.store.transact(self.step, durable=False)
        self.booking.on_committed()

    async def aperform(self, driver: AsyncDriver[Any]) -> None:
        """Run the transaction without blocking the event loop."""
        await super().aperform(driver)
        self.booking.on_committed()


def of_entity(step: Callable[[Tx], None], entity: str) -> DomainStep[None]:
    """Return the step as one that touches only what an entity uses."""
    return DomainStep(step, [(ENTITY, entity)])


class Totals:
    """What several bookings of one transaction add to the totals of usage: to each at once, at the end."""

    def __init__(self) -> None:
        self._by_key: dict[tuple[str, ...], UsageTotal] = {}

    def accumulate(self, total: UsageTotal) -> None:
        """Add one."""
        key = (total.entity, total.day, total.project, total.key_id, total.model)
        known = self._by_key.get(key)
        self._by_key[key] = total if known is None else known + total

    def store(self, tx: Tx) -> None:
        """Add them to those that are stored."""
        for total in self._by_key.values():
            tx.accumulate(total)


def book(
    tx: Tx,
    entry: LedgerEntry,
    held: Admission | None,
    keep: Callable[[Tx], object] | None,
    warnings: list[Budget] | None = None,
    totals: Totals | None = None,
) -> None:
    """Add a completion to the ledger and to `totals`, or the stored ones; settle what it reserved; and `keep` it.

    Repeating it changes nothing.
    """
    try:
        tx.add(entry)
    except RecordConflict:
        return
    (tx if totals is None else totals).accumulate(total_of(entry))
    if held is not None:
        settle(tx, held, entry.cost, warnings)
    if keep is not None:
        keep(tx)


def settle(tx: Tx, held: Admission, spent: Decimal = _NOTHING, warnings: list[Budget] | None = None) -> None:
    """Release what a request has reserved, and add what it spent. A second call releases nothing.

    Budgets of which it is time to warn are added to `warnings`, once.
    """
    try:
        tx.remove(Admission, held.id)
        reserved = held.reserved
    except RecordNotFound:
        reserved = _NOTHING
    for id_ in held.budgets:
        budget = find_budget(tx, id_)
        if budget is not None and (reserved or spent):
            budget = budget.settle(reserved, spent)
            if warnings is not None and budget.alarming and not budget.warned:
                budget = attrs.evolve(budget, warned=True)
                warnings.append(budget)
            tx.replace(budget)


def warn_of(runtime: Runtime, budgets: Iterable[Budget]) -> None:
    """Warn the host of budgets of which so much is spent, after it is committed."""
    words = "the budget of %s (%s USD, %s) has %s USD spent"
    for budget in budgets:
        log.warning(words, budget.id, f"{budget.limit:f}", budget.period, f"{budget.spent:f}")
        key = budget.key_id or ""
        runtime.observe(events.BudgetWarning(budget.entity, key, budget.spent, budget.limit, budget.period))


# ---- what runs when a platform is closed -------------------------------------------------------------------------


def close_requests(runtime: Runtime) -> None:
    """Cut the requests that run: book what each has produced, and release what it has reserved."""
    cache = runtime.cache
    cache.closed = True
    while cache.running:
        id_, request = cache.running.popitem()
        request.cut(StoreClosed("this platform was closed while the request ran; what it had produced is booked"))
        if (rest := request.remainder()) is not None:
            cache.bookings[id_] = rest
    try:
        retry_bookings(runtime)
        if cache.presence is not None:
            cache.presence.close()
    except StoreError:
        log.exception("what running requests have used could not be recorded")


def retry_bookings(runtime: Runtime) -> None:
    """Commit the bookings that are not committed. One that is being committed elsewhere counts once."""
    bookings = tuple(runtime.cache.bookings.values())
    if not bookings:
        return
    runtime.store.transact(lambda tx: book_together(tx, bookings), durable=False)
    for booking in bookings:
        booking.on_committed()


def book_together(tx: Tx, bookings: Sequence[Booking]) -> None:
    """Record several requests in one transaction. Repeating it changes nothing."""
    totals = Totals()
    for booking in bookings:
        booking.step(tx, totals)
    totals.store(tx)


# ---- budgets ---------------------------------------------------------------------------------------------------


def budgets_of(snapshot: Snapshot, entity: str, key_id: str) -> list[Budget]:
    """Return the budgets that apply to a key's requests on an entity."""
    ids = (entity, budget_id(entity, key_id)) if key_id else (entity,)
    return [budget for id_ in ids if (budget := find_budget(snapshot, id_)) is not None]


def budget_id(entity: str, key_id: str | None) -> str:
    """Return the id of the budget of an entity, or of one key of it."""
    return f"{entity}/{key_id}" if key_id else entity


def find_budget(snapshot: Snapshot, id: str) -> Budget | None:
    """Return the budget as it is now, or None where there is none."""
    budget = snapshot.find(Budget, KEY, id)
    if budget is None or budget.period is BudgetPeriod.TOTAL:
        return budget
    return budget.at(snapshot.time)
