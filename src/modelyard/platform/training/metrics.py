"""The metrics that a training job records with its steps, as rows: all of them, or as many as a plot can show."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.job import JobEvent, JobProgress
from modelyard.domain.training import GRADIENT_STEP
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

_PAGE = 500


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
    return [MetricRow(event.step, event.created_at, event.data) for event in events if event.type == GRADIENT_STEP]


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
