"""The command that follows a job to its end."""

from collections.abc import Mapping
from typing import Any

import click

from modelyard.cli.answers import tell
from modelyard.cli.jobs import job_named
from modelyard.cli.names import EVALUATIONS
from modelyard.cli.terminal import StoreName, opened, patiently, show_fields, store_option
from modelyard.domain.job import JobSummary
from modelyard.domain.training import TrainingEvent
from modelyard.platform.platform import Platform
from modelyard.report.terminal import log_to_terminal

SHOWN = ("loss", "reward", "held_out", "score", "failed")


@click.command()
@store_option
@click.argument("job")
def watch(store: StoreName, job: str) -> object:
    """Follow JOB until it ends.

    JOB is named as for `jobs show`. A worker elsewhere runs it, or else this command does. While the store is away it
    says so, and waits.
    """
    log_to_terminal()
    with opened(store, waits=True) as platform:
        found = patiently(lambda: job_named(platform, job))
        steps = platform.job_types[found.kind].steps
        if steps is None:
            raise click.ClickException(f"a {found.kind} has no steps to follow; see modelyard jobs show")
        events = steps(platform, found.id)
        with click.progressbar(length=1, label=job, item_show_func=lambda text: text) as bar:
            for event in events:
                done, total = _how_far(event, bar.pos)
                bar.length = total or bar.length
                bar.update(done - bar.pos, _numbers_line(event.data))
                tell(event)
        ended = patiently(lambda: platform.jobs.get(found.id))
        numbers = patiently(lambda: _final_numbers(platform, ended))
    click.echo(f"{ended.status}" + (f": {ended.error_message}" if ended.error_message else ""))
    if numbers:
        show_fields(numbers)
    return {"job": ended, "numbers": dict(numbers)}


def _final_numbers(platform: Platform, job: JobSummary) -> list[tuple[str, object]]:
    took = [] if job.started_at is None or job.ended_at is None else [("took", f"{job.ended_at - job.started_at}")]
    if job.kind in EVALUATIONS:
        summary = platform.evaluations.runs.get(job.subject).summary or {}
        numbers = {name: value for name, value in summary.items() if type(value) in (int, float)}
    else:
        trained = platform.training.get(job.id)
        took += [] if trained.step is None else [("checkpoint", f"step{trained.step}")]
        took += [] if job.error_message or trained.stop_reason is None else [("stopped by", trained.stop_reason)]
        rows = platform.training.job(job.id).metrics()
        numbers = dict(rows[-1].values) if rows else {}
    return [*took, *((name, f"{value:.4g}") for name, value in numbers.items())]


def _how_far(event: TrainingEvent, before: int) -> tuple[int, int | None]:
    match event.type:
        case "training_started":
            return before, event.data["num_sequences"]
        case "gradient_step" | "training_round":
            return before + 1, None
        case "evaluation_started" | "evaluation_progress":
            return event.data.get("done", 0), event.data["total"]
    return before, None


def _numbers_line(data: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {data[name]:.4g}" for name in SHOWN if data.get(name) is not None)
