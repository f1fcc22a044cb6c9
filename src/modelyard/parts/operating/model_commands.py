"""Commands for trainable models, their checkpoints and their aliases."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import verdict_text
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    opened,
    show,
    show_fields,
    show_values,
    store_option,
)
from modelyard.domain.promotion import NotWorse
from modelyard.platform.platform import Platform

alias_option = click.option("--alias", default="prod", show_default=True, help="Which alias.")

MODEL_COLUMNS = ("id", "entity", "project", "name", "base_model", "last_step", "created_at")
CHECKPOINT_COLUMNS = ("step", "aliases", "pinned", "metrics", "created_at")


@click.group(cls=Group, invoke_without_command=True)
@store_option
@entity_option
@json_option
@click.pass_context
def models(context: click.Context, store: StoreName, entity: str | None, as_json: bool) -> None:
    """List trainable models, or look at one."""
    if context.invoked_subcommand is None:
        _list(store, entity, as_json)


@models.command("list")
@store_option
@entity_option
@json_option
def list_models(store: StoreName, entity: str | None, as_json: bool) -> None:
    """List trainable models."""
    _list(store, entity, as_json)


def _list(store: StoreName, entity: str | None, as_json: bool) -> None:
    columns = MODEL_COLUMNS if as_json else MODEL_COLUMNS[1:]
    with opened(store) as platform:
        show_values(as_json, columns, platform.models.list(entity=entity))


@models.command("show")
@store_option
@click.argument("model")
@json_option
def show_model(store: StoreName, model: str, as_json: bool) -> None:
    """Show MODEL (an id, or [entity/]project/name) with its aliases and its last training job."""
    with opened(store) as platform:
        found = platform.models.get(model)
        jobs = platform.training.list(model=found, order="desc").page(1).items
        fields = [(column, getattr(found, column)) for column in MODEL_COLUMNS]
        fields.append(("aliases", {alias.name: alias.step for alias in platform.models.aliases(found)}))
        fields.append(("last_job", f"{jobs[0].kind} {jobs[0].status}, {jobs[0].id}" if jobs else None))
    show_fields(fields, as_json)


@click.command()
@store_option
@click.argument("model")
@json_option
def checkpoints(store: StoreName, model: str, as_json: bool) -> None:
    """List the checkpoints of MODEL by step."""
    with opened(store) as platform:
        named = _aliases_by_step(platform, model)
        rows = [
            (one.step, ", ".join(named.get(one.step, [])), one.pinned, _metrics(one.metrics, as_json), one.created_at)
            for one in platform.models.checkpoints(model)
        ]
    show(as_json, CHECKPOINT_COLUMNS, rows)


def _aliases_by_step(platform: Platform, model: str) -> dict[int, list[str]]:
    named: dict[int, list[str]] = {}
    for alias in platform.models.aliases(model):
        named.setdefault(alias.step, []).append(alias.name)
    return named


def _metrics(metrics: object, as_json: bool) -> object:
    known = dict(metrics)  # type: ignore[call-overload]
    return known if as_json else ", ".join(f"{name} {value:.4g}" for name, value in sorted(known.items()))


@click.command()
@store_option
@click.argument("model")
@json_option
def aliases(store: StoreName, model: str, as_json: bool) -> None:
    """List the aliases of MODEL, and where each pointed before."""
    with opened(store) as platform:
        show_values(as_json, ("name", "step", "previous_step", "updated_at"), platform.models.aliases(model))


@click.command("promote")
@store_option
@click.argument("model")
@click.argument("step", type=click.IntRange(min=0))
@alias_option
@click.option("--not-worse", metavar="EVALUATION", help="Only if its run of this is not worse than the current one's.")
def promote(store: StoreName, model: str, step: int, alias: str, not_worse: str | None) -> object:
    """Point an alias of MODEL (an id, or [entity/]project/name) at the checkpoint of STEP."""
    require = None if not_worse is None else NotWorse(not_worse)
    with opened(store) as platform:
        made = in_own_name(platform).models.promote(model, step, alias, require=require)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step) + verdict_text(made.verdict))
    return made


@click.command("rollback")
@store_option
@click.argument("model")
@alias_option
def rollback(store: StoreName, model: str, alias: str) -> object:
    """Point an alias of MODEL back to where it pointed before."""
    with opened(store) as platform:
        made = in_own_name(platform).models.rollback(model, alias)
    click.echo(f"{alias} points to step {made.step}" + _before(made.from_step))
    return made


def _before(step: int | None) -> str:
    return "" if step is None else f", before to step {step}"
