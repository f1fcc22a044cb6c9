"""The commands of data sets: list, rows and split."""

import json
from itertools import islice

import click

from modelyard.cli.answers import tell
from modelyard.cli.lazy_group import Group
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    json_option,
    not_empty,
    opened,
    show,
    show_fields,
    store_option,
)

COLUMNS = ("url", "rows", "size", "created_at")


@click.group(cls=Group)
def datasets() -> None:
    """List, read and split data sets."""


@datasets.command("list")
@store_option
@entity_option
@click.option("--project", help="Only those of this project.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@json_option
def list_datasets(store: StoreName, entity: str | None, project: str | None, last: int, as_json: bool) -> None:
    """List the versions of data sets, the newest first."""
    with opened(store) as platform:
        found = list(islice(platform.datasets.list(entity=entity, project=project), last))
    show(as_json, COLUMNS, [[getattr(one, column) for column in COLUMNS] for one in found])


@datasets.command("rows")
@store_option
@click.argument("dataset")
@click.option("--first", default=10, show_default=True, type=click.IntRange(1), help="How many rows.")
def show_rows(store: StoreName, dataset: str, first: int) -> None:
    """Print the first rows of DATASET, a name ([[entity/]project/]name[:v0]) or a URL, as JSON Lines."""
    with opened(store) as platform:
        for row in islice(platform.datasets.rows(dataset), first):
            click.echo(json.dumps(row, ensure_ascii=False))
            tell(row)


@datasets.command("split")
@store_option
@click.argument("data", callback=not_empty)
@click.option("--held-out", default=0.1, show_default=True, type=float, help="About which part is held out.")
@click.option("--seed", default=0, show_default=True, type=int, help="Another seed is another split.")
@click.option("--group", metavar="FIELD", help="Keep rows with the same value in this field together: metadata.user.")
@click.option("--name", help="The first part of the names; by default that of DATA.")
@click.option("--project", help="Where the data sets of a file are made.")
@json_option
def split(
    store: StoreName,
    data: str,
    held_out: float,
    seed: int,
    group: str | None,
    name: str | None,
    project: str | None,
    as_json: bool,
) -> None:
    """Split DATA, a data set or a file, in NAME-train and NAME-held-out, which share no row and no group."""
    with opened(store) as platform:
        made = platform.datasets.split(data, held_out=held_out, seed=seed, group=group, name=name, project=project)
        fields = [("train", made.train.url), ("rows", made.train.rows)]
        show_fields([*fields, ("held_out", made.held_out.url), ("held_out_rows", made.held_out.rows)], as_json)
