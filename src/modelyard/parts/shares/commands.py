"""Commands for the shares of entities in the workers."""

import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    Pairs,
    StoreName,
    json_option,
    names_once,
    opened,
    say_if_unknown,
    show_values,
    store_option,
)

COLUMNS = ("entity", "weight", "running", "running_of")


def _limit(text: str) -> tuple[str, int]:
    kind, _, number = text.partition("=")
    if not kind or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not like sft=2")
    return kind, int(number)


@click.group(cls=Group)
def shares() -> None:
    """Set what entities get of the workers."""


@shares.command("list")
@store_option
@json_option
def list_shares(store: StoreName, as_json: bool) -> None:
    """List the shares of the entities that have had jobs or were given one."""
    with opened(store) as platform:
        show_values(as_json, COLUMNS, list(platform.shares.list()))


@shares.command("set")
@store_option
@click.argument("entity")
@click.option(
    "--weight", default=1, show_default=True, help="How many jobs it gets, for each of an entity of weight 1."
)
@click.option("--running", type=int, help="How many of its jobs may run at a time; by default any number.")
@click.option(
    "--running-of",
    type=_limit,
    callback=names_once,
    multiple=True,
    metavar="KIND=N",
    help="The same for jobs of a kind; repeat for more.",
)
@json_option
def set_share(
    store: StoreName,
    entity: str,
    weight: int,
    running: int | None,
    running_of: Pairs,
    as_json: bool,
) -> None:
    """Replace the share of ENTITY in the workers."""
    with opened(store) as platform:
        share = platform.shares.set(entity, weight=weight, running=running, running_of=dict(running_of))
        say_if_unknown(platform, entity)
    show_values(as_json, COLUMNS, [share])
