"""The commands that have a prompt optimised, and several roads compared."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from modelyard.cli.answers import json_text
from modelyard.cli.lazy_group import Group
from modelyard.cli.names import values_option
from modelyard.cli.terminal import PlaceType, StoreName, json_option, not_empty, opened, show, store_option
from modelyard.errors import JobFailed
from modelyard.parts.improve.result import ImprovementResult
from modelyard.report.terminal import log_to_terminal


def _reward(context: click.Context, option: click.Parameter, given: str) -> Any:
    if not given.startswith("{"):
        return given
    try:
        return json.loads(given)
    except ValueError as wrong:
        raise click.BadParameter(f"is no JSON: {wrong}") from wrong


@click.command()
@store_option
@click.argument("variant", callback=not_empty)
@click.argument("tasks", callback=not_empty)
@click.option("--reflection", required=True, metavar="MODEL", help="The model that writes the texts.")
@click.option(
    "--reward", required=True, callback=_reward, help='A scorer: its name, or JSON such as {"type": "contains"}.'
)
@click.option("--held-out", metavar="FILE", help="The rows that decide which text is best, else TASKS.")
@click.option("--budget", metavar="USD", help="What it may spend.")
@values_option("A setting, such as calls=300; repeat for more.")
@click.option("--idempotency-key", metavar="KEY", help="The same command with the same KEY makes one job only.")
@click.option("--no-wait", is_flag=True, help="Leave the job to a worker, and print its id.")
def train_prompt(
    store: StoreName, variant: str, tasks: str, options: tuple[tuple[str, Any], ...], no_wait: bool, **more: Any
) -> Mapping[str, Any]:
    """Have the system text of VARIANT optimised on TASKS, by GEPA.

    VARIANT is a name, such as desk/support or desk/support@prod, and TASKS a file of rows.
    """
    given = {name: value for name, value in more.items() if value is not None}
    with opened(store) as platform:
        try:
            job = platform.training.prompt(variant, tasks, **given, **dict(options))
        except TypeError as wrong:
            raise click.UsageError(str(wrong)) from wrong
        if no_wait:
            click.echo(job.id)
            return {"job": job.id}
        try:
            log_to_terminal()
            made = job.version(progress=sys.stderr.isatty())
        except JobFailed as failed:
            raise click.ClickException(f"{failed}; modelyard jobs show {job.id} shows all") from failed
        metrics = job.refresh().metrics
    before, best = (f"{metrics[name]:.4g}" for name in ("start_held_out", "best_held_out"))
    name = variant.partition("@")[0]
    click.echo(f"{name}@{made.number} has the best prompt: {best} on the held-out tasks, {before} before")
    return {"job": job.id, "variant": name, "version": made.number, "metrics": dict(metrics)}


# ---- improvements


def _read_roads(given: tuple[str, ...]) -> list[Mapping[str, Any] | str]:
    try:
        return [json.loads(text) if text.startswith("{") else text for text in given]
    except ValueError as wrong:
        raise click.UsageError(f"--road is no JSON: {wrong}") from wrong


@click.group(cls=Group)
def improve() -> None:
    """Try several roads to better answers, or look at what they came to."""


@improve.command("start")
@store_option
@click.argument("variant", callback=not_empty)
@click.argument("tasks", callback=not_empty)
@click.option("--reward", required=True, callback=_reward, help="A scorer: its name, or JSON.")
@click.option(
    "--road",
    "roads",
    multiple=True,
    required=True,
    metavar="ROAD|JSON",
    help='Such as sft, or {"road": "prompt", "reflection": "big-model"}; repeat for more.',
)
@click.option("--budget", metavar="USD", help="What the roads may spend together.")
@click.option("--unseen", default=0.3, show_default=True, help="The part of the tasks that no road sees.")
@click.option("--seed", type=int, help="What is drawn depends on it.")
@click.option("--name", help="Its name, and the first part of the names of its models.")
@click.option("--idempotency-key", metavar="KEY", help="The same command with the same KEY starts one only.")
@click.option("--no-wait", is_flag=True, help="Leave the jobs to workers, and print its id.")
def start_improvement(
    store: StoreName, variant: str, tasks: str, roads: tuple[str, ...], no_wait: bool, **more: Any
) -> Mapping[str, Any]:
    """Try roads to better answers from VARIANT on TASKS, a file of rows."""
    given = {name: value for name, value in more.items() if value is not None}
    with opened(store) as platform:
        made = platform.improve(variant, tasks, roads=_read_roads(roads), **given)
        if no_wait:
            click.echo(made.id)
            return {"improvement": made.id}
        log_to_terminal()
        found = made.result()
    click.echo(str(found))
    return {"improvement": made.id, **_said(found)}


@improve.command("list")
@store_option
@json_option
def list_improvements(store: StoreName, as_json: bool) -> None:
    """List improvements, the newest first."""
    with opened(store) as platform:
        jobs = [one.stored() for one in platform.improve.list()]
    lines = [(job.spec["name"], job.project, job.spec["variant"], str(job.status), job.created_at) for job in jobs]
    show(as_json, ("name", "project", "variant", "status", "created_at"), lines)


@improve.command("show")
@store_option
@click.argument("improvement")
@click.option("--save", type=PlaceType(), metavar="FILE", help="Write it as a page or Markdown, such as roads.html.")
@json_option
def show_improvement(store: StoreName, improvement: str, save: Path | None, as_json: bool) -> None:
    """Show IMPROVEMENT, by its name ([entity/]project/name) or id: its roads, and what to take."""
    with opened(store) as platform:
        handle = platform.improve.get(improvement)
        if not handle.stored().ended:
            raise click.ClickException(f"it is {handle.status}; wait for its end")
        found = handle.result()
    if save:
        found.save(save)
    if as_json:
        click.echo(json_text(_said(found)))
    else:
        click.echo(str(found))


def _said(found: ImprovementResult) -> dict[str, Any]:
    lines = [one.plain() for one in found.roads]
    return {"recommendation": found.recommendation, "baseline": found.baseline, "roads": lines}
