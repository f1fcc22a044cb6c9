"""Commands for usage, its cost, and budgets."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    C,
    StoreName,
    entity_option,
    json_option,
    opened,
    say_if_unknown,
    show,
    show_values,
    store_option,
)
from modelyard.domain.record import EMPTY
from modelyard.domain.usage import BudgetPeriod, UsageSum
from modelyard.parts.operating.key_commands import key_named
from modelyard.parts.operating.ranges import range_of
from modelyard.platform.platform import Platform

COUNTED = ("requests", "prompt_tokens", "completion_tokens", "cost")
BY = "entity,project,model"
_KEY = {"key", "key_id"}
"""Columns with the id of a key."""

ALL_COUNTED = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "images", "trained_tokens")
SLOWEST_COLUMNS = (
    "seconds",
    "model",
    "entity",
    "project",
    "prompt_tokens",
    "completion_tokens",
    "ended_at",
    "id",
)
NO_SLOWEST = (
    "no slow answer is kept of this time: a process keeps its own while it serves over HTTP, and below another"
    " application while it has a worker or platform.upkeep()"
)
BUDGET_COLUMNS = (
    "entity",
    "key_id",
    "project",
    "limit",
    "period",
    "since",
    "spent",
    "reserved",
    "remaining",
    "warn_at",
    "alarming",
)


def _one_option(command: C) -> C:
    """Add `--key` and `--project`, which say whose budget it is."""
    named = click.option("--key", help="The budget of one key: its id, its name or how its secret begins.")
    return named(click.option("--project", help="The budget of one project.")(command))


def _whose(platform: Platform, entity: str, key: str | None, project: str | None) -> dict[str, str | None]:
    return {"entity": entity, "key_id": key and key_named(platform, key).id, "project": project}


@click.command()
@store_option
@click.option("--by", help=f"Comma-joined: entity, project, model, key, day.  [default: {BY}]")
@click.option("--since", metavar="TIME", help="Only from 2026-11-23 on, in UTC, or of the last 2h, 30d or 4w.")
@click.option("--until", metavar="TIME", help="Only before this date, time or age.")
@click.option("--month", metavar="YYYY-MM", help="Only of this month in UTC.")
@entity_option
@click.option("--project", help="Only those of this project.")
@click.option(
    "--slowest",
    is_flag=False,
    flag_value=10,
    type=click.IntRange(1, 1000),
    metavar="[N]",
    help="List the N slowest answers [default N: 10].",
)
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets, with exact costs and all counts.")
@json_option
def usage(
    store: StoreName,
    by: str | None,
    since: str | None,
    until: str | None,
    month: str | None,
    slowest: int | None,
    as_csv: bool,
    as_json: bool,
    **of: Any,
) -> None:
    """Sum usage and its cost, or list the slowest answers that servers gave within 31 days."""
    if as_csv and as_json:
        raise click.UsageError("give --csv or --json, not both")
    if slowest is not None:
        if by is not None or of.pop("project") is not None:
            raise click.UsageError("--slowest takes no --by and no --project")
        _list_slowest(store, as_json, as_csv, slowest, (since, until, month), of)
        return
    columns = tuple((BY if by is None else by).split(","))
    with opened(store) as platform:
        times = range_of(since, until, month, platform.clock.now())
        found = platform.usage.total(columns, **times, **of)
        names = _key_names(platform) if "key" in columns else EMPTY
    if as_csv:
        click.echo(csv_of(columns, found, names), nl=False)
    else:
        _show_with_names(as_json, (*columns, *COUNTED), found, names)


def _list_slowest(
    store: StoreName,
    as_json: bool,
    as_csv: bool,
    limit: int,
    times: tuple[str | None, str | None, str | None],
    of: Mapping[str, Any],
) -> None:
    with opened(store) as platform:
        found = platform.metrics.slowest(limit, **range_of(*times, platform.clock.now()), **of)
        if as_csv:
            click.echo(_csv([SLOWEST_COLUMNS, *(_slow_line(one) for one in found)]), nl=False)
            return
        if not as_json:
            found = [attrs.evolve(one, seconds=round(one.seconds, 3)) for one in found]
        show_values(as_json, SLOWEST_COLUMNS, found)
    if not (found or as_json):
        click.echo(NO_SLOWEST, err=True)


def _slow_line(one: object) -> Sequence[Any]:
    values = [getattr(one, column) for column in SLOWEST_COLUMNS]
    shown = [value.isoformat() if isinstance(value, datetime) else value for value in values]
    return [_no_formula(value) if isinstance(value, str) else value for value in shown]


def _csv(lines: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(lines)
    return out.getvalue()


def csv_of(by: Sequence[str], sums: Iterable[UsageSum], names: Mapping[str | None, str] = EMPTY) -> str:
    """Return sums as CSV, with the `names` of keys by their ids: no name is a formula, and no cost is rounded or
    written with an exponent."""
    lines: list[Sequence[Any]] = [[*_with_name(by), *ALL_COUNTED, "cost_usd"]]
    for one in sums:
        counts = [getattr(one, name) for name in ALL_COUNTED]
        lines.append([*map(_no_formula, _line(by, one, names)), *counts, f"{one.cost:f}"])
    return _csv(lines)


def _key_names(platform: Platform) -> Mapping[str | None, str]:
    """Return the names of keys by their ids; what has no key is the host's, or is of no key."""
    return {"": "the host", **{key.id: key.name for key in platform.keys.list()}}


