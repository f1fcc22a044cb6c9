"""Commands for trainable models, their aliases, and usage."""

import click

from modelyard.cli.terminal import StoreName, entity_option, json_option, opened, show_values, store_option
from modelyard.domain.promotion import NotWorse

alias_option = click.option("--alias", default="prod", show_default=True, help="Which alias.")

MODEL_COLUMNS = ("id", "entity", "project", "name", "base_model", "last_step", "created_at")
COUNTED = ("requests", "prompt_tokens", "completion_tokens", "cost")


@click.command()
@store_option
@entity_option
@json_option
def models(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List trainable models."""
    with opened(store) as platform:
        show_values(as_json, MODEL_COLUMNS, platform.models.list(entity=entity))


@click.command("promote")
@store_option
@click.argument("model")
@click.argument("step", type=click.IntRange(min=0))
@alias_option
@click.option("--not-worse", metavar="EVALUATION", help="Only if its run of this is not worse than the current one's.")
def promote(store: StoreName, model: str, step: int, alias: str, not_worse: str | None) -> None:
    """Point an alias of MODEL (an id, or entity/project/name) at the checkpoint of STEP."""
    require = None if not_worse is None else NotWorse(not_worse)
    with opened(store) as platform:
        made = platform.models.promote(model, step, alias, require=require)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step))


@click.command("rollback")
@store_option
@click.argument("model")
@alias_option
def rollback(store: StoreName, model: str, alias: str) -> None:
    """Point an alias of MODEL back to where it pointed before."""
    with opened(store) as platform:
        made = platform.models.rollback(model, alias)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step))


def _before(step: int | None) -> str:
    return "" if step is None else f", before to step {step}"


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
