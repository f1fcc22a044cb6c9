"""Commands that read, pause and repeat jobs."""

import json
from collections.abc import Iterable, Mapping
from datetime import UTC
from itertools import islice
from typing import Any

import click

from modelyard.cli.jobs import job_named
from modelyard.cli.names import EVALUATIONS
from modelyard.cli.terminal import StoreName, in_own_name, json_option, opened, store_option
from modelyard.domain.job import JobStatus
from modelyard.domain.training import TrainingEvent
from modelyard.formats.converter import unstructure
from modelyard.report.table import printable


@click.command()
@store_option
@click.argument("job")
@click.option("--last", type=click.IntRange(1), help="Only so many, the newest.")
@json_option
def logs(store: StoreName, job: str, last: int | None, as_json: bool) -> None:
    """Print what has happened to JOB.

    JOB is named as for `jobs show`. Each event is a line, the oldest first.
    """
    with opened(store) as platform:
        found = job_named(platform, job)
        events: Iterable[TrainingEvent] = platform.jobs.events(found.id, order="asc" if last is None else "desc")
        for event in events if last is None else reversed([*islice(events, last)]):
            click.echo(json.dumps(unstructure(event), default=str) if as_json else _line(event))


def _line(event: TrainingEvent) -> str:
    words = "  ".join(f"{name}={_short(value)}" for name, value in event.data.items())
    return printable(f"{event.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}  {event.type}  {words}".rstrip())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return json.dumps(unstructure(value), default=str) if isinstance(value, Mapping) else str(value)


@click.command()
@store_option
@click.argument("job")
def pause(store: StoreName, job: str) -> object:
    """Stop JOB at its next step, until it is resumed.

    JOB is a training, named as for `jobs show`. One that waits is kept waiting.
    """
    with opened(store) as platform:
        found = job_named(platform, job)
        paused = in_own_name(platform).training.job(found.id).pause()
    stands = "pauses at its next step" if paused.status is JobStatus.RUNNING else "is paused"
    click.echo(f"{paused.id} {stands}; modelyard jobs resume {paused.id} continues it")
    return paused


@click.command()
@store_option
@click.argument("job")
def resume(store: StoreName, job: str) -> object:
    """Continue JOB, which is paused or was ended by a budget.

    JOB is a training, named as for `jobs show`.
    """
    with opened(store) as platform:
        resumed = platform.training.resume(job_named(platform, job).id)
        click.echo(f"{resumed.id} is {resumed.status}")
    return resumed


@click.command()
@store_option
@click.argument("job")
def retry(store: StoreName, job: str) -> object:
    """Try JOB again, which has failed or was cancelled.

    JOB is named as for `jobs show`. A training on a dataset is queued as a new job; an evaluation goes on, and
    evaluates no stored row again.
    """
    with opened(store) as platform:
        found = job_named(platform, job)
        if found.kind in EVALUATIONS:
            again = platform.jobs.get(platform.evaluations.submit_resume(found.subject).id)
        else:
            again = platform.jobs.get(platform.jobs.retry(found.id).id)
    click.echo(f"{again.id} is {again.status}; modelyard jobs watch {again.id} follows it")
    return again
