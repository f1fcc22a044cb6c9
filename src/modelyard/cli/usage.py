"""Commands for usage, its cost, and budgets."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import key_named
from modelyard.cli.terminal import StoreName, entity_option, json_option, opened, show_values, store_option
from modelyard.domain.usage import BudgetPeriod

COUNTED = ("requests", "prompt_tokens", "completion_tokens", "cost")
BUDGET_COLUMNS = (
    "entity",
    "key_id",
    "limit",
    "period",
    "since",
    "spent",
    "reserved",
    "remaining",
    "warn_at",
    "alarming",
)

key_option = click.option("--key", help="The budget of one key: its id, its name or how its secret begins.")


@click.command()
@store_option
@click.option(
    "--by", default="entity,project,model", show_default=True, help="Comma-joined: entity, project, model, key, day."
)
@json_option
def usage(store: StoreName, by: str, as_json: bool) -> None:
    """Sum usage and its cost."""
    columns = tuple(by.split(","))
    with opened(store) as platform:
        show_values(as_json, (*columns, *COUNTED), platform.usage.total(by=columns))


@click.group(cls=Group)
def budget() -> None:
    """Bound what entities and keys may spend."""


@budget.command("list")
@store_option
@entity_option
@json_option
def list_budgets(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List budgets, with what is spent of each in its period."""
    with opened(store) as platform:
        show_values(as_json, BUDGET_COLUMNS, platform.usage.list_budgets(entity=entity))


@budget.command("set")
@store_option
@click.argument("entity")
@click.argument("limit")
@key_option
@click.option(
    "--period", type=click.Choice([period.value for period in BudgetPeriod]), default="total", show_default=True
)
@click.option("--warn-at", metavar="SHARE", help="Warn when this share of it is spent, such as 0.8.")
def set_budget(store: StoreName, entity: str, limit: str, key: str | None, period: str, warn_at: str | None) -> None:
    """Let ENTITY, or one key of it, spend LIMIT USD: in total, or in each day or month."""
    with opened(store) as platform:
        key_id = None if key is None else key_named(platform, key).id
        made = platform.usage.set_budget(limit, entity=entity, key_id=key_id, period=period, warn_at=warn_at)
    every = "in total" if made.period is BudgetPeriod.TOTAL else f"a {made.period}"
    click.echo(f"{entity} may spend {made.limit:f} USD {every}, and has spent {made.spent:f}")


@budget.command("remove")
@store_option
@click.argument("entity")
@key_option
def remove_budget(store: StoreName, entity: str, key: str | None) -> None:
    """Remove the budget of ENTITY, or of one key of it, with its record of what was spent."""
    with opened(store) as platform:
        key_id = None if key is None else key_named(platform, key).id
        platform.usage.remove_budget(entity=entity, key_id=key_id)
    click.echo(f"{entity} has no such budget any more")
