"""The metrics that training jobs record with their steps: as rows, all or as many as a plot can show."""

import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

import attrs

from modelyard import report
from modelyard.domain.job import JobEvent, JobProgress
from modelyard.domain.record import first_lines
from modelyard.domain.training import STEPS, TRAINING_STARTED
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

_PAGE = 500

SHOWN = ("loss", "valid_loss", "reward", "held_out", "accuracy", "margin")


@attrs.frozen
class MetricRow:
    step: int
    created_at: datetime = attrs.field(repr=False)
    values: Mapping[str, Any]


def row_of(event: JobEvent) -> MetricRow | None:
    """Return what an event recorded with a step. Step 0 is the validation before the first."""
    values = {name: value for name, value in event.data.items() if name not in ("num_sequences", "about")}
    measured = event.type in STEPS or (event.type == TRAINING_STARTED and values)
    return MetricRow(event.step, event.created_at, values) if measured else None


class MetricLogger(Protocol):
    def log(self, values: dict[str, Any], /, *, step: int) -> object: ...


class MetricRows(list[MetricRow]):
    """The steps of a job, in order; a loop that validates begins with step 0, before its first round. `to_pandas` makes
    a data frame of them, `save` a file; a notebook shows a table.

    job.metrics().to_tensorboard("runs/first")
    job.metrics().log_to(wandb.init(project="support"))
    """

    def to_pandas(self) -> Any:
        """Return a data frame with a line for each step: `created_at`, and a column for each metric. Raises
        `MissingExtra` if pandas is not installed."""
        return report.data_frame(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write them to a file of the kind that its ending names: .html, .jsonl or .csv. Raises `InvalidInput`."""
        report.save_metrics(self, path)

    def to_tensorboard(self, folder: str | os.PathLike[str]) -> None:
        """Write the numbers as scalars into a file of events in `folder`, each at the time of its step. Raises
        `MissingExtra` if tensorboard is not installed."""
        report.write_events(self, folder)

    def log_to(self, run: MetricLogger) -> None:
        """Log the numbers, step by step, to a run of wandb or trackio, or anything with their `log`."""
        for row in self:
            run.log(dict(row.values), step=row.step)

    def __repr__(self) -> str:
        return first_lines("MetricRows", self)

    def _repr_html_(self) -> str:
        return report.metric_table(self)


def metric_rows(runtime: Runtime, job_id: str, most: int | None = None) -> MetricRows:
    progress = runtime.store.read(lambda snapshot: get_or_none(snapshot, JobProgress, job_id))
    last = progress.last_seq if progress is not None else 0
    events = all_events(runtime, job_id) if most is None or last <= most else _some(runtime, job_id, last, most)
    return MetricRows(row for row in map(row_of, events) if row is not None)


def all_events(runtime: Runtime, job_id: str) -> Iterator[JobEvent]:
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
