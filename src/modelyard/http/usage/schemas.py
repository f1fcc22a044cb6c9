"""Budgets as the host administers them over HTTP. Amounts are strings, which no client rounds."""

import attrs

from modelyard.domain.usage import Budget, BudgetPeriod
from modelyard.formats.constraints import Length
from modelyard.http.listing import page_class


@attrs.frozen
class BudgetCreate:
    """The body that sets a budget: so many USD in total, or in each period. The host is warned at the share `warn_at`
    of it.
    """

    limit: str = attrs.field(validator=Length(1, 64))
    period: BudgetPeriod = BudgetPeriod.TOTAL
    warn_at: str | None = attrs.field(default=None, validator=Length(1, 64))


@attrs.frozen
class BudgetObject:
    """A budget as it is now, in USD: of a key, a project or a whole entity. `since` is the first day of its period."""

    id: str
    entity: str
    key_id: str | None
    project: str | None
    limit: str
    spent: str
    reserved: str
    remaining: str
    period: BudgetPeriod
    since: str | None
    warn_at: str | None
    alarming: bool


@attrs.frozen
class BudgetRemoved:
    """The budget is gone, with its record of what was spent."""

    id: str
    deleted: bool


def budget_object(budget: Budget) -> BudgetObject:
    return BudgetObject(
        budget.id,
        budget.entity,
        budget.key_id,
        budget.project,
        f"{budget.limit:f}",
        f"{budget.spent:f}",
        f"{budget.reserved:f}",
        f"{budget.remaining:f}",
        budget.period,
        budget.since or None,
        None if budget.warn_at is None else f"{budget.warn_at:f}",
        budget.alarming,
    )


BudgetPage = page_class("BudgetPage", BudgetObject, budget_object, "A page of budgets.")