def _with_name(columns: Sequence[str]) -> Sequence[str]:
    """Return the columns, with a name next to the id of a key."""
    return [name for column in columns for name in ((column, "key_name") if column in _KEY else (column,))]


def _line(columns: Sequence[str], one: object, names: Mapping[str | None, str]) -> Sequence[Any]:
    line = list[Any]()
    for column in columns:
        value = getattr(one, column)
        line += [value, names.get(value, "")] if column in _KEY else [value]
    return line


def _show_with_names(
    as_json: bool, columns: Sequence[str], found: Iterable[object], names: Mapping[str | None, str]
) -> None:
    show(as_json, _with_name(columns), [_line(columns, one, names) for one in found])


def _no_formula(name: str) -> str:
    return f"'{name}" if name.startswith(("=", "+", "-", "@", "\t", "\r")) else name


@click.group(cls=Group)
def budget() -> None:
    """Bound what entities, keys and projects may spend."""


@budget.command("list")
@store_option
@entity_option
@json_option
def list_budgets(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List budgets, with what is spent of each in its period."""
    with opened(store) as platform:
        names = _key_names(platform)
        _show_with_names(as_json, BUDGET_COLUMNS, platform.usage.list_budgets(entity=entity), names)


@budget.command("set")
@store_option
@click.argument("entity")
@click.argument("limit")
@_one_option
@click.option(
    "--period", type=click.Choice([period.value for period in BudgetPeriod]), default="total", show_default=True
)
@click.option("--warn-at", metavar="SHARE", help="Warn when this share of it is spent, such as 0.8.")
def set_budget(
    store: StoreName,
    entity: str,
    limit: str,
    key: str | None,
    project: str | None,
    period: str,
    warn_at: str | None,
) -> object:
    """Let ENTITY, or one key or project of it, spend LIMIT USD: in total, or in each day or month."""
    with opened(store) as platform:
        whose = _whose(platform, entity, key, project)
        made = platform.usage.set_budget(limit, **whose, period=period, warn_at=warn_at)
        say_if_unknown(platform, entity)
    every = "in total" if made.period is BudgetPeriod.TOTAL else f"a {made.period}"
    whom = f"key {key} of {entity}" if key else f"project {project} of {entity}" if project else entity
    click.echo(f"{whom} may spend {made.limit:f} USD {every}, and has spent {made.spent:f}")
    return made


@budget.command("remove")
@store_option
@click.argument("entity")
@_one_option
def remove_budget(store: StoreName, entity: str, key: str | None, project: str | None) -> object:
    """Remove the budget of ENTITY, or of one key or project of it, with its record of what was spent."""
    with opened(store) as platform:
        whose = _whose(platform, entity, key, project)
        platform.usage.remove_budget(**whose)
    click.echo(f"{entity} has no such budget any more")
    return whose
