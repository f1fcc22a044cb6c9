"""Removing artifacts that no record names: what a crash between a file and its record has left behind.

A file is there before the record that names it, so one look cannot tell an orphan from a file whose record is about to
come. An orphan is what two looks, `GRACE` apart, have both seen without a record. A running job may take longer
between its files and their record; so nothing is removed unless each job that was running at the first look has
since recorded something, which it does only after the record of all that it put before, or has lost or left its claim.
"""

from collections.abc import Iterator, Mapping

import attrs

from modelyard.domain.job import Job, JobProgress, Place
from modelyard.domain.training import Checkpoint, Dataset, TrajectoryLog
from modelyard.domain.upload import Upload
from modelyard.domain.versioned import ObjectVersion
from modelyard.protocols import Snapshot
from modelyard.service.erasure import artifacts_of
from modelyard.service.evaluation_rules import resumable
from modelyard.service.listing import every
from modelyard.service.ports import Ports

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


def sweep(ports: Ports, grace: float = GRACE) -> int:
    """Remove the orphans among the artifacts, which takes `grace` seconds, a lease at least; answers how many went."""
    first = _look(ports)
    if not first.orphans:
        return 0
    ports.clock.sleep(max(grace, ports.settings.lease))
    second = _look(ports)
    if first.running.items() & second.running.items():
        return 0
    orphans = first.orphans & second.orphans
    for name in orphans:
        ports.artifacts.remove(name)
    return len(orphans)


@attrs.frozen
class _Look:
    """The artifacts without a record, and the claim and last event of each running job."""

    orphans: frozenset[str]
    running: Mapping[str, tuple[int, int]]


def _look(ports: Ports) -> _Look:
    """The files first and then the records: a record that came in between is seen, a file that did is not."""
    kept = frozenset(ports.artifacts.names())
    named, running = ports.store.read(lambda snapshot: (frozenset(_named(snapshot)), _running(snapshot)))
    return _Look(kept - named, running)


def _named(snapshot: Snapshot) -> Iterator[str]:
    for cls, index in NAMING:
        for record in every(snapshot, cls, index):
            yield from artifacts_of(record)
    for place in Place:
        for job in every(snapshot, Job, "by_place", place):
            if not job.ended or resumable(job):
                yield from artifacts_of(job)


def _running(snapshot: Snapshot) -> Mapping[str, tuple[int, int]]:
    held = every(snapshot, JobProgress, "by_held", True)
    return {progress.job_id: (progress.epoch, progress.last_seq) for progress in held}
