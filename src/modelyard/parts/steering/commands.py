"""The commands that steer a run, and show what was asked of it."""

from typing import Any

import click

from modelyard.cli.names import run_named, values_option
from modelyard.cli.terminal import StoreName, in_own_name, json_option, opened, show, store_option
from modelyard.parts.steering.records import SteeringEntry
from modelyard.parts.steering.service import Steering

COLUMNS = ("at", "by", "action", "what", "applied")


def _asked(store: StoreName, run: str, action: str, *arguments: Any) -> SteeringEntry:
    with opened(store) as platform:
        found = run_named(platform, run)
        made: SteeringEntry = getattr(in_own_name(platform).part(Steering), action)(found.id, *arguments)
    done = "done" if made.applied_at else "a worker does it after the rows under way"
    click.echo(f"{made.action} {what_text(made)}".rstrip() + f": {done}")
    return made


def what_text(entry: SteeringEntry) -> str:
    changed = [f"{name} {before} -> {to}" for name, (before, to) in entry.changed.items()]
    chosen = ["the failed rows"] if entry.rows.get("failed") else []
    indices = entry.rows.get("indices", ())
    return ", ".join((*changed, *chosen, *([f"{len(indices)} rows"] if indices else [])))


@click.command()
@store_option
@click.argument("run")
def pause(store: StoreName, run: str) -> object:
    """Stop RUN after the rows under way, until it is resumed."""
    return _asked(store, run, "pause")


@click.command()
@store_option
@click.argument("run")
def resume(store: StoreName, run: str) -> object:
    """Let RUN go on, which is paused."""
    return _asked(store, run, "resume")


@click.command()
@store_option
@click.argument("run")
@click.option("--row", "rows", type=int, multiple=True, help="The index of a row, from 0 on; repeat for more.")
def requeue(store: StoreName, run: str, rows: tuple[int, ...]) -> object:
    """Ask the failed rows of RUN again, or those that --row names. They are booked again."""
    return _asked(store, run, "requeue", rows or None)


@click.command()
@store_option
@click.argument("run")
@values_option("concurrency, scorer_concurrency, timeout, retries or error_budget, such as concurrency=2.")
def limits(store: StoreName, run: str, options: tuple[tuple[str, Any], ...]) -> object:
    """Give RUN other limits while it runs."""
    return _asked(store, run, "change_limits", dict(options))


@click.command("add-rows")
@store_option
@click.argument("run")
@click.argument("rows")
def add_rows(store: StoreName, run: str, rows: str) -> object:
    """Add ROWS to RUN: a file (.csv, else JSON Lines), or the reference of a dataset."""
    return _asked(store, run, "add_rows", rows)


@click.command()
@store_option
@click.argument("run")
@json_option
def steering(store: StoreName, run: str, as_json: bool) -> None:
    """List what was asked of RUN, by whom and when."""
    with opened(store) as platform:
        found = platform.part(Steering).audit(run_named(platform, run).id)
    what = [{**one.changed, **one.rows} if as_json else what_text(one) for one in found]
    lines = [(one.created_at, one.by, one.action, said, one.applied_at) for one, said in zip(found, what, strict=True)]
    show(as_json, COLUMNS, lines)
