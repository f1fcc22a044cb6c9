"""`modelyard backup` and `modelyard restore`."""

import os
import tempfile
from contextlib import closing
from pathlib import Path

import click

from modelyard.artifacts.address import open_artifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.cli.lazy_group import parts_of
from modelyard.cli.terminal import PlaceType, StoreName, StoreType, opened, printable_store, require_file, store_option
from modelyard.clock import system_randomness
from modelyard.compose import open_store
from modelyard.parts.backups import restoring
from modelyard.parts.backups.sums import sums_file, write_sums
from modelyard.platform.artifacts import artifacts_folder
from modelyard.protocols import ArtifactStore
from modelyard.stores.copying import taken_name


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
    with opened(store) as platform:
        try:
            lost = platform.backup(file)
        except FileExistsError as taken:
            raise click.ClickException(str(taken)) from taken
    sums = write_sums(file)
    click.echo(f"wrote {file}, {len(sums.artifacts)} files in {artifacts_folder(file)}, and {sums_file(file)}")
    if lost:
        raise click.ClickException(
            f"{len(lost)} records have lost their files in the store itself, such as {lost[0].kind} {lost[0].id} of"
            f" {lost[0].entity}; modelyard doctor --files names them"
        )


@click.command()
@click.argument("file", type=PlaceType())
@click.argument("target", type=StoreType(), metavar="[TARGET]", required=False)
@click.option("--artifacts", metavar="FOLDER|ADDRESS", help="Where its files go, if not next to TARGET.")
@click.option("--check", is_flag=True, help="Read all of FILE, and write nothing.")
def restore(file: Path, target: StoreName | None, artifacts: str | None, check: bool) -> None:
    """Copy a backup back, and check it.

    TARGET is a file that must not exist, or an empty database. Everything is compared before and after. The backup
    stays as it is.
    """
    if check == (target is not None) or (check and artifacts):
        raise click.UsageError("name a TARGET, or give --check alone")
    require_file(file)
    parts = parts_of(click.get_current_context())
    if target is None:
        with tempfile.TemporaryDirectory() as elsewhere, restoring.examined(file, parts, Path(elsewhere)) as found:
            compared = "" if sums_file(file).exists() else f"; there is no {sums_file(file)} to compare it with"
            click.echo(f"{file} is whole: {_counts(found)}{compared}")
        return
    near = _free_folder(target, artifacts)
    with tempfile.TemporaryDirectory() as elsewhere, restoring.examined(file, parts, near or Path(elsewhere)) as found:
        place = _place(target, artifacts)
        if isinstance(target, Path):
            restoring.to_file(found, target, place, parts)
        else:
            with closing(open_store(target, parts=parts)) as store:
                restoring.to_database(found, store, place, parts)
        click.echo(f"{printable_store(target)} has {_counts(found)}, each compared with the backup")


def _counts(found: restoring.Examined) -> str:
    return f"{found.records} records and {len(found.digests)} files"


def _free_folder(target: StoreName, artifacts: str | None) -> Path | None:
    """Return the folder of a file that can be made; None for a database, which needs a place for its files."""
    if artifacts and os.path.isdir(artifacts) and os.listdir(artifacts):
        raise click.ClickException(f"{artifacts} has files; a restore needs a folder of its own: name an empty one")
    if isinstance(target, Path):
        if not target.parent.is_dir():
            raise click.ClickException(f"there is no folder {target.parent}; make it first, or name another place")
        _require_free(target, *([] if artifacts else [Path(artifacts_folder(target))]))
        return target.absolute().parent
    if artifacts is None:
        raise click.UsageError("a database has no place for files: give --artifacts FOLDER|ADDRESS")
    return None


def _place(target: StoreName, artifacts: str | None) -> ArtifactStore:
    parts = parts_of(click.get_current_context())
    place = open_artifacts(artifacts or artifacts_folder(target), system_randomness(), parts)
    if isinstance(place, MemoryArtifacts):
        raise click.UsageError("--artifacts memory:// would be gone with this command: name a folder or an address")
    return place


def _require_free(*paths: Path) -> None:
    for path in paths:
        if taken := taken_name(str(path)):
            raise click.ClickException(f"{taken} exists; nothing is ever replaced: move it away first")
