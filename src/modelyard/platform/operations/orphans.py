"""Artifacts and the records that name them, compared: what a crash has left behind goes, and what is gone is told.

A file is there before the record that names it, so one look cannot tell an orphan from a file whose record is about to
come. An orphan is what two looks, `GRACE` apart, have both seen without a record. A running job may take longer
between its files and their record; so nothing is removed unless each job that was running at the first look has
since recorded something, which it does only after the record of all that it put before, or has lost or left its claim.

A record's files are removed after it. So one whose file is missing in both looks has lost it to something else: a disk,
a person, a copy of the store without its artifacts.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.domain.models import Checkpoint, TrajectoryLog
from modelyard.domain.training import Dataset
from modelyard.domain.upload import Upload
from modelyard.lazy import log
from modelyard.platform.jobs.job_type import JobTypes
from modelyard.platform.operations.erasure import artifacts_of
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

NAMING = (
    (Checkpoint, "all"),
    (Dataset, "all"),
    (TrajectoryLog, "all"),
    (ObjectVersion, "all"),
    (Upload, "by_age"),
)
"""The records that name artifacts, beside jobs, and an index over all of each."""


GRACE = 15 * 60.0
"""Seconds that a file may be without its record: the largest body is read and checked in far less."""


@attrs.frozen
class Missing:
    """A record that names an artifact which is gone: what kind of record, its id, whose, and the artifact."""

    kind: str
    id: str
    entity: str
    artifact: str


@attrs.frozen
class OrphanReport:
    """How many artifacts without a record were removed, and which records have lost theirs."""

    removed: int
    missing: tuple[Missing, ...] = ()


def collect_orphans(runtime: Runtime, grace: float = GRACE) -> OrphanReport:
    """Remove the orphans among the artifacts, and find the records without theirs.

    Takes `grace` seconds where there are any of either, a lease at least.
    """
    first = _look(runtime)
    if not first.orphans and not first.missing:
        return OrphanReport(0)
    runtime.clock.sleep(max(grace, runtime.settings.lease))
    second = _look(runtime)
    missing = tuple(sorted(first.missing & second.missing, key=attrs.astuple))
    for one in missing:
        log.warning("%s %s of %s has lost its artifact %s", one.kind, one.id, one.entity, one.artifact)
    if first.running.items() & second.running.items():
        return OrphanReport(0, missing)
    orphans = first.orphans & second.orphans
    for name in orphans:
        runtime.artifacts.remove(name)
    return OrphanReport(len(orphans), missing)


@attrs.frozen
class _Look:
    """The artifacts without a record, the records without their artifact, and the claim and last event of each running
    job.
    """

    orphans: frozenset[str]
    missing: frozenset[Missing]
    running: Mapping[str, tuple[int, int]]


def _look(runtime: Runtime) -> _Look:
    """The files first and then the records: a record that came in between is seen, a file that did is not."""
    kept = frozenset(runtime.artifacts.names())
    return runtime.store.read(lambda snapshot: _compared(runtime, kept, snapshot))


def _compared(runtime: Runtime, kept: frozenset[str], snapshot: Snapshot) -> _Look:
    orphans, missing = set(kept), set()
    for record in _naming(runtime.job_types, snapshot):
        for name in artifacts_of(record):
            orphans.discard(name)
            if name not in kept:
                missing.add(Missing(type(record).__name__, record.id, record.entity, name))
    return _Look(frozenset(orphans), frozenset(missing), _running(snapshot))


def _naming(types: JobTypes, snapshot: Snapshot) -> Iterator[Any]:
    for cls, index in NAMING:
        yield from iter_index(snapshot, cls, index)
    for place in QueueState:
        jobs = iter_index(snapshot, Job, "by_place", place)
        yield from (job for job in jobs if not job.ended or types[job.kind].resumable(job))


def _running(snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    held = iter_index(snapshot, JobProgress, "by_held", True)
    return {progress.job_id: (progress.epoch, progress.last_seq) for progress in held}
