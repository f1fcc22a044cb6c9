"""Compare artifacts with the records that name them: remove orphans that a crash left, and report missing artifacts.

A file is written before the record that names it, so one scan cannot distinguish an orphan from a file whose record is
not yet written. An orphan is a file that two scans, `GRACE` apart, both found without a record. A running job may take
longer between its files and their record; so it names them with each of its heartbeats (`JobProgress.loose`). A claim
without a heartbeat in all that time has expired: it is taken away, so that it can record nothing any more.

A record's files are removed after the record. So a record whose file is missing in both scans has lost it to something
else: a disk fault, a person, a copy of the store without its artifacts.

Names and the records that name them are joined a shard at a time, so that a million of each fit into little memory.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.job import Job, JobProgress, QueueState
from modelyard.errors import StoreError
from modelyard.lazy import log
from modelyard.platform.jobs.expired_claims import ExpiredClaims
from modelyard.platform.operations.name_shards import Fact, NameShards
from modelyard.platform.owned import artifacts_of
from modelyard.platform.paging import iter_index_live
from modelyard.platform.runtime import Runtime

GRACE = 15 * 60.0
"""Seconds that a file may have no record: the largest body is read and checked in far less."""

DAY = 24 * 3600.0
"""Seconds that an upload may take: its addresses live no longer."""

KEPT, LOOSE, ORPHAN_BEFORE = ("kept",), ("loose",), ("orphan before",)
NAMED, MISSING_BEFORE = "named", "missing before"
"""What is known of a name; that it is named, by which record."""


@attrs.frozen
class Missing:
    """A record whose artifact is missing: its kind, id and entity, and the name of the artifact."""

    kind: str
    id: str
    entity: str
    artifact: str


@attrs.frozen
class OrphanReport:
    """How many artifacts without a record were removed, and which records have lost theirs.

    `unfinished` is how many uploads were removed that began more than a day ago and never ended.
    """

    removed: int
    missing: tuple[Missing, ...] = ()
    unfinished: int = 0


def collect_orphans(runtime: Runtime, grace: float = GRACE) -> OrphanReport:
    """Remove orphaned artifacts and unfinished uploads, and find the records whose artifacts are missing.

    If there are any orphans or missing ones, it waits `grace` seconds, or the length of a lease if that is longer.
    Raises `StoreError` if the store has records of a part that is not open, since they may name artifacts.
    """
    runtime.require_every_part()
    unfinished = _remove_unfinished(runtime, max(grace, DAY))
    with NameShards(runtime.artifacts) as second:
        with NameShards(runtime.artifacts) as first:
            before = _look(runtime, first)
            suspicious = sum(_suspect(facts, second) for facts in first.shards())
        if not suspicious:
            return OrphanReport(0, (), unfinished)
        runtime.clock.sleep(max(grace, runtime.settings.lease))
        after = _look(runtime, second)
        may_remove = _fence_off_silent(runtime, before, after)
        removed, missing = 0, list[Missing]()
        for facts in second.shards():
            missing += _still_missing(facts)
            removed += _remove(runtime, facts) if may_remove else 0
    missing.sort(key=attrs.astuple)
    for one in missing:
        log.warning("%s %s of %s has lost its artifact %s", one.kind, one.id, one.entity, one.artifact)
    return OrphanReport(removed, tuple(missing), unfinished)


def _remove_unfinished(runtime: Runtime, seconds: float) -> int:
    """Remove what old uploads left. A store that does not permit it, as S3 may, is swept of the rest."""
    try:
        return runtime.artifacts.remove_unfinished(seconds)
    except StoreError as error:
        log.warning("unfinished uploads cannot be removed: %s", error)
        return 0


def _fence_off_silent(runtime: Runtime, before: Sequence[JobProgress], after: Sequence[JobProgress]) -> bool:
    """Take away the jobs that have not beaten between the scans. Returns False if one of them has, since."""
    marks = {(progress.job_id, progress.epoch, progress.beat) for progress in before}
    silent = [one for one in after if (one.job_id, one.epoch, one.beat) in marks]
    expired = ExpiredClaims(runtime)
    return all(expired.take(progress) is not None for progress in silent)


# ---- a scan --------------------------------------------------------------------------------------------------------


def _look(runtime: Runtime, shards: NameShards) -> Sequence[JobProgress]:
    """Scan files first, then records: a record that is added in between is found, a file added in between is not.

    Records are read a page at a time. A file that passes from one record to another meanwhile may look like an orphan,
    but not in both scans. Returns the progress of the jobs that run.
    """
    for name in runtime.artifacts.names():
        shards.add(name, *KEPT)
    for record in naming_records(runtime):
        for name in artifacts_of(record):
            shards.add(name, NAMED, type(record).__name__, record.id, record.entity)
    running = tuple(iter_index_live(runtime, JobProgress, "by_held", True))
    for progress in running:
        for name in progress.loose.split():
            shards.add(name, *LOOSE)
    return running


def naming_records(runtime: Runtime) -> Iterator[Any]:
    """Yield the records that name artifacts. An ended job that cannot be resumed owns none any more."""
    for record in runtime.records:
        if record.artifacts is not None and record.cls is not Job:
            assert record.total_index is not None
            yield from iter_index_live(runtime, record.cls, record.total_index)
    for place in QueueState:
        jobs = iter_index_live(runtime, Job, "by_place", place)
        yield from (job for job in jobs if not job.ended or runtime.job_types[job.kind].resumable(job))


# ---- what two scans say of the names of a shard ------------------------------------------------------------------

Facts = Mapping[str, set[Fact]]


def _orphans(facts: Facts) -> Iterator[str]:
    for name, known in facts.items():
        if KEPT in known and LOOSE not in known and not any(fact[0] == NAMED for fact in known):
            yield name


def _missing(facts: Facts) -> Iterator[Missing]:
    for name, known in facts.items():
        if KEPT not in known:
            yield from (Missing(fact[1], fact[2], fact[3], name) for fact in known if fact[0] == NAMED)


def _suspect(facts: Facts, second: NameShards) -> int:
    """Add to the second scan what the first found. Returns how much that is."""
    found = 0
    for name in _orphans(facts):
        second.add(name, *ORPHAN_BEFORE)
        found += 1
    for one in _missing(facts):
        second.add(one.artifact, MISSING_BEFORE, one.kind, one.id, one.entity)
        found += 1
    return found


def _still_missing(facts: Facts) -> Iterator[Missing]:
    return (one for one in _missing(facts) if (MISSING_BEFORE, one.kind, one.id, one.entity) in facts[one.artifact])


def _remove(runtime: Runtime, facts: Facts) -> int:
    removed = 0
    for name in _orphans(facts):
        if ORPHAN_BEFORE in facts[name]:
            runtime.artifacts.remove(name)
            removed += 1
    return removed
