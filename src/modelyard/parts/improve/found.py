"""The jobs of this part that a principal may see: found by their ids, and listed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.record import Order
from modelyard.errors import NotFound
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot

T = TypeVar("T")


def found_job(snapshot: Snapshot, principal: Principal, kind: str, what: str, id: str) -> Job:
    """Return a job of a kind by its id. Raises `NotFound`, in which it is called a `what`."""
    job = get_or_none(snapshot, Job, id)
    if job is None or job.kind != kind or not principal.scope.covers(job.entity, job.project):
        raise NotFound(what, id)
    return job


def listed_jobs(
    runtime: Runtime,
    principal: Principal,
    kind: str,
    what: str,
    shown: Callable[[Job], T],
    project: str | None,
    entity: str | None,
    order: Order,
) -> Listing[T]:
    """List the jobs of a kind, of an entity, a project or all, each as `shown` shows it. Raises `Forbidden`."""
    entity = listed_entity(principal, entity, project)
    index, *where = listed_index(entity, project)
    if index == "all":
        index, where = "of_kind", [kind]

    def keep(job: Job) -> bool:
        wanted = job.kind == kind and project in (None, job.project)
        return wanted and principal.scope.covers(job.entity, job.project)

    def place(id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Job, index, found_job(snapshot, principal, kind, what, id))

    def faces(_: Snapshot, jobs: Sequence[Job]) -> Sequence[T]:
        return [shown(job) for job in jobs]

    return index_listing(runtime, Job, index, *where, place=place, order=order, keep=keep, shown=faces)
