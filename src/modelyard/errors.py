"""Every exception that modelyard raises on purpose, as one tree.

Each class carries data, not only text, and a stable `code`. Nothing here knows HTTP: `http.error_responses` maps the
classes to each interface's status and body. A message says what is wrong and what to do about it, and never
repeats a secret.
"""

from collections.abc import Iterable, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import ClassVar, Self

import attrs

__all__ = [
    "ArtifactMissing",
    "BackendError",
    "BodyTooLarge",
    "BudgetExceeded",
    "CallerError",
    "Conflict",
    "ContextLengthExceeded",
    "EvaluationError",
    "Forbidden",
    "InvalidInput",
    "JobFailed",
    "LeaseLost",
    "MissingExtra",
    "ModelNotFound",
    "ModelyardError",
    "NoAnswerPrepared",
    "NoWorker",
    "NotFound",
    "ObjectDeleted",
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
    """Root of the tree."""

    code: ClassVar[str] = "internal_error"


# ---- what the caller asked for cannot be done ------------------------------------------------------------------


class CallerError(ModelyardError):
    """The request is at fault; the same request fails again."""

    code = "bad_request"


@attrs.frozen
class Problem:
    """One thing wrong with an input: where (`loc`, outermost first), what (`msg`) and its kind (`type`)."""

    loc: tuple[str | int, ...]
    msg: str
    type: str = "value_error"

    def __str__(self) -> str:
        where = ".".join(str(part) for part in self.loc)
        return f"{where}: {self.msg}" if where else self.msg


class InvalidInput(CallerError):
    """One or more fields do not fit; `problems` names all of them."""

    code = "invalid_input"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))

    @classmethod
    def at(cls, *loc: str | int, msg: str, type: str = "value_error") -> "InvalidInput":
        """One problem at one place."""
        return cls([Problem(loc, msg, type)])

    def below(self, *loc: str | int) -> Self:
        """Return these problems, each located below `loc`."""
        return type(self)([attrs.evolve(problem, loc=(*loc, *problem.loc)) for problem in self.problems])


class UnsupportedParameter(InvalidInput):
    """The backend cannot honour a parameter, so the request is refused by that name rather than answered wrongly."""

    code = "unsupported_parameter"


class ContextLengthExceeded(InvalidInput):
    """Prompt plus requested output do not fit the model."""

    code = "context_length_exceeded"


class NoAnswerPrepared(InvalidInput):
    """A test double has no answer for this request: no rule of its script, no recording on its cassette."""

    code = "no_answer_prepared"


class NotFound(CallerError):
    """No such thing in the caller's scope (what belongs to another tenant looks the same)."""

    code = "not_found"

    def __init__(self, kind: str, id: str, hint: str = "") -> None:
        self.kind, self.id = kind, id
        super().__init__(f"{kind} {id!r} not found{'; ' + hint if hint else ''}")


class ModelNotFound(NotFound):
    """No catalogue entry, model or checkpoint answers to this name."""

    code = "model_not_found"


class ObjectDeleted(NotFound):
    """The version of an object was there, and was deleted at `deleted_at`."""

    code = "object_deleted"

    def __init__(self, kind: str, id: str, deleted_at: datetime) -> None:
        self.deleted_at = deleted_at
        super().__init__(kind, id, f"it was deleted at {deleted_at.isoformat()}")


class Conflict(CallerError):
    """The request contradicts what is stored (a name that is taken, a checkpoint in use)."""

    code = "conflict"


class PromotionRefused(Conflict):
    """A checkpoint does not meet what its promotion requires; the message says by how much and how sure that is."""

    code = "promotion_refused"


class RunAlreadyFinished(CallerError):
    """A finished evaluation run is frozen."""

    code = "RUN_ALREADY_FINISHED"


class Unauthenticated(CallerError):
    """No key, or one that is unknown, revoked or expired: which of them is not told."""

    code = "invalid_api_key"


class Forbidden(CallerError):
    """The key does not hold the entity or project that the request names."""

    code = "forbidden"


class BudgetExceeded(CallerError):
    """The cost of this request could pass a budget's limit."""

    code = "insufficient_quota"


class RateLimited(CallerError):
    """Too many requests at once or in the window; try again after `retry_after` seconds."""

    code = "rate_limit_exceeded"

    def __init__(self, message: str, retry_after: float) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class BodyTooLarge(CallerError):
    """A body passed its limit of `limit` bytes."""

    code = "body_too_large"

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"the body is larger than the limit of {limit} bytes; send less or ask the host to raise it")


class MissingExtra(ModelyardError):
    """An optional dependency is not installed. `extra` is None where its version is the user's own choice."""

    code = "missing_extra"

    def __init__(self, package: str, extra: str | None = None) -> None:
        self.package, self.extra = package, extra
        wanted = package if extra is None else f"'modelyard[{extra}]'"
        super().__init__(f"{package} is not installed; run: pip install {wanted}")


# ---- long work -------------------------------------------------------------------------------------------------


class NoWorker(ModelyardError):
    """Nothing would run this job."""

    code = "no_worker"


class JobFailed(ModelyardError):
    """A job that was waited for ended in failure or was cancelled."""

    code = "job_failed"

    def __init__(self, job_id: str, status: str, message: str, kind: str = "job") -> None:
        self.job_id, self.status, self.message = job_id, status, message
        super().__init__(f"{kind} {job_id} {status}: {message}")


class LeaseLost(ModelyardError):
    """A newer claim exists: this worker's writes for the job are refused, and it must stop."""

    code = "lease_lost"


class TrainingError(ModelyardError):
    """Training cannot go on; the message says what to try. The job fails with it."""

    code = "training_error"


class EvaluationError(ModelyardError):
    """An evaluation cannot go on; the message says why. Its run fails with it."""

    code = "evaluation_error"


# ---- what answers ------------------------------------------------------------------------------------------------


class BackendError(ModelyardError):
    """A backend failed or answered nonsense."""

    code = "backend_error"


class Overloaded(BackendError):
    """A backend has no room now; try again after `retry_after` seconds."""

    code = "overloaded"

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        self.retry_after = retry_after
        super().__init__(message)


class QueueFull(Overloaded):
    """More is asked of a model at once than it takes in, requests or checkpoints: send fewer at once."""

    code = "queue_full"


# ---- where it is kept ------------------------------------------------------------------------------------------------


class StoreError(ModelyardError):
    """The store could not do its work; nothing of the refused step remains."""

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


class StorageFull(StoreError):
    """No room on the disk; reads still work."""

    code = "storage_full"


class StoreCorrupt(StoreError):
    """The file is no intact store of ours; it was left as it is."""

    code = "store_corrupt"


class StoreTooNew(StoreError):
    """A newer modelyard wrote this store; upgrade before you open it."""

    code = "store_too_new"


class StoreClosed(StoreError):
    """The store, or its platform, was closed."""

    code = "store_closed"


class UsedAfterFork(StoreError):
    """Opened before a fork and used after it: open the platform in the child instead."""

    code = "used_after_fork"


class ArtifactMissing(StoreError):
    """An artifact's bytes are gone or no longer match their digest."""

    code = "artifact_missing"


def nearest(name: str, known: Iterable[str]) -> str:
    """Word the hint at the known names that are most like this one, or nothing.

    >>> nearest("learning_rat", ["learning_rate", "batch_size"])
    "; did you mean 'learning_rate'?"
    """
    found = get_close_matches(name, sorted(known), n=2)
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""
