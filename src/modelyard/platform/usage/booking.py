"""Record usage: the ledger, its totals, and what a request has reserved, as functions of `tx`."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain import events
from modelyard.domain.identity import check_name
from modelyard.domain.record import KEY
from modelyard.domain.usage import Admission, Budget, BudgetPeriod, LedgerEntry
from modelyard.errors import InvalidInput, RecordConflict, RecordNotFound, StoreClosed, StoreError, Unauthenticated
from modelyard.flow import AsyncDriver, Driver, Transact
from modelyard.lazy import log
from modelyard.platform.runtime import Booking, Runtime
from modelyard.protocols import Snapshot, Store, Tx

_NOTHING = Decimal(0)


@attrs.define(eq=False)
class CompletionBooking:
    """Records a completion and settles what it has `reserved`; without an `entry` it only settles. `booked` is called
    with the entry once it is committed. `keep` stores the answer in the same transaction, which waits for the
    disk unless it is `loose`. `charged` become the budgets as they are then, and `warnings` those to warn of."""

    runtime: Runtime
    id: str
    entry: LedgerEntry | None
    reserved: Admission | None
    booked: Callable[[LedgerEntry], None]
    keep: Callable[[Tx], object] | None = None
    loose: bool = False
    charged: Sequence[Budget] = ()
    warnings: Sequence[Budget] = ()

    def step(self, tx: Tx) -> None:
        """Record it. Repeating it changes nothing."""
        self.charged = self.warnings = ()
        if self.entry is not None and not book(tx, self.entry, self.keep):
            return
        if self.reserved is not None:
            warnings: list[Budget] = []
            self.warnings = warnings
            spent = _NOTHING if self.entry is None else self.entry.cost
            self.charged = settle(tx, self.reserved, spent, warnings)
            if warnings:
                self.runtime.tell(tx, *warnings)

    @property
    def alone(self) -> LedgerEntry | None:
        return self.entry if self.reserved is None and self.keep is None else None

    @property
    def durable(self) -> bool:
        """Whether it is stored as durably as the store promises before anybody sees the answer."""
        return (self.keep is not None and not self.loose) or self.runtime.settings.durable_usage

    def on_committed(self) -> None:
        """Forget it, and report it, once."""
        if self.runtime.cache.bookings.pop(self.id, None) is not None:
            self.report()

    def commit(self, store: Store) -> None:
        """Record it in place, in a store that does not wait."""
        store.transact(self.step, self.durable)
        self.on_committed()

    def after_answer(self, longest: Decimal, purse: str) -> "AnsweredBooking":
        own = self.runtime, self.id, self.entry, None, self.booked, self.keep, self.loose
        return AnsweredBooking(*own, longest=longest, purse=purse)

    def report(self) -> None:
        if self.charged:
            self.runtime.cache.see_budgets(self.charged)
        if self.entry is not None:
            self.booked(self.entry)
            if self.warnings:
                warn_of(self.runtime, self.warnings)


@attrs.define(eq=False)
class RecordUsage(Transact):
    """A transaction that records what was produced, and may run again. The booking learns when it is committed. A
    driver that has another transaction for its caller may leave the booking to that transaction."""

    booking: CompletionBooking = attrs.field(kw_only=True)

    def perform(self, driver: Driver[Any]) -> None:
        self.store.transact(self.step, self.durable)
        self.booking.on_committed()

    def aperform(self, driver: AsyncDriver[Any]) -> Awaitable[None]:
        return driver.wait(self.store.atransact(self.step, self.durable), self.booking.on_committed)


@attrs.define(eq=False)
class AnsweredBooking(CompletionBooking):
    """Admits and records, in one transaction, a completion that is whole before its budgets were checked. `longest` is
    what it could have cost. `admitted` is whether the budgets had that; if not, nothing is recorded."""

    longest: Decimal = attrs.field(kw_only=True)
    purse: str = attrs.field(kw_only=True)
    admitted: bool = False
    charged: Sequence[Budget] = ()
    warnings: Sequence[Budget] = ()

    @property
    def alone(self) -> None:
        """None: the budgets are checked first."""

    def step(self, tx: Tx) -> None:
        """Record it if all budgets can pay what it could have cost. Repeating it records nothing more."""
        assert self.entry is not None
        warnings: list[Budget] = []
        self.charged, self.warnings = (), warnings
        budgets = budgets_of(tx, budget_ids(self.entry.entity, self.entry.key_id, self.entry.project, self.purse))
        self.admitted = True
        for budget in budgets:
            self.admitted = self.admitted and self.longest <= budget.remaining
        if self.admitted and book(tx, self.entry, self.keep):
            self.charged = [charge(tx, budget, _NOTHING, self.entry.cost, warnings) for budget in budgets]
            if warnings:
                self.runtime.tell(tx, *warnings)


def book(tx: Tx, entry: LedgerEntry, keep: Callable[[Tx], object] | None = None) -> bool:
    """Add a completion to the ledger, and so to the totals, and `keep` it. Returns whether it was not booked before."""
    try:
        tx.add(entry)
    except RecordConflict:
        return False
    if keep is not None:
        try:
            keep(tx)
        except Unauthenticated:
            log.info(
                "the answer %s is booked, and its texts are not stored: its entity was deleted meanwhile", entry.id
            )
    return True


def settle(
    tx: Tx, held: Admission, spent: Decimal = _NOTHING, warnings: list[Budget] | None = None
) -> Sequence[Budget]:
    """Release what a request has reserved, and charge what it spent. A second call releases nothing. Returns the
    budgets as they are then."""
    try:
        tx.remove(Admission, held.id)
        reserved = held.reserved
    except RecordNotFound:
        reserved = _NOTHING
    return [charge(tx, budget, reserved, spent, warnings) for budget in budgets_of(tx, held.budgets)]


def charge(tx: Tx, budget: Budget, reserved: Decimal, spent: Decimal, warnings: list[Budget] | None = None) -> Budget:
    """Release a reservation of a budget, and add what was spent. Returns the budget as it is then. It is added to
    `warnings`, once, when it is time to warn of it."""
    if not reserved and not spent:
        return budget
    budget = budget.settle(reserved, spent)
    if warnings is not None and budget.alarming and not budget.warned:
        budget = attrs.evolve(budget, warned=True)
        warnings.append(budget)
    tx.replace(budget)
    return budget


def warn_of(runtime: Runtime, budgets: Iterable[Budget]) -> None:
    words = "the budget of %s (%s USD, %s) has %s USD spent"
    for budget in budgets:
        log.warning(words, budget.id, f"{budget.limit:f}", budget.period, f"{budget.spent:f}")
        key = budget.key_id or ""
        paid = budget.spent, budget.limit, budget.period
        runtime.observe(events.BudgetWarning(budget.entity, key, *paid, budget.project or ""))


# ---- what runs when a platform is closed -------------------------------------------------------------------------


def close_requests(runtime: Runtime) -> None:
    """End the requests that run: book what each has produced, and release what it has reserved."""
    cache = runtime.cache
    cache.closed = True
    while cache.running:
        id_, request = cache.running.popitem()
        request.cut(StoreClosed("this platform was closed while the request ran; what it had produced is booked"))
        if (rest := request.remainder()) is not None:
            cache.bookings[id_] = rest
    try:
        retry_bookings(runtime)
    except StoreError:
        log.exception("what running requests have used could not be recorded")


def retry_bookings(runtime: Runtime) -> None:
    """Commit the bookings that are not committed. One that is being committed elsewhere counts once."""
    bookings = tuple(runtime.cache.bookings.values())
    if not bookings:
        return
    durable = runtime.settings.durable_usage or any(booking.alone is None for booking in bookings)
    runtime.store.transact(lambda tx: book_together(tx, bookings), durable)
    for booking in bookings:
        booking.on_committed()


def book_together(tx: Tx, bookings: Sequence[Booking]) -> None:
    """Record several requests in one transaction. Repeating it changes nothing."""
    entries = [entry for booking in bookings if (entry := booking.alone) is not None]
    if len(entries) == len(bookings):
        with suppress(RecordConflict):  # each of them is recorded that was not before
            tx.add_all(entries)
            return
    for booking in bookings:
        booking.step(tx)


# ---- budgets ---------------------------------------------------------------------------------------------------


def budget_ids(entity: str, key_id: str, project: str, purse: str = "") -> tuple[str, ...]:
    """Return the ids of the budgets that a request has to keep, if there are any."""
    ids = (entity, f"{entity}/{key_id}") if key_id else (entity,)
    ids = (*ids, purse) if purse else ids
    return (*ids, f"{entity}//{project}") if project else ids


def budgets_of(snapshot: Snapshot, ids: Iterable[str]) -> list[Budget]:
    return [budget for id_ in ids if (budget := find_budget(snapshot, id_)) is not None]


def budget_id(entity: str, key_id: str | None = None, project: str | None = None) -> str:
    """Return the id of the budget of an entity, of one key or of one project of it. Raises `InvalidInput`."""
    if project is None:
        return f"{entity}/{key_id}" if key_id else entity
    if key_id:
        raise InvalidInput.at("project", msg="a budget is of a key or of a project; leave one of them out")
    return f"{entity}//{check_name(project, 'project')}"


def find_budget(snapshot: Snapshot, id: str) -> Budget | None:
    budget = snapshot.find(Budget, KEY, id)
    if budget is None or budget.period is BudgetPeriod.TOTAL:
        return budget
    return budget.at(snapshot.time)
