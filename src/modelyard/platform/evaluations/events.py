"""The events of a run: those of its jobs, one after the other, and of its shards, merged."""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from heapq import merge
from itertools import dropwhile

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent
from modelyard.domain.training import TrainingEvent
from modelyard.errors import NotFound
from modelyard.platform.evaluations.resume import find_job
from modelyard.platform.evaluations.shards import EventPosition, events_of_shard, last_jobs
from modelyard.platform.jobs.events import iter_events
from modelyard.platform.jobs.waiting import Followed, afollowed, follow, followed, wait_for_end
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

EVENTS_AT_ONCE = 200


def follow_events(
    runtime: Runtime, principal: Principal, run_id: str, after: str | None, live: bool = True
) -> Iterator[TrainingEvent]:
    return followed(_follow(runtime, principal, run_id, after, live))


def afollow_events(
    runtime: Runtime, principal: Principal, run_id: str, after: str | None, live: bool = True
) -> AsyncIterator[TrainingEvent]:
    threads = runtime.threads.backends.of(principal.entity)
    return afollowed(_follow(runtime, principal, run_id, after, live), threads)


def _follow(runtime: Runtime, principal: Principal, run_id: str, after: str | None, live: bool) -> Followed:
    turns = wait_for_end(runtime, partial(find_job, runtime, principal, run_id)) if live else None
    return follow(turns, partial(events_after, runtime, run_id), after)


def events_after(runtime: Runtime, run_id: str, after: str | None) -> Iterator[TrainingEvent]:
    shards = len(runtime.store.read(lambda snapshot: last_jobs(snapshot, run_id)))
    if shards > 1:
        yield from _merged(runtime, run_id, _position(after, shards))
        return
    for job in runtime.store.read(partial(_jobs_from, run_id, after)):
        yield from iter_events(runtime, job.id, after)
        after = None


def _jobs_from(run_id: str, after: str | None, snapshot: Snapshot) -> list[Job]:
    jobs = list(iter_index(snapshot, Job, "of_lane", run_id))
    if after is None:
        return jobs
    left = list(dropwhile(lambda job: snapshot.find(JobEvent, "id", job.id, after) is None, jobs))
    if not left:
        raise NotFound("Event", after)
    return left


# ---- several shards --------------------------------------------------------------------------------------------------


def _position(after: str | None, shards: int) -> EventPosition:
    position = EventPosition((0,) * shards) if after is None else EventPosition.parse(after, shards)
    if position is None:
        raise NotFound("Event", str(after))
    return position


def _merged(runtime: Runtime, run_id: str, position: EventPosition) -> Iterator[TrainingEvent]:
    """Yield the events of all shards, each with an id that names how many of each shard are before it. An event that
    was recorded late is not missed, and any server continues from any id."""
    while batch := runtime.store.read(partial(_batch, run_id, position)):
        for number, seen, event in batch:
            position = position.at(number, seen)
            yield TrainingEvent(position.id(event), sum(position.seen), event.type, event.data, event.created_at)


def _batch(run_id: str, position: EventPosition, snapshot: Snapshot) -> list[tuple[int, int, JobEvent]]:
    parts = (
        [(number, up_to, event) for up_to, event in events_of_shard(snapshot, run_id, number, seen, EVENTS_AT_ONCE)]
        for number, seen in enumerate(position.seen)
    )
    return list(merge(*parts, key=lambda one: one[2].created_at))
