"""Training jobs."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs
import click

from modelyard.cli.terminal import (
    Group,
    entity_option,
    every,
    json_option,
    opened,
    show_fields,
    show_values,
    store_option,
)
from modelyard.domain.job import JobStatus
from modelyard.domain.training import TrainingJob


@click.group(cls=Group)
def jobs() -> None:
    """Training jobs."""


JOB_COLUMNS = (
    "id",
    "kind",
    "status",
    "model_id",
    "progress",
    "total",
    "step",
    "attempts",
    "created_at",
    "error_message",
)


ERROR_WIDTH = 60
"""How many characters of an error a list shows."""


@jobs.command("list")
@store_option
@entity_option
@json_option
def list_jobs(store: Path, entity: str | None, as_json: bool) -> None:
    """List jobs, the oldest first."""
    with opened(store) as platform:
        found = every(platform.training.list, entity)
        show_values(as_json, JOB_COLUMNS, found if as_json else map(_brief, found))


def _brief(job: TrainingJob) -> TrainingJob:
    """The job with no more of its error than fits into a line of a table; `jobs show` has it whole."""
    message = job.error_message or ""
    return job if len(message) <= ERROR_WIDTH else attrs.evolve(job, error_message=message[: ERROR_WIDTH - 1] + "…")


@jobs.command("show")
@store_option
@click.argument("job_id")
@json_option
def show_job(store: Path, job_id: str, as_json: bool) -> None:
    """Show one job."""
    with opened(store) as platform:
        job = attrs.asdict(platform.training.get(job_id), value_serializer=_plain)
    if as_json:
        click.echo(json.dumps(job, default=str))
    else:
        show_fields(_flat(job))


def _flat(fields: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Fields one by one, those of nested values behind a point."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _plain(_: Any, __: Any, value: Any) -> Any:
    return dict(value) if hasattr(value, "keys") else value


@jobs.command("watch")
@store_option
@click.argument("job_id")
def watch_job(store: Path, job_id: str) -> None:
    """Follow a job's steps until it ends; a worker elsewhere runs it, or else this command does."""
    with opened(store) as platform:
        job = platform.training.job(job_id)
        with click.progressbar(length=1, label=job_id, item_show_func=lambda text: text) as bar:
            for event in job.events():
                if event.type == "training_started":
                    bar.length = max(1, event.data["num_sequences"])
                elif event.type == "gradient_step":
                    bar.update(1, _step_line(event.data))
        ended = job.refresh()
    click.echo(f"{ended.status}" + (f": {ended.error_message}" if ended.error_message else ""))


def _step_line(data: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {data[name]:.3g}" for name in ("loss", "reward") if name in data)


@jobs.command("cancel")
@store_option
@click.argument("job_id")
def cancel_job(store: Path, job_id: str) -> None:
    """Cancel a job; a running one stops at its next step."""
    with opened(store) as platform:
        job = platform.training.cancel(job_id)
    click.echo(f"cancelling {job_id}" if job.status is JobStatus.RUNNING else f"{job_id} is {job.status}")
