"""Jobs that wait for no other: each has a lane of its own, and its work ends it with a result."""

from collections.abc import Mapping
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.record import EMPTY
from modelyard.platform.jobs.claims import ClaimedJob, fenced, requester_spec, require_claim
from modelyard.platform.jobs.queue import announce, cancel, enqueue, succeed
from modelyard.platform.owned import store_texts
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx


def submit_job(
    runtime: Runtime,
    principal: Principal,
    kind: str,
    spec: Mapping[str, Any] = EMPTY,
    *,
    project: str = "",
    idempotency_key: str | None = None,
) -> Job:
    """Put a job into the queue, for the principal who requests it. `spec` is JSON data that its work reads.

    The same request under one `idempotency_key` is one job. Raises `RateLimited`, `Conflict`.
    """
    job_id, now = runtime.ids(), runtime.clock.now()
    whole = {**spec, "asker": requester_spec(runtime, principal)}
    place = (principal.entity, project or runtime.project)
    requested = Job(job_id, kind, *place, job_id, now, whole, idempotency_key=idempotency_key)
    most = runtime.settings.max_queued_jobs
    job = store_texts(runtime, requested.entity, lambda tx: enqueue(tx, requested, most))
    return announce(runtime, job) if job.id == job_id else job


def end_job(claimed: ClaimedJob, result: Mapping[str, Any] = EMPTY) -> None:
    """End a job with a result, JSON data; as cancelled, if that was requested. Raises `LeaseLost`."""
    runtime = claimed.runtime
    event_id, now, types = runtime.ids(), runtime.clock.now(), runtime.job_types

    def step(tx: Tx) -> Job:
        job, progress = require_claim(tx, claimed.claim), fenced(tx, claimed.claim)
        job = attrs.evolve(job, result=result)
        if progress.cancelled_by:
            return cancel(tx, types, job, event_id, progress.cancelled_by, now)
        return succeed(tx, types, job, event_id, now)

    claimed.job = announce(runtime, runtime.store.transact(step))
