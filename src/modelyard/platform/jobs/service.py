"""The queue as a principal may see it: jobs of every kind, trainings and evaluations."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar, TypeVar

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobProgress, JobStatus, JobSummary
from modelyard.domain.record import Order
from modelyard.domain.training import TrainingEvent
from modelyard.errors import InvalidInput, NotFound, nearest
from modelyard.platform.extended import Extended
from modelyard.platform.jobs.announced import require_worker, waits_of
from modelyard.platform.jobs.claims import latest_job
from modelyard.platform.jobs.events import event_listing
from modelyard.platform.jobs.queue import announce, request_cancel
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index, named_member
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

if TYPE_CHECKING:
    from modelyard.parts.resources import JobsMembers
else:
    JobsMembers = object

T = TypeVar("T")


class Jobs(Extended, JobsMembers):
    """The jobs that a principal may see. The resource of a training or an evaluation shows more.

    [(job.kind, job.status) for job in platform.jobs.list()]
    """

    AREA: ClassVar[str] = "jobs."

    def get(self, id: str) -> JobSummary:
        """Return a job by its id; or, by the id of an evaluation run, the last job on it. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._summary(snapshot, self._found(snapshot, id)))

    def list(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        status: JobStatus | str | None = None,
        kind: str | None = None,
        order: Order = "asc",
    ) -> Listing[JobSummary]:
        """List jobs in the order of their creation: all that the caller may see, or those of an entity, a project, a
        status or a kind. Raises `Forbidden`, `InvalidInput`."""
        status = named_member(JobStatus, "status", status)
        if kind is not None and kind not in [*self._runtime.job_types]:
            raise InvalidInput.at("kind", msg=f"no such kind of job{nearest(kind, self._runtime.job_types)}")
        entity = listed_entity(self._principal, entity, project)
        index, *where = _narrowest_index(entity, project, status)
        if kind is not None and index == "all":
            index, where = "of_kind", [kind]
        place = partial(self._place, index)

        def keep(job: Job) -> bool:
            chosen = status in (None, job.status) and project in (None, job.project) and kind in (None, job.kind)
            return chosen and self._sees(job)

        return index_listing(
            self._runtime, Job, index, *where, place=place, order=order, keep=keep, shown=self._summaries
        )

    def cancel(self, id: str) -> JobSummary:
        """End a job: at once while it waits, at its next step or row while it runs. Idempotent. Raises `NotFound`."""
        return cancel_found(self._runtime, self._principal, partial(self._found, id=id), self._summary)

    def events(self, id: str, *, order: Order = "asc") -> Listing[TrainingEvent]:
        """List what has happened to a job of any kind, named as for `get`. Raises `NotFound`."""
        return event_listing(self._runtime, self.get(id).id, order)

    def require_worker(self, what: str = "job") -> None:
        """Raise `NoWorker` if no worker is alive, so that a job (in the message: a `what`) would never start."""
        require_worker(self._runtime, what)

    def _found(self, snapshot: Snapshot, id: str) -> Job:
        job = get_or_none(snapshot, Job, id) or self._found_by_lane(snapshot, id)
        if job is None or not self._sees(job):
            raise NotFound("Job", id)
        return job

    def _found_by_lane(self, snapshot: Snapshot, lane: str) -> Job | None:
        job = latest_job(snapshot, lane)
        return job if job is not None and self._runtime.job_types[job.kind].found_by_lane else None

    def _summaries(self, snapshot: Snapshot, jobs: Sequence[Job]) -> Sequence[JobSummary]:
        """Summarize jobs; a job of an entity that was erased meanwhile looks as if it had not begun."""
        waits = waits_of(self._runtime, snapshot, jobs)
        return [
            JobSummary.of(
                job, get_or_none(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at), waits(job)
            )
            for job in jobs
        ]

    def _summary(self, snapshot: Snapshot, job: Job) -> JobSummary:
        return self._summaries(snapshot, [job])[0]

    def _sees(self, job: Job) -> bool:
        return self._principal.scope.covers(job.entity, job.project)

    def _place(self, index: str, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Job, index, self._found(snapshot, id))


def _narrowest_index(entity: str | None, project: str | None, status: JobStatus | None) -> tuple[str, ...]:
    if entity is not None and status is not None:
        return "by_status", entity, status
    if status is not None:
        return "by_state", status
    return listed_index(entity, project)


def cancel_found(runtime: Runtime, principal: Principal, find: Callable[[Tx], Job], shown: Callable[[Tx, Job], T]) -> T:
    """Cancel the job that `find` finds, in the principal's name, and return it as `shown` shows it. Both are functions
    of the transaction that cancels it. Raises what `find` raises."""
    event_id, now = runtime.ids(), runtime.clock.now()

    def step(tx: Tx) -> tuple[Job, Job, T]:
        before = find(tx)
        job = request_cancel(tx, runtime.job_types, before.id, event_id, principal.name, now)
        return before, job, shown(tx, job)

    before, job, answer = runtime.store.transact(step)
    if job.status is not before.status:
        announce(runtime, job)
    return answer
