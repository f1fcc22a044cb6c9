"""Usage, its cost, and what may be spent: the ledger, sums over it, and budgets."""

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from functools import partial
from itertools import takewhile
from typing import TypeVar

import attrs

from modelyard.domain.identity import ApiKey, Principal, check_name
from modelyard.domain.record import Order
from modelyard.domain.usage import (
    RECORDS,
    SUM_BY,
    Admission,
    Budget,
    BudgetPeriod,
    LedgerEntry,
    UsageSum,
    UsageTotal,
    add,
    summed,
    total_of,
)
from modelyard.errors import Forbidden, InvalidInput, NotFound, RecordNotFound
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing, iter_index, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import budget_id, find_budget
from modelyard.protocols import Snapshot, Tx

R = TypeVar("R", LedgerEntry, UsageTotal)

_BATCH = 1000
_DAY = timedelta(days=1)
_MAX_LIMIT = Decimal(10**15)
_NOTHING = Decimal(0)
_BEHIND_ALL = chr(0x10FFFF)
_RECORD = {record.cls: record for record in RECORDS}


class Ledger:
    """The usage that a principal may see, and budgets.

    platform.usage.total(by=("model", "day"), since=datetime(2026, 1, 1, tzinfo=UTC))
    platform.usage.set_budget("25.00", entity="acme")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- reading

    def list(
        self, *, entity: str | None = None, project: str | None = None, order: Order = "asc"
    ) -> Listing[LedgerEntry]:
        """List ledger rows in the order in which they were booked: of one entity, or of all that the caller may see.
        Raises `Forbidden`."""
        view = self._view(entity, project)
        index, *where = listed_index(view.entity, None)
        place = partial(view.place, index)
        return index_listing(self._runtime, LedgerEntry, index, *where, place=place, order=order, keep=view.sees)

    def get(self, id: str) -> LedgerEntry:
        """Return the row of one completion, by the completion's id. Raises `NotFound`."""
        view = self._view(None, None)
        return self._runtime.store.read(lambda snapshot: view.row(snapshot, id))

    def total(
        self,
        by: Sequence[str] = (),
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        month: str | None = None,
        entity: str | None = None,
        project: str | None = None,
    ) -> Sequence[UsageSum]:
        """Sum ledger rows with `since <= created_at < until` exactly, or those of a `month` in UTC such as "2026-11",
        grouped `by` any of entity, project, model, key and day, and sorted by them; without `by`, into one sum of all.
        Raises `Forbidden`, `InvalidInput`."""
        unknown = [name for name in by if name not in SUM_BY]
        if unknown or isinstance(by, str):
            raise InvalidInput.at("by", msg=f"must be a list of some of {', '.join(SUM_BY)}")
        if month is not None:
            if since is not None or until is not None:
                raise InvalidInput.at("month", msg="leave it out, or since and until")
            since, until = month_of(month)
        view, period = self._view(entity, project), Period.of(since, until)
        return self._runtime.store.read(lambda snapshot: summed(view.totals(snapshot, period), by))

    def get_budget(
        self, *, entity: str | None = None, key_id: str | None = None, project: str | None = None
    ) -> Budget | None:
        """Return the budget of an entity, or of one key or project of it, or None if there is none. Raises `Forbidden`,
        `InvalidInput`."""
        entity = self._principal.entity if entity is None else entity
        self._principal.require(entity, project)
        id_ = budget_id(entity, key_id, project)
        return self._runtime.store.read(lambda snapshot: find_budget(snapshot, id_))

    # ---- budgets

    def list_budgets(self, *, entity: str | None = None) -> Listing[Budget]:
        """List the budgets of an entity, its keys and projects, or all that the caller may see, by their ids. Raises
        `Forbidden`."""
        entity = self._principal.scope.entity if entity is None else entity
        if entity is not None:
            self._principal.require(entity)
        index, *where = ("all",) if entity is None else ("by_entity", entity)

        def now(snapshot: Snapshot, found: Sequence[Budget]) -> Sequence[Budget]:
            return [budget.at(snapshot.time) for budget in found]

        place = partial(_budget_place, index)
        return index_listing(self._runtime, Budget, index, *where, place=place, shown=now)

    def set_budget(
        self,
        limit: Decimal | int | str,
        *,
        entity: str | None = None,
        key_id: str | None = None,
        project: str | None = None,
        period: BudgetPeriod | str = BudgetPeriod.TOTAL,
        warn_at: Decimal | str | None = None,
    ) -> Budget:
        """Let an entity, or one key or project of it, spend `limit` USD in total, or in each day or month, in UTC.

        A changed budget keeps what was spent, unless its period changes. The observer is warned when the share
        `warn_at` of it is spent, such as "0.8". Only the host may call this. Raises `InvalidInput`, `Forbidden`,
        `NotFound` for an unknown key."""
        self._require_host()
        if period not in tuple(BudgetPeriod):
            raise InvalidInput.at("period", msg=f"must be one of {', '.join(BudgetPeriod)}")
        entity = self._principal.entity if entity is None else check_name(entity, "entity")
        asked = Budget(
            budget_id(entity, key_id, project),
            entity,
            _amount(limit),
            period=BudgetPeriod(period),
            warn_at=_share(warn_at),
        )
        return self._runtime.store.transact(lambda tx: _set_budget(tx, asked))

    def remove_budget(
        self, *, entity: str | None = None, key_id: str | None = None, project: str | None = None
    ) -> None:
        """Remove a budget with its record of what was spent. Idempotent. Only the host may call this."""
        self._require_host()
        entity = self._principal.entity if entity is None else entity
        id_ = budget_id(entity, key_id, project)
        self._runtime.store.transact(lambda tx: _remove_budget(tx, id_))

    def _require_host(self) -> None:
        if self._principal.scope.entity is not None:
            raise Forbidden("only the host may change budgets")

    def _view(self, entity: str | None, project: str | None) -> "_View":
        entity = self._principal.scope.entity if entity is None else entity
        if entity is not None:
            self._principal.require(entity, project)
        return _View(self._principal, entity, project)


