"""Commands for jobs: trainings and evaluations."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import attrs
import click

from modelyard.cli.lazy_group import Group
from modelyard.cli.names import run_named, subject_names
from modelyard.cli.terminal import (
    StoreName,
    entity_option,
    in_own_name,
    json_option,
    opened,
    show_fields,
    show_values,
    store_option,
)
from modelyard.domain.job import JobStatus, JobSummary
from modelyard.platform.platform import Platform


@click.group(cls=Group)
def jobs() -> None:
    """Manage jobs: trainings and evaluations."""


JOB_COLUMNS = (
    "id",
    "entity",
    "kind",
    "status",
    "waiting_for",
    "priority",
    "subject",
    "progress",
    "total",
    "attempts",
    "created_at",
    "error_message",
)


ERROR_WIDTH = 60


@jobs.command("list")
@store_option
@entity_option
@click.option("--status", type=click.Choice([status.value for status in JobStatus]), help="Only those that stand so.")
@click.option("--kind", help="Only those of this kind, such as sft or evaluate.")
@click.option("--last", default=50, show_default=True, type=click.IntRange(1), help="How many of the newest.")
@click.option("--tag", help="Only those with this tag; an evaluation's job has those of its run.")
@json_option
def list_jobs(
    store: StoreName,
    entity: str | None,
    status: str | None,
    kind: str | None,
    last: int,
    tag: str | None,
    as_json: bool,
) -> None:
    """List jobs, the newest first."""
    with opened(store) as platform:
        wanted = None if status is None else JobStatus(status)
        listing = platform.jobs.list(entity=entity, status=wanted, kind=kind, order="desc")
        tagged = None if tag is None else _tagged(platform, tag)
        wanted_jobs = (job for job in listing if tagged is None or not tagged.isdisjoint((job.id, job.subject)))
        found = list(islice(wanted_jobs, last))
        if as_json:
            show_values(True, JOB_COLUMNS, found)
            return
        names, several = subject_names(platform, found), len({job.entity for job in found}) > 1
        shown = [attrs.evolve(_brief(job), subject=names[job.subject]) for job in found]
        show_values(False, [one for one in JOB_COLUMNS if several or one != "entity"], shown)


def _tagged(platform: Platform, tag: str) -> frozenset[str]:
    """Return the ids of the jobs and of the runs that have a tag."""
    return frozenset().union(*(notes.tagged(tag) for notes in platform.notes()))


def _brief(job: JobSummary) -> JobSummary:
    message = job.error_message or ""
    return job if len(message) <= ERROR_WIDTH else attrs.evolve(job, error_message=message[: ERROR_WIDTH - 1] + "…")


@jobs.command("show")
@store_option
@click.argument("job")
@json_option
def show_job(store: StoreName, job: str, as_json: bool) -> None:
    """Show JOB.

    It is the id of a job or of an evaluation run, a run as `runs show` takes it, or a model ([entity/]project/name),
    whose last training job it is.
    """
    with opened(store) as platform:
        found = job_named(platform, job)
        face = _shown(platform, found)
        fields = {**attrs.asdict(face, value_serializer=_plain), "priority": found.priority}
        for notes in platform.notes():
            fields |= notes.of(found.id)
    if as_json:
        click.echo(json.dumps(fields, default=str))
    else:
        show_fields(_flat({name: ", ".join(value) if name == "tags" else value for name, value in fields.items()}))


def _shown(platform: Platform, job: JobSummary) -> Any:
    """Return what is known of a job of its kind."""
    shown = platform.job_types[job.kind].shown
    return job if shown is None else shown(platform, job.id)


def job_named(platform: Platform, job: str) -> JobSummary:
    if "@" in job or job.startswith("…"):
        return platform.jobs.get(run_named(platform, job).id)
    if "/" not in job:
        return platform.jobs.get(job)
    trained = platform.training.list(model=job, order="desc").page(1).items
    if not trained:
        raise click.ClickException(f"the model {job} has no training job yet")
    return platform.jobs.get(trained[0].id)


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(_: Any, __: Any, value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else value


@jobs.command("cancel")
@store_option
@click.argument("job")
def cancel_job(store: StoreName, job: str) -> object:
    """Cancel JOB (named as for `jobs show`); a running one stops at its next step or row."""
    with opened(store) as platform:
        ended = in_own_name(platform).jobs.cancel(job_named(platform, job).id)
    click.echo(f"cancelling {job}" if ended.status is JobStatus.RUNNING else f"{job} is {ended.status}")
    return ended
