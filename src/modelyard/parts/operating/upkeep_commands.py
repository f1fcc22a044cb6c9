"""Commands that keep a store in order: sweep, doctor."""

from collections import Counter
from itertools import islice

import attrs
import click

from modelyard.cli.terminal import StoreName, json_option, opened, show, show_fields, show_values, store_option
from modelyard.domain.job import JobStatus
from modelyard.errors import StoreError
from modelyard.platform.operations.files import FileFault
from modelyard.platform.platform import Platform

PARTS = ("api", "store", "artifacts", "worker", "queue")
IDLE = "no worker is alive, and no job waits for one"
MOST_QUEUED = 1000
"""How many queued jobs are asked what they wait for."""


@click.command()
@store_option
@click.option("--grace", default=900.0, show_default=True, type=click.FloatRange(0), help="Seconds between two looks.")
@json_option
def sweep(store: StoreName, grace: float, as_json: bool) -> None:
    """Remove files that no record names, which a crash may leave, and name records that have lost their files.

    Exit status 1 if there are such records.
    If there are any, it looks again after `--grace` seconds, or the length of a lease if that is longer.
    """
    with opened(store) as platform:
        apart = max(grace, platform._runtime.settings.lease)
        click.echo(
            f"looks at the files; again after {apart:g} seconds if one has no record, or the other way round", err=True
        )
        found = platform.remove_orphans(grace)
    lost = [attrs.asdict(one) for one in found.missing]
    fields = {"removed": found.removed, "missing": lost if as_json else len(lost), "unfinished": found.unfinished}
    show_fields(fields.items(), as_json)
    if lost and not as_json:
        click.echo("\nrecords that have lost their files")
        show_values(False, ("kind", "id", "entity", "artifact"), found.missing)
    if lost:
        click.get_current_context().exit(1)


@click.command()
@store_option
@click.option("--files", is_flag=True, help="Read every file that a record names, as after a restore.")
@json_option
def doctor(store: StoreName, files: bool, as_json: bool) -> None:
    """Try every part of the platform; exit status 1 if one fails, or if jobs wait and no worker is alive."""
    with opened(store) as platform:
        check = platform.health.system_check(deep=True)
        faults, unread = _file_faults(platform) if files else ([], None)
        oldest = (islice(platform.jobs.list(status=one), MOST_QUEUED) for one in (JobStatus.RUNNING, JobStatus.QUEUED))
        held = Counter(job.waiting_for for jobs in oldest for job in jobs if job.waiting_for is not None).most_common()
    if as_json:
        waiting = [{"jobs": jobs, "waiting_for": reason} for reason, jobs in held]
        found = [*attrs.asdict(check).items(), ("success", check.success), ("queue_waits_for", waiting)]
        of_files = [("files", [*map(attrs.asdict, faults)]), ("files_unread", unread)]
        show_fields([*found, *of_files] if files else found, True)
    else:
        rows = []
        for name in PARTS:
            one, idle = getattr(check, name), name == "worker" and check.idle
            state = "idle" if idle else "ok" if one.success else "fails"
            rows.append((name, state, f"{one.duration_s * 1000:.1f} ms", IDLE if idle else one.error))
        show(False, ("part", "state", "took", "why"), rows)
        facts = ("version", "store_engine", "store_version", "durability", "warning", "oldest_queued_s", "workers")
        click.echo()
        show_fields((name, getattr(check, name)) for name in facts)
        if held:
            click.echo(f"\nwhat the oldest jobs wait for, of {MOST_QUEUED:,} that run or are queued")
            show(False, ("jobs", "waiting_for"), [(jobs, reason) for reason, jobs in held])
        if unread:
            click.echo(f"\nthe files could not be read: {unread}")
        elif files:
            click.echo(f"\n{len(faults)} records lack their files or have others")
            show(
                False, ("kind", "id", "entity", "why"), [(one.kind, one.id, one.entity, one.problem) for one in faults]
            )
    well = all(getattr(check, name).success or (name == "worker" and check.idle) for name in PARTS)
    if faults or unread or not well:
        click.get_current_context().exit(1)


def _file_faults(platform: Platform) -> tuple[list[FileFault], str | None]:
    """Return the records that lack their files, or why the files could not be read."""
    try:
        return platform.health.check_files(), None
    except StoreError as away:
        return [], str(away)
