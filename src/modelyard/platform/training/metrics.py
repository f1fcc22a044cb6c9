"""The metrics that training jobs record with their steps: as rows, all or as many as a plot can show, and plotted."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from importlib import import_module
from itertools import accumulate
from typing import Any, Protocol

import attrs

from modelyard.domain.job import Job, JobEvent, JobKind, JobProgress
from modelyard.domain.models import Model
from modelyard.domain.training import STEPS, TrainingJob
from modelyard.errors import MissingExtra
from modelyard.platform.paging import cursor_at, get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot
from modelyard.report.html import fragment, long_table
from modelyard.report.line_plot import Panel, Plot, Point, Series

_PAGE = 500

LOOKED_AT = 20
FIRST = ("reward", "held_out", "loss", "valid_loss", "accuracy", "margin", "kl_div", "entropy", "grad_norm")

_TENSORBOARD = (
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.event_file_writer",
)

SHOWN = ("loss", "valid_loss", "reward", "held_out", "accuracy", "margin")


@attrs.frozen
class MetricRow:
    step: int
    created_at: datetime
    values: Mapping[str, Any]


class MetricLogger(Protocol):
    def log(self, values: dict[str, Any], /, *, step: int) -> object: ...


class MetricRows(list[MetricRow]):
    """The steps of a job, in order. `to_pandas` makes a data frame of them; a notebook shows a table.

    job.metrics().to_tensorboard("runs/first")
    job.metrics().log_to(wandb.init(project="support"))
    """

    def to_pandas(self) -> Any:
        """Return a data frame with a line for each step: `created_at`, and a column for each metric. Raises
        `MissingExtra` if pandas is not installed."""
        try:
            pandas = import_module("pandas")
        except ImportError as missing:
            raise MissingExtra("pandas") from missing
        index = pandas.Index([row.step for row in self], name="step")
        return pandas.DataFrame([{"created_at": row.created_at, **row.values} for row in self], index=index)

    def to_tensorboard(self, folder: str | os.PathLike[str]) -> None:
        """Write the numbers as scalars into a file of events in `folder`, each at the time of its step. Raises
        `MissingExtra` if tensorboard is not installed."""
        try:
            event, summary, files = map(import_module, _TENSORBOARD)
        except ImportError as missing:
            raise MissingExtra("tensorboard") from missing
        writer = files.EventFileWriter(os.fspath(folder))
        for row in self:
            values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            at = row.created_at.timestamp()
            writer.add_event(event.Event(wall_time=at, step=row.step, summary=summary.Summary(value=values)))
        writer.close()

    def log_to(self, run: MetricLogger) -> None:
        """Log the numbers, step by step, to a run of wandb or trackio, or anything with their `log`."""
        for row in self:
            run.log(dict(row.values), step=row.step)

    def _repr_html_(self) -> str:
        names = metric_order({name for row in self for name in row.values})
        lines = [
            (row.step, *(f"{row.values[name]:.4g}" if name in row.values else "" for name in names)) for row in self
        ]
        return fragment(long_table([("step", "number"), *((name, "number") for name in names)], lines))


def metric_rows(runtime: Runtime, job_id: str, most: int | None = None) -> MetricRows:
    last = runtime.store.read(lambda snapshot: _last_seq(snapshot, job_id))
    events = _all(runtime, job_id) if most is None or last <= most else _some(runtime, job_id, last, most)
    return MetricRows(MetricRow(event.step, event.created_at, event.data) for event in events if event.type in STEPS)


def _last_seq(snapshot: Snapshot, job_id: str) -> int:
    progress = get_or_none(snapshot, JobProgress, job_id)
    return progress.last_seq if progress is not None else 0


def _all(runtime: Runtime, job_id: str) -> Iterator[JobEvent]:
    seq = 0
    while page := runtime.store.read(lambda snapshot, seq=seq: _page(snapshot, job_id, seq, _PAGE)):  # type: ignore[misc]
        yield from page
        seq = page[-1].seq


def _some(runtime: Runtime, job_id: str, last: int, most: int) -> Sequence[JobEvent]:
    """Return events at even distances. Their numbers have no gaps; the ends of a job may be other events, not steps."""
    places = sorted({1, 2, 3, last - 1, last, *(1 + at * (last - 1) // most for at in range(most))})
    return runtime.store.read(
        lambda snapshot: [event for seq in places for event in _page(snapshot, job_id, seq - 1, 1)]
    )


def _page(snapshot: Snapshot, job_id: str, seq: int, limit: int) -> list[JobEvent]:
    return snapshot.page(JobEvent, "by_job", job_id, after=(seq,), limit=limit)


# ---- plots -----------------------------------------------------------------------------------------------------------


def metric_order(names: Iterable[str]) -> list[str]:
    """Return names of metrics in the order in which they are looked at: those of `FIRST`, then the others by name.

    >>> metric_order(["learning_rate", "loss", "kl_div", "reward"])
    ['reward', 'loss', 'kl_div', 'learning_rate']
    """
    return sorted(names, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))


def job_plot(runtime: Runtime, job: TrainingJob, title: str) -> Plot:
    """Plot every metric that a job has recorded with its steps, the reward first."""
    return _plot(title, runtime, [("", [job.id])], "round" if job.kind == JobKind.LOOP else "optimizer step")


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
        for event in _all(runtime, job_id):
            if event.type not in STEPS:
                continue
            last = event.step
            if name in event.data:
                yield before + event.step, event.data[name]
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
