"""`modelyard backup` and `modelyard restore`."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import click

from modelyard.cli.answers import tell
from modelyard.cli.lazy_group import parts_of
from modelyard.cli.terminal import (
    PlaceType,
    StoreName,
    StoreType,
    not_empty,
    opened,
    printable_store,
    require_file,
    store_option,
)
from modelyard.compose import open_store, store_address
from modelyard.domain.schema import records_of
from modelyard.part import Part
from modelyard.parts.backups import restoring
from modelyard.parts.backups.sums import sums_file, write_sums
from modelyard.parts.copying import open_for_copy, size_of, taken_name
from modelyard.platform.artifacts import artifacts_folder


@click.command()
@store_option
@click.argument("file", type=PlaceType())
def backup(store: StoreName, file: Path) -> None:
    """Write a consistent copy while others work on.

    The records are in FILE, the artifacts in FILE-artifacts, and the digests of both in FILE.sha256, which
    `sha256sum --check` and `modelyard restore` compare.
    """
    if not file.name.isprintable():
        raise click.ClickException("the name of a backup has printable characters only, for its file of digests")
    _require_free(file, sums_file(file))
    with _folder_or_nothing(Path(artifacts_folder(file)), file):
        with opened(store) as platform:
            try:
                lost = platform.backup(file)
            except FileExistsError as taken:
                raise click.ClickException(str(taken)) from taken
        with _removed_if_it_fails(file, sums_file(file)):
            sums = write_sums(file)
    click.echo(f"wrote {file}, {len(sums.artifacts)} files in {artifacts_folder(file)}, and {sums_file(file)}")
    tell({"file": file, "artifacts": artifacts_folder(file), "files": len(sums.artifacts), "sums": sums_file(file)})
    if lost:
        raise click.ClickException(
            f"{len(lost)} records have lost their files in the store itself, such as {lost[0].kind} {lost[0].id} of"
            f" {lost[0].entity}; modelyard doctor --files names them"
        )


@click.command()
@click.argument("file", type=PlaceType())
@click.argument("target", type=StoreType(), metavar="[TARGET]", required=False)
@click.option(
    "--artifacts", metavar="FOLDER|ADDRESS", callback=not_empty, help="Where its files go, if not next to TARGET."
)
@click.option("--check", is_flag=True, help="Read all of FILE, and write nothing.")
def restore(file: Path, target: StoreName | None, artifacts: str | None, check: bool) -> object:
    """Copy a backup back, and check it.

    TARGET is a file that must not exist, or an empty database. Everything is compared before and after. The backup
    stays as it is.
    """
    if check == (target is not None) or (check and artifacts):
        raise click.UsageError("name a TARGET, or give --check alone")
    if (artifacts or "").lower().startswith("memory:"):
        raise click.UsageError("--artifacts memory:// would be gone with this command: name a folder or an address")
    if file.parent.is_dir() and not (file.exists() and file.stat().st_size):
        raise click.ClickException(f"there is no backup at {file}; name the file that modelyard backup wrote")
    require_file(file)
    parts = parts_of(click.get_current_context())
    if target is None:
        with restoring.examined(file, parts) as found:
            compared = "" if sums_file(file).exists() else f"; there is no {sums_file(file)} to compare it with"
            click.echo(f"{file} is whole: {_counts(found)}{compared}")
    elif isinstance(target, Path):
        if not target.parent.is_dir():
            raise click.ClickException(f"there is no folder {target.parent}; make it first, or name another place")
        kept = artifacts or artifacts_folder(target)
        with (
            restoring.new_file(target) as room,
            restoring.empty_place(kept, parts) as place,
            restoring.examined(file, parts, room) as found,
        ):
            restoring.to_file(found, target, room, place)
    else:
        if artifacts is None:
            raise click.UsageError("a database has no place for files: give --artifacts FOLDER|ADDRESS")
        _require_empty(target, parts)
        with (
            restoring.empty_place(artifacts, parts) as place,
            restoring.examined(file, parts) as found,
            closing(open_for_copy(target, parts)) as store,
        ):
            restoring.to_database(found, store, place, parts)
    if target is not None:
        click.echo(f"{printable_store(target)} has {_counts(found)}, each compared with the backup")
    where = None if target is None else printable_store(target)
    return {"file": file, "target": where, "records": found.count, "files": len(found.digests)}


@contextmanager
def _folder_or_nothing(folder: Path, file: Path) -> Iterator[None]:
    """Remove a folder that the block has made, if it fails without the file to which that belongs."""
    new = not folder.exists()
    try:
        yield
    except BaseException:
        if new and not file.exists():
            shutil.rmtree(folder, ignore_errors=True)
        raise


@contextmanager
def _removed_if_it_fails(*files: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        for file in files:
            file.unlink(missing_ok=True)
        raise


def _counts(found: restoring.Examined) -> str:
    return f"{found.count} records and {len(found.digests)} files"


def _require_empty(database: str, parts: Sequence[Part]) -> None:
    """Raise `click.ClickException` if a database has records, and make no store in one that has none."""
    address = store_address(database, parts)
    if address is not None and address.exists(database):
        with closing(open_store(database, parts=parts)) as store:
            if size_of(store, records_of(parts)):
                raise click.ClickException(
                    "the database has records; a restore never replaces anything: name an empty database"
                )


def _require_free(*paths: Path) -> None:
    for path in paths:
        if taken := taken_name(str(path)):
            raise click.ClickException(f"{taken} exists; nothing is ever replaced: move it away first")
