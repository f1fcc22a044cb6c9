"""The typed events that a platform's `observer` receives, for logs, metrics and progress displays. Durations are in
seconds. `request_id` is the `x-request-id` of the HTTP request, and "" without one; `key_id` is the id of the caller's
API key, and "" for the host."""

from decimal import Decimal

import attrs

from modelyard.domain.frozen_fast import quick_init
from modelyard.domain.job import JobStatus

CALLER_LEFT = 499


@quick_init
@attrs.frozen(weakref_slot=False)
class CompletionBooked:
    """A completion was answered and recorded in the ledger. `status` is 200 for a whole answer; for a partial one it is
    the status of the error, or `CALLER_LEFT`. `first_token` is how long the caller of a stream waited for its first
    token; None without a stream. `asked` is the requested name where a part serves it."""

    completion_id: str
    entity: str
    project: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost: Decimal
    key_id: str = ""
    request_id: str = ""
    duration: float = 0.0
    first_token: float | None = None
    status: int = 200
    asked: str = ""


@attrs.frozen
class CompletionFailed:
    """A completion failed; `code` is the exception's stable code, `status` its HTTP status."""

    entity: str
    project: str
    model: str
    code: str
    key_id: str = ""
    request_id: str = ""
    duration: float = 0.0
    first_token: float | None = None
    status: int = 500


@attrs.frozen
class BudgetWarning:
    """The share of a budget is spent at which its owner wants a warning. `key_id` and `project` are "" if it is of no
    key, and of no project."""

    entity: str
    key_id: str
    spent: Decimal
    limit: Decimal
    period: str
    project: str = ""


@attrs.frozen
class RequestAnswered:
    """An HTTP request was answered. `route` is the path with its parameters' names, and "" for a path without a route.
    `status` is `CALLER_LEFT` if the client left before the end of the answer."""

    request_id: str
    method: str
    route: str
    status: int
    entity: str
    key_id: str
    duration: float


@attrs.frozen
class JobChanged:
    """The status of a job has changed. `continued_by` is the id of the job that goes on in its place, if one does."""

    job_id: str
    kind: str
    status: JobStatus
    continued_by: str = ""


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
