"""Commands that keep a store in order: backup, restore, keep, sweep, doctor."""

import os
import shutil
from pathlib import Path

import attrs
import click

from modelyard.cli.terminal import StoreName, json_option, opened, require_file, show, show_fields, store_option
from modelyard.compose import open_platform
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.runtime import Settings

CHECK_LEASE = 0.1
"""Seconds until a restored store counts a job's worker as dead: no worker came with the copy."""

PARTS = ("api", "store", "artifacts", "worker", "queue")


@click.command()
@store_option
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def backup(store: StoreName, file: Path) -> None:
    """Write a consistent copy of the store to FILE, and its artifacts next to it, while others work on."""
    with opened(store) as platform:
        try:
            platform.backup(file)
        except FileExistsError as taken:
            raise click.ClickException(str(taken)) from taken
    click.echo(f"wrote {file} and {artifacts_folder(file)}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
@click.argument("target", type=click.Path(path_type=Path, dir_okay=False))
def restore(file: Path, target: Path) -> None:
    """Copy the backup FILE to TARGET, which must not exist, open it there and check it. The backup stays as it is."""
    require_file(file)
    folder = Path(artifacts_folder(target))
    for taken in (target, folder):
        if os.path.lexists(taken):
            raise click.ClickException(f"{taken} exists; a restore never replaces anything: move it away first")
    kept = Path(artifacts_folder(file))
    if kept.is_dir():
        shutil.copytree(kept, folder)
    shutil.copy2(file, target)
    with open_platform(target, settings=Settings(lease=CHECK_LEASE)) as platform:
        check = platform.health.system_check()
        missing = platform.sweep(grace=0).missing
        facts = {"keys": len(list(platform.keys.list())), "models": len(list(platform.models.list()))}
    if not (check.store.success and check.artifacts.success):
        raise click.ClickException(f"{target} was written, but: {check.store.error or check.artifacts.error}")
    if missing:
        raise click.ClickException(
            f"{target} was written, but {len(missing)} records have lost their files: {missing[0]}"
        )
    click.echo(f"{target} has {facts['keys']} keys and {facts['models']} models, and all their files")


@click.command()
@store_option
@click.option("--grace", default=900.0, show_default=True, type=click.FloatRange(0), help="Seconds between two looks.")
@json_option
def sweep(store: StoreName, grace: float, as_json: bool) -> None:
    """Remove files that no record names, which a crash may leave, and name records that have lost their files."""
    with opened(store) as platform:
        found = platform.sweep(grace)
    show_fields(attrs.asdict(found, recurse=False).items(), as_json)


@click.command()
@store_option
@click.argument("what", type=click.Choice(["events", "ledger", "runs"]))
@click.argument("days", type=click.FloatRange(0, min_open=True))
@click.option("--export", type=click.Path(path_type=Path, dir_okay=False), help="The file that they are appended to.")
@json_option
def keep(store: StoreName, what: str, days: float, export: Path | None, as_json: bool) -> None:
    """Remove what is older than DAYS: events of jobs that ended before, rows of the ledger, or runs with their parts.

    Jobs and their results stay when their events go, and totals and budgets when rows of the ledger go.
    """
    with opened(store) as platform:
        if what == "ledger":
            removed = {"rows": platform.keep_ledger(days, export)}
        else:
            keeping = platform.keep_events if what == "events" else platform.keep_runs
            removed = attrs.asdict(keeping(days, export))
    show_fields(removed.items(), as_json)


@click.command()
@store_option
@json_option
def doctor(store: StoreName, as_json: bool) -> None:
    """Try every part of the platform; exit status 1 if one fails, or if jobs wait and no worker is alive."""
    with opened(store) as platform:
        check = platform.health.system_check(deep=True)
    if as_json:
        show_fields([*attrs.asdict(check).items(), ("success", check.success)], True)
    else:
        parts = [(name, getattr(check, name)) for name in PARTS]
        rows = [
            (name, "ok" if one.success else "fails", f"{one.duration_s * 1000:.1f} ms", one.error)
            for name, one in parts
        ]
        show(False, ("part", "state", "took", "why"), rows)
        facts = ("version", "store_engine", "store_version", "durability", "warning", "oldest_queued_s", "workers")
        click.echo()
        show_fields((name, getattr(check, name)) for name in facts)
    idle = check.worker.success or check.oldest_queued_s is None
    if not (idle and all(getattr(check, name).success for name in PARTS if name != "worker")):
        click.get_current_context().exit(1)
