"""The commands of sweeps: list them, look at one, start one."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import own_name, parsed_option
from modelyard.cli.terminal import (
    PlaceType,
    StoreName,
    entity_option,
    json_option,
    names_once,
    not_empty,
    opened,
    show,
    store_option,
)
from modelyard.parts.sweeps.handle import SweepHandle
from modelyard.parts.sweeps.records import number
from modelyard.parts.sweeps.results import best_trial
from modelyard.report.terminal import log_to_terminal

COLUMNS = ("name", "trials", "ended", "best", "score", "created_at")


def _axis(text: str) -> tuple[str, Any]:
    """Parse learning_rate=1e-5,1e-4 as several values, and another option as one."""
    name, value = parsed_option(text)
    given = text.partition("=")[2]
    several = not isinstance(value, list | dict) and "," in given
    return name, [parsed_option(f"{name}={one}")[1] for one in given.split(",")] if several else value


@click.command()
@store_option
@click.argument("model", callback=not_empty)
@click.argument("data", callback=not_empty)
@click.option(
    "--option",
    "-o",
    "options",
    multiple=True,
    type=_axis,
    callback=names_once,
    metavar="NAME=VALUE,VALUE",
    help="A setting of the method with its values, such as learning_rate=1e-5,1e-4; repeat for more.",
)
@click.option("--method", type=click.Choice(["sft", "dpo"]), default="sft", show_default=True, help="How to train.")
@click.option("--validation", default="0.1", show_default=True, help="The part to hold out, or a file or data set.")
@click.option("--samples", type=int, help="Draw so many of the combinations.")
@click.option("--halving", type=int, metavar="N", help="Stop the worst early: one of N goes on each time.")
@click.option("--seed", default=0, show_default=True, type=int, help="What is drawn and held out depends on it.")
@click.option("--priority", type=int, help="From -1000 to 1000; the higher, the earlier each job runs.")
@click.option("--name", help="Its name, and the first part of the names of its models.")
@click.option("--idempotency-key", metavar="KEY", help="The same command with the same KEY starts one sweep only.")
@click.option("--no-wait", is_flag=True, help="Leave the jobs to workers, and print its id.")
def train_sweep(
    store: StoreName,
    model: str,
    data: str,
    options: tuple[tuple[str, Any], ...],
    validation: str,
    no_wait: bool,
    priority: int | None,
    **more: Any,
) -> object:
    """Train MODEL on DATA with every combination of options.

    DATA is a file, or the name or URL of a data set, such as modelyard:///local/desk/rooms-train:v0.
    """
    if priority is not None:
        more["needs"] = {"priority": priority}
    with opened(store) as platform:
        try:
            sweep = platform.training.sweep(model, data, validation=_part(validation), **more, **dict(options))
        except TypeError as wrong:  # an option that the method lacks
            raise click.UsageError(str(wrong)) from wrong
        if no_wait:
            click.echo(sweep.id)
            return {"sweep": sweep.id}
        log_to_terminal()
        _print(ended := sweep.wait())
        return {"sweep": sweep.id, "trials": _plain_trials(ended)}


def _part(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


@click.group(cls=Group)
def sweeps() -> None:
    """List sweeps, or look at one."""


@sweeps.command("list")
@store_option
@entity_option
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@json_option
def list_sweeps(store: StoreName, entity: str | None, last: int, as_json: bool) -> None:
    """List sweeps, the newest first."""
    with opened(store) as platform:
        lines = [
            [own_name(platform, one.record), *_line(one)]
            for one in islice(platform.training.sweeps.list(entity=entity), last)
        ]
    show(as_json, COLUMNS, lines)


def _line(sweep: SweepHandle) -> list[Any]:
    record, trials = sweep.record, sweep.table()
    best = best_trial(record, trials)
    ended = sum(one.status not in ("queued", "running") for one in trials)
    found = ["", ""] if best is None else [best.trial.number, number(best.score)]
    return [len(trials), ended, *found, record.created_at]


@sweeps.command("show")
@store_option
@click.argument("sweep")
@click.option("--save", type=PlaceType(), metavar="FILE", help="Write a page of it, such as sweep.html.")
@json_option
def show_sweep(store: StoreName, sweep: str, save: Path | None, as_json: bool) -> None:
    """Show SWEEP, by its name ([[entity/]project/]name) or id: its trials, the lowest held-out loss first."""
    with opened(store) as platform:
        found = platform.training.sweeps.get(sweep)
        if save:
            found.save(save)
        if as_json:
            click.echo(json.dumps(_plain_trials(found)))
        else:
            _print(found)


def _plain_trials(sweep: SweepHandle) -> list[dict[str, Any]]:
    return [{**attrs.asdict(one), "options": dict(one.options)} for one in sweep.table()]


def _print(sweep: SweepHandle) -> None:
    click.echo(str(sweep.table()))
    best = sweep.best
    if best is not None:
        click.echo(f"\nbest: {best}")
