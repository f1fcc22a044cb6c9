"""The metrics that training jobs record with their steps: as rows, all or as many as a plot can show, and plotted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.job import Job, JobEvent, JobProgress
from modelyard.domain.training import STEPS, TrainingJob
from modelyard.platform.paging import cursor_at, get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.methods import METHODS
from modelyard.protocols import Snapshot
from modelyard.report.line_plot import Panel, Plot, Point, Series

_PAGE = 500

SHOWN = tuple(dict.fromkeys(name for method in METHODS.values() for name in method.plotted))
"""The metrics that plots and progress bars show, the loss first."""


@attrs.frozen
class MetricRow:
    """What a training job recorded with one optimizer step: finite numbers by name."""

    step: int
    created_at: datetime
    values: Mapping[str, Any]


def metric_rows(runtime: Runtime, job_id: str, most: int | None = None) -> list[MetricRow]:
    """Return the steps of a job in order: all, or about `most` of them, evenly spaced, with the first and the last."""
    last = runtime.store.read(lambda snapshot: _last_seq(snapshot, job_id))
    events = _all(runtime, job_id) if most is None or last <= most else _some(runtime, job_id, last, most)
    return [MetricRow(event.step, event.created_at, event.data) for event in events if event.type in STEPS]


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


def job_plot(runtime: Runtime, job: TrainingJob, title: str) -> Plot:
    """Plot the metrics of each optimizer step of a job that its method names for it."""
    return _plot(title, runtime, [job.id], METHODS[job.kind].plotted)


def model_plot(runtime: Runtime, model_id: str, title: str) -> Plot:
    """Plot all jobs that made a checkpoint of the model, in their order, steps counted on from job to job."""
    return _plot(title, runtime, _jobs_with_checkpoint(runtime, model_id), SHOWN)


def _plot(title: str, runtime: Runtime, job_ids: Iterable[str], names: Sequence[str]) -> Plot:
    """Read once for each line: the lines are as short as the plot is wide, the events may be millions."""
    ids = tuple(job_ids)
    lines = [Series.of(name, _points(runtime, ids, name)) for name in names]
    drawn = [Panel(line.name, (line,)) for line in lines if line.points or line.name == SHOWN[0]]
    return Plot(title, "optimizer step", tuple(drawn))


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
    """Return the jobs of a model that have made a checkpoint, oldest first."""
    found: list[str] = []
    after = None
    while page := runtime.store.read(
        lambda snapshot, after=after: snapshot.page(Job, "of_lane", model_id, after=after, limit=_PAGE)  # type: ignore[misc]
    ):
        found += [job.id for job in page if "checkpoint_id" in job.result]
        after = cursor_at(Job, "of_lane", page[-1])
    return found
