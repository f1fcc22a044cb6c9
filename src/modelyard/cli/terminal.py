"""Parts that the commands share: options, errors as one line, the platform of a store, tables."""

import getpass
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import attrs
import click
from click.core import ParameterSource

from modelyard.cli.answers import JSON_HELP, json_text
from modelyard.cli.lazy_group import parts_of
from modelyard.compose import is_address, open_platform, store_address
from modelyard.errors import ArtifactsUnavailable, InvalidInput, StoreBusy, nearest
from modelyard.part import refuse_address
from modelyard.platform.platform import Platform
from modelyard.report.table import printable, text_table
from modelyard.stores.sqlite import nothing_half_made
from modelyard.worker import platform_of

StoreName = Path | str


class StoreType(click.Path):
    name = "store"

    def __init__(self) -> None:
        super().__init__(dir_okay=False, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return value if is_address(value, parts_of(ctx)) else super().convert(value, param, ctx)
        except InvalidInput as error:
            self.fail(error.problems[0].msg, param, ctx)


class PlaceType(click.Path):
    """The type of the path of what is written: no address, and in a folder that is there."""

    def __init__(self, file_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=not file_okay, path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            refuse_address(value, "name the path of a file" if self.file_okay else "name a folder")
        except InvalidInput as error:
            self.fail(error.problems[0].msg, param, ctx)
        path: Any = super().convert(value, param, ctx)
        if not path.absolute().parent.is_dir():
            self.fail(f"there is no folder {path.parent}; make it first, or name another place", param, ctx)
        return path


STORE_HELP = "The SQLite file of the platform, or the address of its database: postgresql://host/yard"
_PASSWORD = re.compile(r"(?<=://)([^:/@?]*):.*(?=@)|(password)=[^&]*")

Pairs = tuple[tuple[str, Any], ...]
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
_ARTIFACTS, _ENTITY = "modelyard.artifacts", "modelyard.entity"

DEFAULT_STORE = Path("yard.db")
_FACTORY = "modelyard.factory"
_NAMES = frozenset({"entity", "project", "model", "base_model"})


def names_once(context: click.Context, parameter: click.Parameter, pairs: Pairs) -> Pairs:
    """Return the values of an option like NAME=VALUE. Raises `click.BadParameter` for a name that is there twice."""
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise click.BadParameter(f"{', '.join(twice)} has more than one value; give one", context, parameter)
    return pairs


def store_option(command: C) -> C:
    """Add the options that name a platform: `--store`, which the command gets, `--artifacts` and `--factory`. The
    arguments and names that it has already may not be empty."""
    for parameter in getattr(command, "__click_params__", ()):
        is_name = isinstance(parameter, click.Argument) or parameter.name in _NAMES
        if is_name and parameter.callback is None:
            parameter.callback = not_empty
    for option in (_artifacts_option, _factory_option):
        command = option(command)
    named = click.option(
        "--store", type=StoreType(), default=DEFAULT_STORE, metavar="FILE|ADDRESS", help=STORE_HELP, show_default=True
    )
    return named(command)


def not_empty(context: click.Context, parameter: click.Parameter, value: T) -> T:
    """Return a value, or several. Raises `click.BadParameter` if one is an empty text."""
    if any(isinstance(one, str) and not one.strip() for one in (value if isinstance(value, tuple) else (value,))):
        raise click.BadParameter("is empty: is a variable of the shell not set?", context, parameter)
    return value


def _kept(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    context.meta[_ARTIFACTS if parameter.name == "artifacts" else _FACTORY] = not_empty(context, parameter, value)


_artifacts_option = click.option(
    "--artifacts",
    metavar="FOLDER|ADDRESS",
    expose_value=False,
    callback=_kept,
    help="Its artifacts, as in s3://bucket/prefix, where they are not next to its file.",
)
_factory_option = click.option(
    "--factory",
    metavar="MODULE:FUNCTION",
    expose_value=False,
    callback=_kept,
    help="Code that returns your own platform, in the place of --store.",
)
"""Read by `opened`, so that no command passes them on."""

MOST = 10_000
"""How many keys and models are looked at for entities."""


def say_if_unknown(platform: Platform, entity: str) -> None:
    """Write a line to standard error if no key, model or usage is of this entity, with the nearest that has some: an
    entity is made by its first use, so a misspelt one is new."""
    if next(iter(platform.keys.list(entity=entity)), None) or next(iter(platform.models.list(entity=entity)), None):
        return
    known = {key.entity for key in islice(platform.keys.list(), MOST)}
    known |= {sums.entity for sums in platform.usage.total(by=("entity",)) if sums.entity}
    known |= {model.entity for model in islice(platform.models.list(), MOST)}
    if known and entity not in known:
        click.echo(f"note: no key, model or usage is of {entity!r}{nearest(entity, known) or ' yet'}", err=True)


def noted_entity(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return the entity that an option names; `opened` says so if nothing is of it."""
    context.meta[_ENTITY] = not_empty(context, parameter, value)
    return value


entity_option = click.option("--entity", callback=noted_entity, help="Only those of this entity.")
json_option = click.option("--json", "as_json", is_flag=True, help=JSON_HELP)


_MAKING = "modelyard keys create --entity NAME"


def require_store(store: StoreName) -> None:
    """Raise `click.ClickException` unless this is a store already: opening it would make one, which has nothing."""
    if not isinstance(store, Path):
        address = store_address(store, parts_of(click.get_current_context()))
        if address is not None and not address.exists(store):
            raise click.ClickException(f"{printable_store(store)} has no store yet; `{_MAKING}` makes one")
    elif store == DEFAULT_STORE and not store.exists():
        raise click.ClickException(f"there is no ./yard.db here: name a store with --store, or make one: {_MAKING}")
    else:
        require_file(store)


def require_file(store: Path) -> None:
    if not store.parent.is_dir():
        raise click.ClickException(f"there is no folder {store.parent}, so there is no store at {store}")
    if not store.exists() or not store.stat().st_size:
        why = ": the file is empty" if store.exists() else ""
        raise click.ClickException(f"there is no store at {store}{why}; `{_MAKING} --store {store}` makes one")


@contextmanager
def opened(store: StoreName, must_exist: bool = True, waits: bool = False) -> Iterator[Platform]:
    """Open the platform in `store`, or that of `--factory`, for a `with` block; if it `waits`, as soon as it can be."""
    factory = named_factory()

    def make() -> Platform:
        if factory is None and must_exist:
            require_store(store)
        return _made(factory) if factory else _opened_with_parts(store)

    with made_whole(store if factory is None else ""), patiently(make) if waits else make() as platform:
        entity = click.get_current_context().meta.get(_ENTITY)
        if entity is not None:
            say_if_unknown(platform, entity)
        yield platform


def made_whole(store: StoreName) -> AbstractContextManager[None]:
    """Leave no file without a record where the block makes a store, and fails."""
    return nothing_half_made(store) if isinstance(store, Path) else nullcontext()


def patiently(do: Callable[[], T]) -> T:
    """Return what `do` returns; while the store is busy or away, do it again and again, and say so each time."""
    while True:
        try:
            return do()
        except StoreBusy as away:
            click.echo(f"waiting for the store, until Ctrl-C: {away}", err=True)
            time.sleep(1)


def _opened_with_parts(store: StoreName) -> Platform:
    return open_platform(store, artifacts=named_artifacts(), parts=parts_of(click.get_current_context()))


def in_own_name(platform: Platform) -> Platform:
    """Return the platform as the host acts under the name of whoever runs the command, which is recorded with it."""
    try:
        return platform.acting_as(attrs.evolve(platform.principal, name=getpass.getuser()))
    except (OSError, KeyError, ImportError):  # this user has no name
        return platform


def _made(factory: str) -> Platform:
    if "" not in sys.path:
        sys.path.insert(0, "")
    return platform_of(factory)


def named_artifacts() -> str | None:
    named: str | None = click.get_current_context().meta.get(_ARTIFACTS)
    return named


def try_artifacts(platform: Platform) -> None:
    """Say it if artifacts are away: most of a platform works without. Raises `StoreError` if waiting does not help."""
    try:
        if "://" in (named_artifacts() or ""):
            platform.health.check_artifacts()
    except ArtifactsUnavailable as away:
        if away.lasting:
            raise
        click.echo(f"begins without the artifacts: {away}", err=True)


def named_factory() -> str | None:
    """Return the `--factory` of the running command. Raises `click.UsageError` if other options contradict it."""
    context = click.get_current_context()
    factory: str | None = context.meta.get(_FACTORY)
    if factory is not None and context.get_parameter_source("store") is not ParameterSource.DEFAULT:
        raise click.UsageError("give either --store or --factory")
    if factory is not None and named_artifacts() is not None:
        raise click.UsageError("--artifacts goes with --store; a factory opens its own artifacts")
    return factory


def printable_store(store: StoreName) -> str:
    return _PASSWORD.sub(lambda found: f"{found[1]}:***" if found[2] is None else "password=***", str(store))


def show(as_json: bool, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    if as_json:
        click.echo(json_text([dict(zip(headers, row, strict=True)) for row in rows]))
    else:
        click.echo(text_table(headers, [[shown(value) for value in row] for row in rows]))


def shown(value: object) -> object:
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if isinstance(value, Decimal):
        return f"{value or Decimal(0):f}"
    return "" if value is None else value


def show_values(as_json: bool, columns: Sequence[str], found: Iterable[object]) -> None:
    show(as_json, columns, [[getattr(value, column) for column in columns] for value in found])


def show_fields(fields: Iterable[tuple[str, Any]], as_json: bool = False) -> None:
    named = dict(fields)
    if as_json:
        click.echo(json_text(named))
        return
    width = max(map(len, named))
    for name, value in named.items():
        click.echo(f"{name:{width}}  {printable(shown(value))}".rstrip())