# ---- which rows a principal sees -----------------------------------------------------------------------------------


@attrs.frozen
class _View:
    principal: Principal
    entity: str | None
    project: str | None

    def sees(self, row: LedgerEntry | UsageTotal) -> bool:
        """Return whether the principal may see a row. A principal that is restricted to projects sees the rows of those
        projects, and what its own key used without a project."""
        if self.project is not None and row.project != self.project:
            return False
        projects = self.principal.scope.projects
        if projects is None or row.project in projects:
            return True
        return not row.project and row.key_id == self.principal.key_id

    def _rows(
        self, snapshot: Snapshot, cls: type[R], index: str, after: Cursor | None, before: Callable[[R], bool]
    ) -> Iterator[R]:
        for entity in self._entities(snapshot):
            found = iter_index(snapshot, cls, index, entity, after=after, size=_BATCH)
            yield from filter(self.sees, takewhile(before, found))

    def _entities(self, snapshot: Snapshot) -> list[str]:
        if self.entity is not None:
            return [self.entity]
        found: list[str] = []
        last = len(_RECORD[UsageTotal].order_of("entities")) - 1
        after = None
        while page := snapshot.page(UsageTotal, "entities", after=after, limit=1):
            found.append(page[0].entity)
            after = (page[0].entity, *[_BEHIND_ALL] * last)
        return found

    def row(self, snapshot: Snapshot, id: str) -> LedgerEntry:
        try:
            row = snapshot.get(LedgerEntry, id)
        except RecordNotFound:
            raise NotFound("ledger entry", id) from None
        if not self.sees(row) or self.entity not in (None, row.entity):
            raise NotFound("ledger entry", id)
        return row

    def place(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(LedgerEntry, index, self.row(snapshot, id))

    def totals(self, snapshot: Snapshot, period: "Period") -> Iterator[UsageTotal]:
        """Yield the totals of a period: stored ones for whole days, computed from rows for its first and last hours."""
        if period.days is None:
            yield from map(total_of, self._between(snapshot, period.since, period.until))
            return
        first, end = period.days
        if first is not None:
            yield from map(total_of, self._between(snapshot, period.since, _midnight(first)))
        yield from self._whole_days(snapshot, first, end)
        if end is not None:
            yield from map(total_of, self._between(snapshot, _midnight(end), period.until))

    def _between(self, snapshot: Snapshot, since: datetime | None, until: datetime | None) -> Iterator[LedgerEntry]:
        after = None if since is None else (since, 0)
        return self._rows(snapshot, LedgerEntry, "by_time", after, lambda row: until is None or row.created_at < until)

    def _whole_days(self, snapshot: Snapshot, first: date | None, end: date | None) -> Iterator[UsageTotal]:
        after, stop = (
            None if first is None else (first.isoformat(), "", "", ""),
            None if end is None else end.isoformat(),
        )
        return self._rows(snapshot, UsageTotal, "by_entity", after, lambda total: stop is None or total.day < stop)


@attrs.frozen
class Period:
    """A half-open interval of time. `days` are its whole days in UTC, first and end (None for unbounded), or None if it
    has none."""

    since: datetime | None
    until: datetime | None
    days: tuple[date | None, date | None] | None

    @classmethod
    def of(cls, since: datetime | None, until: datetime | None) -> "Period":
        since, until = _utc(since, "since"), _utc(until, "until")
        if since and until and until < since:
            raise InvalidInput.at("until", msg="must not be before since")
        first = None if since is None else (since + _DAY - timedelta.resolution).date()
        end = None if until is None else until.date()
        some = first is None or end is None or first < end
        return cls(since, until, (first, end) if some else None)


def month_of(text: str) -> tuple[datetime, datetime]:
    """Return when a month such as "2026-11" begins and ends, in UTC. Raises `InvalidInput`."""
    year, _, number = text.partition("-") if isinstance(text, str) else ("", "", "")
    if not (re.fullmatch("[0-9]{4}-[0-9]{2}", str(text)) and 1 <= int(number) <= 12 and MINYEAR < int(year) < MAXYEAR):
        raise InvalidInput.at("month", msg="must be a month such as 2026-11")
    first = datetime(int(year), int(number), 1, tzinfo=UTC)
    return first, (first + timedelta(days=31)).replace(day=1)


def _utc(moment: datetime | None, name: str) -> datetime | None:
    if moment is None:
        return None
    if moment.tzinfo is None or not MINYEAR < moment.year < MAXYEAR:
        raise InvalidInput.at(name, msg=f"must have a time zone, and a year between {MINYEAR} and {MAXYEAR}")
    return moment.astimezone(UTC)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


# ---- budgets --------------------------------------------------------------------------------------------------------


def _amount(limit: Decimal | int | str) -> Decimal:
    try:
        amount = Decimal(limit) if isinstance(limit, Decimal | int | str) else None
    except InvalidOperation:
        amount = None
    if amount is None or isinstance(limit, bool) or not amount.is_finite() or not _fits(amount):
        raise InvalidInput.at("limit", msg="must be an exact amount from 0 to 10^15 USD, such as '25.00'")
    return amount


def _fits(amount: Decimal) -> bool:
    _, digits, exponent = amount.as_tuple()
    return 0 <= amount <= _MAX_LIMIT and len(digits) <= 60 and int(exponent) >= -30


def _share(share: Decimal | str | None) -> Decimal | None:
    try:
        found = None if share is None else Decimal(share)
    except InvalidOperation:
        found = Decimal(0)
    if found is not None and (not found.is_finite() or not 0 < found <= 1 or not _fits(found)):
        raise InvalidInput.at("warn_at", msg="must be a share above 0 and at most 1, such as '0.8'")
    return found


def _budget_place(index: str, id: str, snapshot: Snapshot) -> Cursor:
    budget = find_budget(snapshot, id)
    if budget is None:
        raise NotFound("budget", id)
    return cursor_at(Budget, index, budget)


def _set_budget(tx: Tx, asked: Budget) -> Budget:
    if asked.key_id is not None:
        _require_key(tx, asked.key_id, asked.entity)
    found, budget = find_budget(tx, asked.id), asked.at(tx.time)
    if found is None:
        budget = attrs.evolve(budget, reserved=add(held.reserved for held in _holding(tx, asked.entity, asked.id)))
        tx.add(budget)
        return budget
    spent = found.spent if found.period is asked.period else _NOTHING
    budget = attrs.evolve(budget, reserved=found.reserved, spent=spent)
    tx.replace(budget)
    return budget


def _require_key(tx: Tx, key_id: str, entity: str) -> None:
    try:
        key = tx.get(ApiKey, key_id)
    except RecordNotFound:
        raise NotFound("API key", key_id) from None
    if key.entity != entity:
        raise NotFound("API key", key_id, f"of {entity}")


def _holding(tx: Tx, entity: str, id: str) -> Iterator[Admission]:
    """Find running requests that were admitted under a budget of this id before it was removed and set again."""
    return (held for held in iter_index(tx, Admission, "by_entity", entity) if id in held.budgets)


def _remove_budget(tx: Tx, id: str) -> None:
    if find_budget(tx, id) is not None:
        tx.remove(Budget, id)
