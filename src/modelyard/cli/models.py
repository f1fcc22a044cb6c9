"""Commands for trainable models."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    json_option,
    opened,
    show_fields,
    show_values,
    store_option,
)

MODEL_COLUMNS = ("id", "entity", "project", "name", "base_model", "last_step", "created_at")


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
