"""Compare artifacts with the records that name them: remove orphans that a crash left, and report missing artifacts.

A file is written before the record that names it, so one scan cannot distinguish an orphan from a file whose record is
not yet written. An orphan is a file that two scans, `GRACE` apart, both found without a record. A running job may take
longer between its files and their record. So nothing is removed unless each job that was running at the first scan has
since recorded something, or has lost or released its claim. A job records anything else only after the record of all
files that it stored before.

A record's files are removed after the record. So a record whose file is missing in both scans has lost it to something
else: a disk fault, a person, a copy of the store without its artifacts.
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
"""The records besides jobs that name artifacts, and an index over all of each."""


GRACE = 15 * 60.0
"""Seconds that a file may have no record: the largest body is read and checked in far less."""


@attrs.frozen
class Missing:
    """A record whose artifact is missing: its kind, id and entity, and the name of the artifact."""

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
    """Remove orphaned artifacts, and find the records whose artifacts are missing.

    If there are any of either, it waits `grace` seconds, or the length of a lease if that is longer.
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
    """Scan files first, then records: a record that is added in between is found, a file added in between is not."""
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
