"""`modelyard keep` and `modelyard delete-entity`."""

from contextlib import suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.terminal import (
    PlaceType,
    StoreName,
    entity_option,
    json_option,
    opened,
    say_if_unknown,
    show_fields,
    store_option,
)
from modelyard.parts.retention.retained import MOST_DAYS
from modelyard.parts.retention.service import Keep
from modelyard.parts.times import age_of


class Days(click.FloatRange):
    """A number of days, also written as in 12h, 30d or 4w."""

    name = "days"

    def __init__(self) -> None:
        super().__init__(0, MOST_DAYS, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number. Fails unless it is more than 0 and not beyond `MOST_DAYS`."""
        with suppress(OverflowError):
            age = age_of(value) if isinstance(value, str) else None
            return super().convert(value if age is None else age / timedelta(days=1), param, ctx)
        return super().convert(inf, param, ctx)


@click.command()
@store_option
@click.argument("what", type=click.Choice(["events", "ledger", "runs", "texts"]))
@click.argument("days", type=Days())
@click.option("--export", type=PlaceType(), help="Append what is removed to this file.")
@entity_option
@click.option("--project", help="Only those of projects of this name.")
@json_option
def keep(
    store: StoreName,
    what: str,
    days: float,
    export: Path | None,
    entity: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Remove what is older than so many days.

    Events of jobs that ended before, rows of the ledger, runs with their parts; or texts, of one entity or project if
    you like: stored completions, responses, traces, logs and files. Jobs and their results stay when their events go,
    and totals and budgets when rows of the ledger go.
    """
    if what == "texts" and export is not None:
        raise click.UsageError("--export goes with events, ledger and runs: texts that are to be forgotten go nowhere")
    if what != "texts" and (entity is not None or project is not None):
        raise click.UsageError("--entity and --project go with texts")
    with opened(store) as platform:
        if what == "texts":
            removed = attrs.asdict(platform.part(Keep).texts(days, entity=entity, project=project))
        elif what == "ledger":
            removed = {"rows": platform.part(Keep).ledger(days, export)}
        elif what == "events":
            removed = attrs.asdict(platform.part(Keep).events(days, export))
        else:
            removed = attrs.asdict(platform.part(Keep).runs(days, export))
    show_fields(removed.items(), as_json)


@click.command("delete-entity")
@store_option
@click.argument("entity")
@click.option("--keep-ledger", is_flag=True, help="Keep what it used and what that cost, without texts.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def delete_entity(store: StoreName, entity: str, keep_ledger: bool, yes: bool) -> object:
    """Delete all data of an entity for ever.

    Its keys, models, jobs, runs and texts go, with their files; running jobs are cancelled first. It may be repeated.
    """
    with opened(store) as platform:
        say_if_unknown(platform, entity)
        if not yes:
            click.confirm(f"Delete all data of {entity} for ever?", abort=True, err=True)
        removed = platform.delete_entity(entity, keep_ledger=keep_ledger)
    click.echo(f"deleted {removed} records of {entity}{', and kept its ledger' if keep_ledger else ''}")
    return {"entity": entity, "records": removed, "ledger_kept": keep_ledger}
