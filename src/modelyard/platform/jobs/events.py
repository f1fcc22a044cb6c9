"""The events of a job: recording them in a transaction, and reading them in pages."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

import attrs

from modelyard.domain.job import Claim, Gain, JobEvent, JobProgress, NewEvent, SupersededEvent
from modelyard.domain.paging import Order
from modelyard.domain.training import TrainingEvent
from modelyard.errors import NotFound
from modelyard.platform.jobs.leases import fenced
from modelyard.platform.jobs.wakeups import job_topic
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, index_listing
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

EVENTS_AT_ONCE = 100


# ---- recording -------------------------------------------------------------------------------------------------------


def record_events(
    tx: Tx, claim: Claim, events: Sequence[NewEvent], now: datetime, total: int | None = None
) -> JobProgress:
    """Record what happened, in order, and the progress that it is.

    An event that an earlier attempt recorded keeps its id and place; its data are replaced, the old ones kept aside.
    """
    return record(tx, fenced(tx, claim), events, now, total)


def record(
    tx: Tx,
    progress: JobProgress,
    events: Sequence[NewEvent],
    now: datetime,
    total: int | None = None,
    held: bool = True,
) -> JobProgress:
    """Store events and the progress that they make. A new step resets the count of losses."""
    seq, step, time, gain = progress.last_seq, progress.step, progress.time(now), progress.gain
    for event in events:
        if not _superseded(tx, progress, event):
            seq += 1
            tx.add(JobEvent(progress.job_id, seq, event.id, event.type, event.step, event.data, time, progress.epoch))
            step = max(step, event.step)
        if event.step and gain is Gain.NOTHING:
            gain = Gain.REPEATED
    new = step > progress.step
    # Field by field, because every event pays for it and `attrs.evolve` costs three times as much.
    progress = JobProgress(
        progress.job_id,
        time,
        progress.epoch,
        progress.worker_id,
        held,
        progress.beat,
        seq,
        step,
        progress.total if total is None else total,
        0 if new else progress.crashes,
        progress.cancelled_by,
        progress.process,
        progress.alone,
        Gain.NEW if new else gain,
        progress.suspect,
        0 if new else progress.losses,
        0 if new else progress.faults,
        progress.loose,
    )
    tx.replace(progress)
    tx.notify(job_topic(progress.job_id))
    return progress


def _superseded(tx: Tx, progress: JobProgress, event: NewEvent) -> bool:
    """Put the data in the place of those that an earlier attempt recorded; False where none did."""
    # Neither a first attempt nor a step beyond the last has anything to look for: `add` refuses what is there already.
    if progress.epoch == 1 or event.step > progress.step:
        return False
    earlier = tx.find(JobEvent, "identity", progress.job_id, event.type, event.step)
    if earlier is None:
        return False
    if earlier.epoch != progress.epoch:
        tx.add(SupersededEvent(earlier.id, earlier.epoch, earlier.data, earlier.created_at))
    tx.replace(attrs.evolve(earlier, data=event.data, epoch=progress.epoch))
    return True


# ---- reading ---------------------------------------------------------------------------------------------------------


def event_listing(runtime: Runtime, job_id: str, order: Order = "asc") -> Listing[TrainingEvent]:
    """List the events of a job by `seq`."""
    place = partial(event_place, job_id)
    return index_listing(runtime, JobEvent, "by_job", job_id, place=place, order=order, shown=_faces)


def iter_events(runtime: Runtime, job_id: str, after: str | None) -> Iterator[TrainingEvent]:
    """Yield all events that there are now after the one with the id `after`, a page at a time."""
    while True:
        page = event_listing(runtime, job_id).page(EVENTS_AT_ONCE, after)
        yield from page
        if not page.has_more:
            return
        after = page.items[-1].id


def event_place(job_id: str, event_id: str, snapshot: Snapshot) -> Cursor:
    """Return the cursor after an event of a job. Raises `NotFound`."""
    event = snapshot.find(JobEvent, "id", job_id, event_id)
    if event is None:
        raise NotFound("Event", event_id)
    return cursor_at(JobEvent, "by_job", event)


def _faces(_: Snapshot, events: Sequence[JobEvent]) -> Sequence[TrainingEvent]:
    return [TrainingEvent(event.id, event.seq, event.type, event.data, event.created_at) for event in events]
