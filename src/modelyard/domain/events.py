"""The typed events that a platform's `observer` receives: what happened, for logs, metrics and progress displays."""

from decimal import Decimal

import attrs

from modelyard.domain.frozen import quick_init
from modelyard.domain.job import JobKind, JobStatus


@quick_init
@attrs.frozen(weakref_slot=False)
class CompletionBooked:
    """A completion was answered and recorded in the ledger."""

    completion_id: str
    entity: str
    project: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal


@attrs.frozen
class CompletionFailed:
    """A completion failed; `code` is the exception's stable code."""

    entity: str
    project: str
    model: str
    code: str


@attrs.frozen
class JobChanged:
    """The status of a job changed."""

    job_id: str
    kind: JobKind
    status: JobStatus


@attrs.frozen
class JobEventRecorded:
    """An event of a job was committed."""

    job_id: str
    type: str
    seq: int


@attrs.frozen
class LeaseTaken:
    """A job was taken from a worker that had stopped renewing its lease."""

    job_id: str
    from_worker: str
