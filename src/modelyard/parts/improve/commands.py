"""The command that has a prompt optimised."""

import json
import sys
from typing import Any

import click

from modelyard.cli.names import values_option
from modelyard.cli.terminal import StoreName, not_empty, opened, store_option
from modelyard.errors import JobFailed
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
) -> None:
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
            return
        try:
            log_to_terminal()
            made = job.version(progress=sys.stderr.isatty())
        except JobFailed as failed:
            raise click.ClickException(f"{failed}; modelyard jobs show {job.id} shows all") from failed
        metrics = job.refresh().metrics
    before, best = (f"{metrics[name]:.4g}" for name in ("start_held_out", "best_held_out"))
    name = variant.partition("@")[0]
    click.echo(f"{name}@{made.number} has the best prompt: {best} on the held-out tasks, {before} before")
