"""Parts that the commands share: options, errors as one line, the platform of a store, tables."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from modelyard.compose import is_address, open_platform
from modelyard.errors import ModelyardError
from modelyard.platform.platform import Platform
from modelyard.report.table import printable, text_table

StoreName = Path | str
"""The SQLite file of a platform, or the address of its database."""


class StoreType(click.Path):
    """The type of `--store`: a file, or an address, which stays a string."""

    name = "store"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the address as it is, or the path of the file."""
        return value if is_address(value) else super().convert(value, param, ctx)


STORE_HELP = "The SQLite file of the platform, or the address of its database: postgresql://host/yard"
_PASSWORD = re.compile(r"(?<=://)([^:/@?]*):.*(?=@)|(password)=[^&]*")

C = TypeVar("C", bound=Callable[..., Any])
_ARTIFACTS = "modelyard.artifacts"

artifacts_option = click.option(
    "--artifacts",
    metavar="FOLDER|ADDRESS",
    expose_value=False,
    callback=lambda context, _, value: context.meta.update({_ARTIFACTS: value}),
    help="Its artifacts, as in s3://bucket/prefix, where they are not next to its file.",
)
"""Read by `opened`, so that no command passes it on."""


def store_option(command: C) -> C:
    """Add the options that name a platform: `--store`, which the command gets, and `--artifacts`."""
    named = click.option("--store", type=StoreType(), required=True, metavar="FILE|ADDRESS", help=STORE_HELP)
    return named(artifacts_option(command))


entity_option = click.option("--entity", help="Only those of this entity.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


class Group(click.Group):
    """A group whose commands report the library's errors as one line, without a traceback."""

    def invoke(self, context: click.Context) -> Any:
        """Run the command; a `ModelyardError` becomes exit status 1 and its message."""
        try:
            return super().invoke(context)
        except ModelyardError as error:
            raise click.ClickException(str(error)) from error


def require_file(store: Path) -> None:
    """Raise if there is no such file."""
    if not store.exists():
        raise click.ClickException(f"there is no store at {store}; `modelyard serve --store {store}` makes one")


@contextmanager
def opened(store: StoreName, must_exist: bool = True) -> Iterator[Platform]:
    """Open the platform in `store`."""
    if must_exist and isinstance(store, Path):
        require_file(store)
    with open_platform(store, artifacts=named_artifacts()) as platform:
        yield platform


def named_artifacts() -> str | None:
    """Return what the running command was given as `--artifacts`."""
    named: str | None = click.get_current_context().meta.get(_ARTIFACTS)
    return named


def printable_store(store: StoreName) -> str:
    """Return the name of a store without a password that its address has."""
    return _PASSWORD.sub(lambda found: f"{found[1]}:***" if found[2] is None else "password=***", str(store))


def show(as_json: bool, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print rows as a table, or as one JSON array of objects."""
    if as_json:
        click.echo(json.dumps([dict(zip(headers, row, strict=True)) for row in rows], default=str))
    else:
        click.echo(text_table(headers, [["" if value is None else value for value in row] for row in rows]))


def show_values(as_json: bool, columns: Sequence[str], found: Iterable[object]) -> None:
    """Print values like `show`, a row each: the columns are their attributes."""
    show(as_json, columns, [[getattr(value, column) for column in columns] for value in found])


def show_fields(fields: Iterable[tuple[str, Any]]) -> None:
    """Print named values, a line each."""
    lines = [(name, "" if value is None else printable(value)) for name, value in fields]
    width = max(len(name) for name, _ in lines)
    for name, value in lines:
        click.echo(f"{name:{width}}  {value}".rstrip())
