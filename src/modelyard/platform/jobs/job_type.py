"""The properties of one kind of job that the queue needs to know."""

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any

import attrs

from modelyard.domain.job import Job
from modelyard.platform.runtime import Runtime, Settings
from modelyard.protocols import Snapshot, Tx

Reads = Callable[[Snapshot, Job], Iterable[tuple[type, str]]]


def nothing(snapshot: Snapshot, job: Job) -> Iterable[Any]:
    return ()


def _never(job: Job) -> bool:
    return False


def _alone(runtime: Runtime, job: Job) -> bool:
    return False


def _settled(runtime: Runtime, job: Job) -> None:
    pass


def _nothing_else(runtime: Runtime) -> None:
    pass


def _longest_step(settings: Settings) -> float:
    return settings.longest_step


def _always(runtime: Runtime, base_model: str) -> bool:
    return True


@attrs.frozen
class JobType:
    """One kind of job: what does its work, how its end is recorded, and what depends on its end.

    `run` does the work. It yields after each write, so that it can be stopped there, and ends the job in its last
    write; an exception fails the job. `succeeded` and `failed` are the types of the events that record the end; a
    cancelled job has failed. `on_end` runs in the transaction that ends the job, and returns what has happened with it,
    such as the run that has ended; `after_end` runs after it, unless the process dies in between. The jobs that it
    `awaits` are cancelled with it. A job that is
    `resumable` when it has ended keeps its files, and so does one that `shares_files` with others that need them.
    `found_by_lane` lets the id of the lane name the lane's last job. `can_run` is whether a platform has what jobs with
    a base model need; a worker leaves the others in the queue. One that `awaits_backend` goes back into the queue if
    its backend fails it, such as a base model that cannot be loaded now. `reads` returns the classes and ids of other
    records that a job reads, so that they stay until it has ended. A job that has recorded nothing for the seconds of
    `longest_pause` hangs. `tidy` ends what nobody needs any more: the processes that look after others call it once a
    lease. `shown` returns what a platform shows of a job by its id, or is None for its summary alone. `steps` returns
    its events as they come, or is None if it has no steps to follow. One that `trains` is among the training jobs.
    """

    kind: str
    run: Callable[..., Generator[None, None, None]]
    succeeded: str
    failed: str
    on_end: Callable[[Tx, Job], Iterable[object] | None] = nothing
    after_end: Callable[[Runtime, Job], None] = _settled
    awaits: Callable[[Snapshot, Job], Iterable[Job]] = nothing
    resumable: Callable[[Job], bool] = _never
    shares_files: Callable[[Runtime, Job], bool] = _alone
    found_by_lane: bool = False
    can_run: Callable[[Runtime, str], bool] = _always
    awaits_backend: bool = False
    reads: Reads = nothing
    longest_pause: Callable[[Settings], float] = _longest_step
    tidy: Callable[[Runtime], None] = _nothing_else
    shown: Callable[[Any, str], object] | None = None
    steps: Callable[[Any, str], Iterable[Any]] | None = None
    trains: bool = False


def answers(runtime: Runtime, base_model: str) -> bool:
    """Return whether the platform has a backend for the base model, if the job needs one."""
    return not base_model or any(entry.id == base_model for entry in runtime.backend.entries())


def training_job(platform: Any, id: str) -> object:
    return platform.training.get(id)


def training_steps(platform: Any, id: str) -> Iterable[Any]:
    return platform.training.job(id).events()  # type: ignore[no-any-return]


def longest_row(settings: Settings) -> float:
    """Return the seconds after which a job that answers or evaluates hangs."""
    return settings.longest_row


JobTypes = Mapping[str, JobType]
"""Every kind of job that a platform knows."""
