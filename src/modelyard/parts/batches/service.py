"""Batches: starting one on a file of requests, and reading how far it has come."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal, check_idempotency_key
from modelyard.domain.job import Job, JobProgress
from modelyard.domain.record import EMPTY, Order
from modelyard.errors import InvalidInput, NotFound
from modelyard.parts.batches.endpoints import ENDPOINTS
from modelyard.parts.batches.files.records import StoredFile
from modelyard.parts.batches.files.service import LEAST_LIFE, MOST_LIFE, Files
from modelyard.parts.batches.records import BATCH_FILES, BATCH_JOB, BatchJob
from modelyard.platform.jobs import announced
from modelyard.platform.jobs.claims import requester_spec
from modelyard.platform.jobs.queue import announce, enqueue
from modelyard.platform.jobs.service import cancel_found
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index, named_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx


class Batches:
    """The batches that a principal may see.

    file = platform.compat.files.create("requests.jsonl", open("requests.jsonl", "rb"), purpose="batch")
    batch = platform.compat.batches.create(file.id, endpoint="/v1/chat/completions")
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    def create(
        self,
        input_file: StoredFile | str,
        *,
        endpoint: str = "/v1/chat/completions",
        metadata: Mapping[str, str] = EMPTY,
        output_expires_after: timedelta | None = None,
        project: str | None = None,
        entity: str | None = None,
        idempotency_key: str | None = None,
        require_worker: bool = False,
    ) -> BatchJob:
        """Queue a job that answers each line of a file: `custom_id`, `method`, `url` and `body`.

        `endpoint` is the `url` of all lines. The files that it writes stay until they are deleted, or for
        `output_expires_after`, from an hour to 30 days. The same request under one `idempotency_key` is one batch. With
        `require_worker`, raises `NoWorker` if no worker is alive. Raises `InvalidInput`, `NotFound`, `Forbidden`,
        `RateLimited`, `Conflict`.
        """
        key = check_idempotency_key(idempotency_key)
        entity, project = named_place(self._runtime, self._principal, entity, project)
        if endpoint not in ENDPOINTS:
            raise InvalidInput.at("endpoint", msg=f"must be one of {', '.join(sorted(ENDPOINTS))}")
        if output_expires_after is not None and not LEAST_LIFE <= output_expires_after <= MOST_LIFE:
            msg = "must be from 3600 seconds (an hour) to 2592000 (30 days)"
            raise InvalidInput.at("output_expires_after", msg=msg)
        file_id = input_file.id if isinstance(input_file, StoredFile) else input_file
        file = Files(self._runtime, self._principal).get(file_id)
        if file.purpose != "batch":
            raise InvalidInput.at("input_file_id", msg=f'must be a file of the purpose "batch", not "{file.purpose}"')
        if require_worker:
            announced.require_worker(self._runtime, "batch")
        life = None if output_expires_after is None else output_expires_after.total_seconds()
        asked = {"input_file_id": file.id, "endpoint": endpoint, "metadata": dict(metadata), "output_life": life}
        spec = {
            **asked,
            "request": digest(asked),
            "asker": requester_spec(self._runtime, self._principal),
            "files": {kind: self._runtime.ids() for kind in BATCH_FILES},
        }
        batch_id, now = self._runtime.ids(), self._runtime.clock.now()
        requested = Job(batch_id, BATCH_JOB, entity, project, batch_id, now, spec, idempotency_key=key)
        most = self._runtime.settings.max_queued_jobs

        def step(tx: Tx) -> tuple[Job, BatchJob]:
            job = enqueue(tx, requested, most)
            if get_or_none(tx, StoredFile, file.id) is None:  # removed since it was checked
                raise NotFound("File", file.id)
            return job, BatchJob.of(job, tx.get(JobProgress, job.id))

        job, batch = store_texts(self._runtime, entity, step)
        if job.id == requested.id:
            announce(self._runtime, job)
        return batch

    def get(self, batch_id: str) -> BatchJob:
        """Return one batch. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: _shown(snapshot, [self._found(snapshot, batch_id)])[0])

    def list(
        self,
        *,
        project: str | None = None,
        entity: str | None = None,
        order: Order = "desc",
    ) -> Listing[BatchJob]:
        """List batches, the newest first: all that the caller may see, or those of an entity or a project.

        Raises `Forbidden`.
        """
        entity = listed_entity(self._principal, entity, project)
        index, *where = listed_index(entity, project)
        place = partial(self._place, index)
        return index_listing(self._runtime, Job, index, *where, place=place, order=order, keep=self._sees, shown=_shown)

    def cancel(self, batch_id: str) -> BatchJob:
        """End a batch, and keep what it has answered. A batch that has ended stays as it is. Raises `NotFound`."""
        find = partial(self._found, batch_id=batch_id)
        return cancel_found(self._runtime, self._principal, find, lambda tx, job: _shown(tx, [job])[0])

    def _found(self, snapshot: Snapshot, batch_id: str) -> Job:
        job = get_or_none(snapshot, Job, batch_id)
        if job is None or not self._sees(job):
            raise NotFound("Batch", batch_id)
        return job

    def _sees(self, job: Job) -> bool:
        return job.kind == BATCH_JOB and self._principal.scope.covers(job.entity, job.project)

    def _place(self, index: str, batch_id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(Job, index, self._found(snapshot, batch_id))


def _shown(snapshot: Snapshot, jobs: Sequence[Job]) -> Sequence[BatchJob]:
    """Return batches with their progress. If its entity was erased meanwhile, a batch is shown as before."""

    def progress(job: Job) -> JobProgress:
        return get_or_none(snapshot, JobProgress, job.id) or JobProgress(job.id, job.created_at)

    return [BatchJob.of(job, progress(job)) for job in jobs]
