"""The metrics of training jobs, plotted, and as a table in a notebook."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from modelyard.domain.job import Job, JobStatus
from modelyard.domain.models import Model
from modelyard.domain.training import TrainingJob
from modelyard.parts.reports.html import Html, fragment, long_table
from modelyard.parts.reports.line_plot import Panel, Plot, Point, Series, short_number
from modelyard.platform.paging import cursor_at
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.metrics import MetricRow, all_events, metric_rows, row_of

LOOKED_AT = 20
FIRST = ("reward", "held_out", "loss", "valid_loss", "accuracy", "margin", "kl_div", "entropy", "grad_norm")

_PAGE = 500


def metric_table(rows: Sequence[MetricRow]) -> Html:
    names = metric_order({name for row in rows for name in row.values})
    lines = [
        (row.step, *(short_number(row.values[name]) if name in row.values else "" for name in names)) for row in rows
    ]
    return fragment(long_table([("step", "number"), *((name, "number") for name in names)], lines))


def metric_order(names: Iterable[str]) -> list[str]:
    """Return names of metrics in the order in which they are looked at: those of `FIRST`, then the others by name.

    >>> metric_order(["learning_rate", "loss", "kl_div", "reward"])
    ['reward', 'loss', 'kl_div', 'learning_rate']
    """
    return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def has_rounds(job: TrainingJob) -> bool:
    """Return whether its steps are the rounds of a loop."""
    return "rounds" in job.config


def job_plot(runtime: Runtime, job: TrainingJob, title: str = "") -> Plot:
    """Plot every metric that a job has recorded with its steps, the reward first. The title says where the job stands,
    unless another one is given."""
    return _plot(
        title or f"{job.kind.upper()} job {job.id}: {_standing(job)}",
        runtime,
        [("", [job.id])],
        "round" if has_rounds(job) else "optimizer step",
    )


def _standing(job: TrainingJob) -> str:
    if job.status is not JobStatus.RUNNING or job.total is None:
        return ", ".join(filter(None, (job.status.value, job.stop_reason)))
    return f"{job.status.value}, step {job.progress} of {job.total}"


def model_plot(runtime: Runtime, models: Sequence[Model]) -> Plot:
    lines = [(model.name, _jobs_with_checkpoint(runtime, model.id)) for model in models]
    title = ", ".join(f"{model.entity}/{model.project}/{model.name}" for model in models)
    return _plot(title, runtime, lines, "optimizer step")


def _plot(title: str, runtime: Runtime, jobs: Sequence[tuple[str, Sequence[str]]], x_label: str) -> Plot:
    """Read once for each line: the lines are as short as the plot is wide, the events may be millions. `jobs` are the
    labels of lines, and the jobs of each. If there is one line, the ends of its jobs are marked."""
    some = [[metric_rows(runtime, job_id, LOOKED_AT) for job_id in ids] for _, ids in jobs]
    names = {name for line in some for rows in line for row in rows for name in row.values}
    ends = list(accumulate(rows[-1].step if rows else 0 for rows in some[0])) if len(some) == 1 else []
    panels = [
        Panel(name, tuple(Series.of(label or name, _points(runtime, ids, name)) for label, ids in jobs))
        for name in metric_order(names) or ["loss"]
    ]
    return Plot(title, x_label, tuple(panels), tuple(ends[:-1]))


def _points(runtime: Runtime, job_ids: Iterable[str], name: str) -> Iterator[Point]:
    before = 0
    for job_id in job_ids:
        last = 0
        for event in all_events(runtime, job_id):
            row = row_of(event)
            if row is None:
                continue
            last = row.step
            if name in row.values:
                yield before + row.step, row.values[name]
        before += last


def _jobs_with_checkpoint(runtime: Runtime, model_id: str) -> list[str]:
    found: list[str] = []
    after = None
    while page := runtime.store.read(
        lambda snapshot, after=after: snapshot.page(Job, "of_lane", model_id, after=after, limit=_PAGE)  # type: ignore[misc]
    ):
        found += [job.id for job in page if "checkpoint_id" in job.result]
        after = cursor_at(Job, "of_lane", page[-1])
    return found
