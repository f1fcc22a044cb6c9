"""Usage: what was spent, by day, model, key and project, next to the budgets."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal

from modelyard.domain.usage import Budget, UsageSum
from modelyard.parts.dashboard.pages.keys import key_text, limits_text
from modelyard.parts.dashboard.view import HtmlPage, View, bar, empty, money, name_text, when
from modelyard.parts.reports.html import Html, chip, html, joined, section, table, tag
from modelyard.report.numbers import count_text

_BUDGETS = (("budget of", ""), ("spent", ""), ("period", "choice"), ("reserved", "number"))

LEAD = "What requests and trainings cost, next to the budgets."

DAYS = 30
NEARLY = Decimal("0.05")
"""The share of a budget that is next to nothing."""

MOST = 50


def usage(view: View) -> HtmlPage:
    since = view.now.replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=DAYS - 1)
    total = view.platform.usage.total
    if not total(since=since)[0].requests:
        return HtmlPage(
            "Usage", joined([empty(f"Nothing was used in the last {DAYS} days."), _budgets(view)]), lead=LEAD
        )
    groups = ("day", "model", "key", "project", *(["entity"] if view.host else []))
    by = next((one for one in groups if one == view.query.get("by")), "day")
    sums = total((by,), since=since)
    links = (tag("b", f"by {one}") if one == by else view.link(f"by {one}", "usage", by=one) for one in groups)
    chosen = tag("p", *(part for link in links for part in (link, " ")), kind="filters")
    if by == "day":
        shown = _by_day(sums, [f"{since + timedelta(days=at):%Y-%m-%d}" for at in range(DAYS)])
    else:
        shown = _sums(view, by, sorted(sums, key=lambda one: one.cost, reverse=True)[:MOST])
    return HtmlPage(
        "Usage",
        joined([_budgets(view), section(f"The last {DAYS} days, in UTC", chosen, shown), _ledger(view)]),
        lead=LEAD,
    )


def _by_day(sums: Sequence[UsageSum], days: Sequence[str]) -> Html:
    by_day = {one.day: one for one in sums}
    most = max((one.cost for one in sums), default=Decimal(0))
    lines = [
        (day, bar(float(one.cost), float(most), money(one.cost)), count_text(one.requests), _tokens(one))
        for day in reversed(days)
        if (one := by_day.get(day)) is not None
    ]
    return table([("day", ""), ("cost", ""), ("requests", "number"), ("tokens", "number")], lines)


def _sums(view: View, name: str, sums: Sequence[UsageSum]) -> Html:
    most = max((one.cost for one in sums), default=Decimal(0))
    lines = [
        (
            _named(view, name, getattr(one, name)),
            bar(float(one.cost), float(most), money(one.cost)),
            count_text(one.requests),
            _tokens(one),
        )
        for one in sums
    ]
    return table([(name, ""), ("cost", ""), ("requests", "number"), ("tokens", "number")], lines)


def _named(view: View, name: str, value: str) -> Html:
    if name == "key" and value:
        return view.link(key_text(view, value), "keys", kind="")
    return name_text(value or ("the host" if name == "key" else f"without a {name}"))


def _tokens(one: UsageSum) -> str:
    return count_text(one.prompt_tokens + one.completion_tokens + one.trained_tokens)


def _budgets(view: View) -> Html:
    found = view.platform.usage.list_budgets().page(MOST, after=view.query.get("budgets_after"))
    lines = [
        (
            _whose(view, one),
            budget_bar(one),
            joined([one.period, tag("small", f"since {one.since}") if one.since else ""]),
            money(one.reserved),
            _warning(one),
        )
        for one in found
    ]
    more = view.link("More budgets", "usage", budgets_after=found.items[-1].id) if found.has_more else ""
    return section("Budgets", table([*_BUDGETS, ("warns at", "choice")], lines), more) if lines else Html("")


def budget_bar(one: Budget) -> Html:
    """Show how much of a budget is spent, and whether next to nothing is left."""
    shown = bar(float(one.spent), float(one.limit), f"{money(one.spent)} of {money(one.limit)}")
    if one.remaining >= one.limit * NEARLY:
        return shown
    return joined([shown, chip("used up" if one.remaining <= 0 else "nearly used up", "worse")])


def _whose(view: View, budget: Budget) -> Html:
    if budget.key_id is None:
        return joined(
            [name_text(budget.entity), tag("small", "project ", name_text(budget.project)) if budget.project else ""]
        )
    key = view.platform.keys.get(budget.key_id)
    return joined(["key ", view.link(key_text(view, key.id), "keys", kind=""), tag("small", limits_text(key))])


def _warning(budget: Budget) -> Html:
    if budget.warn_at is None:
        return html("")
    reached = joined([" ", chip("reached", "worse")]) if budget.alarming else ""
    return joined([f"{float(budget.warn_at * 100):g} %", reached])


def _ledger(view: View) -> Html:
    lines = [
        (
            when(one.created_at),
            name_text(one.model),
            count_text(one.prompt_tokens),
            count_text(one.completion_tokens),
            money(one.cost),
        )
        for one in view.platform.usage.list(order="desc").page(20)
    ]
    columns = [("time", "brief"), ("model", "brief")]
    columns += [("prompt tokens", "number"), ("completion tokens", "number"), ("cost", "number brief")]
    return section("Last in the ledger", table(columns, lines))
