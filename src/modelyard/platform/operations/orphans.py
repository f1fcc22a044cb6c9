"""Compare artifacts with the records that name them: remove orphans that a crash left, and report missing artifacts.

A file is written before the record that names it, so one scan cannot distinguish an orphan from a file whose record is
not yet written. An orphan is a file that two scans, `GRACE` apart, both found without a record. A running job may take
longer between its files and their record; so it names them with each of its heartbeats (`JobProgress.loose`). A claim
without a heartbeat in all that time has expired: it is taken away, so that it can record nothing any more.

A record's files are removed after the record. So a record whose file is missing in both scans has lost it to something
else: a disk fault, a person, a copy of the store without its artifacts.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import ObjectVersion
from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.domain.models import Checkpoint, TrajectoryLog
from modelyard.domain.training import Dataset
from modelyard.domain.upload import Upload
from modelyard.lazy import log
from modelyard.platform.jobs.expired_claims import ExpiredClaims
from modelyard.platform.operations.erasure import artifacts_of
from modelyard.platform.paging import iter_index_live
from modelyard.platform.runtime import Runtime

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
    if not _fence_off_silent(runtime, first, second):
        return OrphanReport(0, missing)
    orphans = first.orphans & second.orphans
    for name in orphans:
        runtime.artifacts.remove(name)
    return OrphanReport(len(orphans), missing)


def _fence_off_silent(runtime: Runtime, first: "_Look", second: "_Look") -> bool:
    """Take away the jobs that have not beaten between the scans. Returns False if one of them has, since."""
    marks = {(progress.job_id, progress.epoch, progress.beat) for progress in first.running}
    silent = [one for one in second.running if (one.job_id, one.epoch, one.beat) in marks]
    expired = ExpiredClaims(runtime)
    return all(expired.take(progress) is not None for progress in silent)


@attrs.frozen
class _Look:
    """The artifacts without a record, the records without their artifact, and the progress of the jobs that run."""

    orphans: frozenset[str]
    missing: frozenset[Missing]
    running: Sequence[JobProgress]


def _look(runtime: Runtime) -> _Look:
    """Scan files first, then records: a record that is added in between is found, a file added in between is not.

    Records are read a page at a time. A file that passes from one record to another meanwhile may look like an orphan,
    but not in both scans.
    """
    kept = frozenset(runtime.artifacts.names())
    orphans, missing = set(kept), set()
    for record in _naming(runtime):
        for name in artifacts_of(record):
            orphans.discard(name)
            if name not in kept:
                missing.add(Missing(type(record).__name__, record.id, record.entity, name))
    running = tuple(iter_index_live(runtime, JobProgress, "by_held", True))
    orphans.difference_update(*(progress.loose.split() for progress in running))
    return _Look(frozenset(orphans), frozenset(missing), running)


def _naming(runtime: Runtime) -> Iterator[Any]:
    for cls, index in NAMING:
        yield from iter_index_live(runtime, cls, index)
    for place in QueueState:
        jobs = iter_index_live(runtime, Job, "by_place", place)
        yield from (job for job in jobs if not job.ended or runtime.job_types[job.kind].resumable(job))
