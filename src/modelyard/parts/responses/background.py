"""Responses in the background: each is a job, which survives restarts and is answered once."""

from collections.abc import Generator
from contextlib import closing

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Attribution, Principal
from modelyard.domain.job import Job, JobProgress, JobStatus, NewEvent
from modelyard.errors import BackendError
from modelyard.flow import iterate
from modelyard.formats.json import kept_data
from modelyard.parts.responses.conversation import Conversation, find_response, remove_expired
from modelyard.parts.responses.follow import ATTEMPT
from modelyard.parts.responses.formats.request import ParsedResponse, read_response_request
from modelyard.parts.responses.pipeline import ResponsePipeline, end_response
from modelyard.parts.responses.records import RESPONSE, RESPONSE_JOB, RUNNING, ModelResponse, ResponseStatus
from modelyard.platform.jobs.claims import (
    ClaimedJob,
    fenced,
    job_topic,
    record_events,
    requester_principal,
    requester_spec,
    require_claim,
)
from modelyard.platform.jobs.queue import announce, asked_before, cancel, enqueue, request_cancel, succeed
from modelyard.platform.owned import store_texts
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

STARTED = "response_started"


def queue_response(
    runtime: Runtime,
    principal: Principal,
    parsed: ParsedResponse,
    attribution: Attribution,
    began: float,
    idempotency_key: str | None = None,
) -> ModelResponse:
    """Queue a response that was requested at this monotonic time, and return it. Raises what the request itself would,
    `RateLimited`, `IdempotencyKeyUsed`."""
    messages = runtime.store.read(lambda snapshot: Conversation(runtime, snapshot, principal).of_request(parsed))
    checked = ResponsePipeline(runtime, principal, parsed, messages, attribution)
    checked.check()
    response, now = checked.response, runtime.clock.now()
    spec = {
        RESPONSE: response.id,
        "asker": requester_spec(runtime, principal),
        "request": digest([dict(parsed.given), list(parsed.raw)]),
    }
    job = Job(
        runtime.ids(),
        RESPONSE_JOB,
        attribution.entity,
        attribution.project,
        response.id,
        now,
        spec,
        idempotency_key=idempotency_key,
        base_model=checked.served.base_model,
    )
    queued = attrs.evolve(response, status=ResponseStatus.QUEUED, completion_id="", job_id=job.id)

    def step(tx: Tx) -> tuple[Job, ModelResponse]:
        known = asked_before(tx, job)
        if known is not None:
            return known, find_response(runtime, tx, principal, known.spec[RESPONSE])
        Conversation(runtime, tx, principal).of_request(parsed)  # what it continues may be gone since it was checked
        tx.add(queued)
        remove_expired(runtime, tx, queued.entity)
        return enqueue(tx, job, runtime.settings.max_queued_jobs), queued

    made, answered = store_texts(runtime, response.entity, step, began)
    if made is job or made.id == job.id:
        announce(runtime, made)
    return answered


def cancel_response(runtime: Runtime, principal: Principal, response: ModelResponse) -> ModelResponse:
    event_id, now = runtime.ids(), runtime.clock.now()

    def step(tx: Tx) -> tuple[Job | None, ModelResponse]:
        known = find_response(runtime, tx, principal, response.id)
        if known.ended:
            return None, known
        cancelled = attrs.evolve(known, status=ResponseStatus.CANCELLED, completed_at=now)
        tx.replace(cancelled)
        return request_cancel(tx, runtime.job_types, known.job_id, event_id, principal.name, now), cancelled

    job, shown = runtime.store.transact(step)
    if job is not None and job.ended:
        announce(runtime, job)
    return shown


# ---- the work of the job -----------------------------------------------------------------------------------------


