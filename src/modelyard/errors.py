"""Every exception that modelyard raises on purpose, as one tree. Each class carries data, not only text, a stable
`code`, and as `status` the HTTP status for a host with its own routes. `http.error_responses` makes each interface's
body from it. A message says what is wrong and what to do about it, and never repeats a secret."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, ClassVar, Self

import attrs

__all__ = [
    "ArtifactMissing",
    "ArtifactsUnavailable",
    "BackendError",
    "BodyTooLarge",
    "BudgetExceeded",
    "CallerError",
    "ClusterError",
    "Conflict",
    "ContextLengthExceeded",
    "EvaluationError",
    "Forbidden",
    "IdempotencyKeyUsed",
    "InvalidInput",
    "JobFailed",
    "JobRefused",
    "LeaseLost",
    "MissingExtra",
    "MissingPart",
    "ModelNotFound",
    "ModelyardError",
    "NoAnswerPrepared",
    "NoWorker",
    "NotFound",
    "ObjectDeleted",
    "OutcomeUnknown",
    "Overloaded",
    "Problem",
    "PromotionRefused",
    "QueueFull",
    "RateLimited",
    "RecordConflict",
    "RecordNotFound",
    "RunAlreadyFinished",
    "StorageFull",
    "StoreBusy",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreTooNew",
    "TrainingError",
    "Unauthenticated",
    "UnsupportedParameter",
    "UsedAfterFork",
]


class ModelyardError(Exception):
    """Root of the tree. Each can be pickled and copied, so it may cross to another process."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500
    retry_after: float | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (type(self), self.args), self.__dict__


def _restored(cls: type[ModelyardError], args: tuple[Any, ...]) -> ModelyardError:
    return cls.__new__(cls, *args)


class CallerError(ModelyardError):
    """The request is invalid; sending it again fails again."""

    code = "bad_request"
    status = 400


@attrs.frozen
class Problem:
    """One problem with an input: where (`loc`, outermost first), what (`msg`) and its kind (`type`)."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "value_error"

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.loc)
        return f"{where}: {self.msg}" if where else self.msg


class InvalidInput(CallerError):
    """One or more fields are invalid; `problems` names all of them."""

    code = "invalid_input"
    status = 422

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> "InvalidInput":
        """Make the error for one problem at one place."""
        return cls([Problem(loc, msg, type)])

    def below(self, *loc: str | int) -> Self:
        """Return these problems, each located below `loc`."""
        return type(self)([attrs.evolve(problem, loc=(*loc, *problem.loc)) for problem in self.problems])


@contextmanager
def located_at(*place: str | int) -> Iterator[None]:
    """Locate the problems of a block below a place."""
    try:
        yield
    except InvalidInput as wrong:
        raise wrong.below(*place) from None


class UnsupportedParameter(InvalidInput):
    """The backend does not support a parameter, so the request is rejected rather than answered wrongly."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidInput):
    """Prompt plus requested output do not fit the model."""

    code = "context_length_exceeded"


class NoAnswerPrepared(InvalidInput):
    """A test double has no answer for this request: no rule of its script, nothing that it can send, no recording on
    its cassette.
    """

    code = "no_answer_prepared"


class NotFound(CallerError):
    """There is no such thing in the caller's scope (a thing of another tenant gives the same error)."""

    code = "not_found"
    status = 404

    def __init__(self, kind: str, id: str, hint: str = "") -> None:
        self.kind: str = kind
        self.id: str = id
        super().__init__(f"{kind} {id!r} not found{'; ' + hint if hint else ''}")


class ModelNotFound(NotFound):
    """No catalogue entry, model or checkpoint has this name."""

    code = "model_not_found"


class ObjectDeleted(NotFound):
    """The version of an object existed, and was deleted at `deleted_at`."""

    code = "object_deleted"

    def __init__(self, kind: str, id: str, deleted_at: datetime) -> None:
        self.deleted_at = deleted_at
        super().__init__(kind, id, f"it was deleted at {deleted_at.isoformat()}")


class Conflict(CallerError):
    """The request contradicts what is stored (a name that is taken, a checkpoint in use)."""

    code = "conflict"
    status = 409


class IdempotencyKeyUsed(Conflict):
    """The idempotency key was used for another request, so this one must not be sent again with it."""

    code = "idempotency_key_used"
    status = 409


class PromotionRefused(Conflict):
    """A checkpoint does not meet the requirement of its promotion; the message states by how much."""

    code = "promotion_refused"


class RunAlreadyFinished(CallerError):
    """A finished evaluation run is frozen."""

    code = "RUN_ALREADY_FINISHED"


class Unauthenticated(CallerError):
    """The key is missing, unknown, revoked or expired: the error does not reveal which."""

    code = "invalid_api_key"
    status = 401


class Forbidden(CallerError):
    """The key gives no access to the entity or project that the request names."""

    code = "forbidden"
    status = 403