def respond(claimed: ClaimedJob) -> Generator[None, None, None]:
    """Do the work of a response in the background. Yields after each write, and as its answer comes.

    If an attempt is given back, what it has produced is booked, as if a caller had left.
    """
    runtime = claimed.runtime
    response = runtime.store.read(lambda snapshot: get_or_none(snapshot, ModelResponse, claimed.job.spec[RESPONSE]))
    if response is not None and not response.ended:
        _start(claimed, response)
        yield
        yield from _answer(claimed, response)
    _end(claimed)


def _start(claimed: ClaimedJob, response: ModelResponse) -> None:
    runtime = claimed.runtime
    event, now = NewEvent(runtime.ids(), STARTED), runtime.clock.now()
    begun = attrs.evolve(response, status=ResponseStatus.IN_PROGRESS, output=())

    def step(tx: Tx) -> object:
        job = require_claim(tx, claimed.claim)
        tx.replace(attrs.evolve(job, result={**job.result, ATTEMPT: job.result.get(ATTEMPT, 0) + 1}))
        end_response(begun, tx)
        return record_events(tx, claimed.claim, [event], now)

    claimed.write(step)  # type: ignore[arg-type]


def _answer(claimed: ClaimedJob, response: ModelResponse) -> Generator[None, None, None]:
    runtime = claimed.runtime
    principal = requester_principal(runtime, claimed.job)
    parsed = read_response_request(kept_data({**response.parameters, "input": list(response.input)}))
    messages = runtime.store.read(lambda snapshot: Conversation(runtime, snapshot, principal).of_request(parsed))
    place = Attribution(response.entity, response.project)
    pipeline = ResponsePipeline(runtime, principal, parsed, messages, place, queued=response)
    looked = runtime.clock.monotonic()
    with closing(iterate(pipeline.flow())) as items:
        for _ in items:
            claimed.moved_at = now = runtime.clock.monotonic()
            if now - looked >= runtime.settings.poll:
                looked = now
                claimed.progress = _look(claimed, response, pipeline)
            yield


def _look(claimed: ClaimedJob, response: ModelResponse, pipeline: ResponsePipeline) -> JobProgress:
    """Store what is answered so far, for its followers. Returns the job's progress. Raises `LeaseLost`."""
    runtime, token = claimed.runtime, claimed.claim
    written = attrs.evolve(response, status=ResponseStatus.IN_PROGRESS, output=pipeline.so_far)

    def step(tx: Tx) -> JobProgress:
        progress = fenced(tx, token)
        end_response(written, tx)
        tx.notify(job_topic(token.job_id))
        return progress

    return runtime.store.transact(step, durable=False)


def _end(claimed: ClaimedJob) -> None:
    """End the job with its response; it is cancelled if that was requested, or if the response was deleted."""
    runtime = claimed.runtime
    event_id, now, types = runtime.ids(), runtime.clock.now(), runtime.job_types

    def step(tx: Tx) -> Job:
        job, progress = require_claim(tx, claimed.claim), fenced(tx, claimed.claim)
        response = get_or_none(tx, ModelResponse, job.spec[RESPONSE])
        if response is not None and response.status not in (*RUNNING, ResponseStatus.CANCELLED):
            return succeed(tx, types, job, event_id, now)
        return cancel(tx, types, job, event_id, progress.cancelled_by or "the deletion of its response", now)

    announce(runtime, runtime.store.transact(step))


def end_with_job(tx: Tx, job: Job) -> None:
    """Record in a response how its job has ended, unless it has ended itself."""
    statuses = {JobStatus.FAILED: ResponseStatus.FAILED, JobStatus.CANCELLED: ResponseStatus.CANCELLED}
    response = get_or_none(tx, ModelResponse, job.spec[RESPONSE])
    if response is None or response.ended or job.status not in statuses:
        return
    failure = {"code": BackendError.code, "message": job.error_message or "the job failed"}
    status = statuses[job.status]
    error = failure if status is ResponseStatus.FAILED else {}
    tx.replace(attrs.evolve(response, status=status, error=error, completed_at=job.ended_at))