class BudgetExceeded(CallerError):
    """The cost of this request could exceed a budget's limit. `param` is the parameter that would lower it, if any."""

    code = "insufficient_quota"
    status = 402

    def __init__(self, message: str, param: str | None = None) -> None:
        self.param: str | None = param
        super().__init__(message)


class RateLimited(CallerError):
    """There are too many concurrent requests, or too many per minute; try again after `retry_after` seconds."""

    code = "rate_limit_exceeded"
    status = 429

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after: float = retry_after
        super().__init__(message)


class BodyTooLarge(CallerError):
    """A body is larger than `limit` bytes."""

    code = "body_too_large"
    status = 413

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body is larger than the limit of {limit} bytes; send less or ask the host to raise it")


class MissingExtra(ModelyardError):
    """An optional dependency is not installed. `extra` is None if its version is the user's own choice."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str | None = None) -> None:
        self.package: str = package
        self.extra: str | None = extra
        wanted = package if extra is None else f"'modelyard[{extra}]'"
        super().__init__(f"{package} is not installed; run: pip install {wanted}")


class MissingPart(ModelyardError, AttributeError, NotImplementedError):
    """What a part brings is used, and its folder was deleted. A notebook then shows the value as text."""

    code = "missing_part"
    status = 501


class NoWorker(ModelyardError):
    """No worker would run this job."""

    code = "no_worker"
    status = 503


class ClusterError(ModelyardError):
    """A cluster cannot be reached, or refuses a job; the message states what it answered and what to do."""

    code = "cluster_error"
    status = 503


class JobRefused(ClusterError):
    """A cluster that answers refuses this job, or never has room for it; others may be placed."""

    code = "job_refused"


class JobFailed(ModelyardError):
    """A job that was waited for ended in failure or was cancelled, as `job_status` says."""

    code = "job_failed"

    def __init__(self, job_id: str, job_status: str, message: str, kind: str = "job") -> None:
        self.job_id: str = job_id
        self.job_status: str = job_status
        self.message: str = message
        super().__init__(f"{kind} {job_id} {job_status}: {message}")


class LeaseLost(ModelyardError):
    """A newer claim exists: this worker's writes for the job are rejected, and it must stop."""

    code = "lease_lost"


class TrainingError(ModelyardError):
    """Training cannot continue; the message suggests what to try. The job fails with it."""

    code = "training_error"


class EvaluationError(ModelyardError):
    """An evaluation cannot continue; the message states why. Its run fails with it."""

    code = "evaluation_error"


class BackendError(ModelyardError):
    """A backend failed or sent an invalid answer."""

    code = "backend_error"
    status = 502


class Overloaded(BackendError):
    """A backend has no capacity now; try again after `retry_after` seconds."""

    code = "overloaded"
    status = 503

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after: float = retry_after
        super().__init__(message)


class QueueFull(Overloaded):
    """A model has more requests or checkpoints waiting than it accepts at once: send fewer at once."""

    code = "queue_full"
    status = 429


class StoreError(ModelyardError):
    """The store failed; the transaction left no changes, unless the error is `OutcomeUnknown`."""

    code = "store_error"


class RecordNotFound(StoreError):
    """No record has this key."""

    code = "record_not_found"


class RecordConflict(StoreError):
    """A record's key or one of its unique keys is taken."""

    code = "record_conflict"


class StoreBusy(StoreError):
    """Another process held the store until the deadline; try again."""

    code = "store_busy"
    status = 503


class OutcomeUnknown(StoreError):
    """The connection was lost during the commit, so the transaction may have been stored: look before you try it
    again."""

    code = "outcome_unknown"
    status = 503


class StorageFull(StoreError):
    """The disk is full; reads still work."""

    code = "storage_full"
    status = 507


class StoreCorrupt(StoreError):
    """The file is not an intact store of modelyard; it was left unchanged."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """A newer modelyard wrote this store; upgrade before opening it."""

    code = "store_too_new"


class StoreClosed(StoreError):
    """The store, or its platform, was closed."""

    code = "store_closed"
    status = 503


class UsedAfterFork(StoreError):
    """A store that was opened before a fork was used after it: open the platform in the child instead."""

    code = "used_after_fork"


class ArtifactMissing(StoreError):
    """An artifact's bytes are gone or no longer match their digest."""

    code = "artifact_missing"


class ArtifactsUnavailable(StoreError):
    """The store of the artifacts does not answer, or refuses all that it is asked; what needs no artifact works."""

    code = "artifacts_unavailable"
    status = 503
    lasting = False  # with a wrong address or wrong credentials, which no waiting corrects


def nearest(name: str, known: Iterable[str], least: float = 0.6) -> str:
    """Return a hint that names the most similar known names, or "" if none is at `least` so similar (1 is equal).

    >>> nearest("learning_rat", ["learning_rate", "batch_size"])
    "; did you mean 'learning_rate'?"
    """
    from difflib import get_close_matches  # noqa: PLC0415 - slow to load, for errors alone

    found = get_close_matches(str(name), sorted(known), n=2, cutoff=least)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
