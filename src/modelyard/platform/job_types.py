"""The kinds of jobs, as the queue knows them. Each is loaded when the queue first asks for it."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import Job, JobKind
from modelyard.domain.training import TRAINING_ENDED, TRAINING_FAILED
from modelyard.domain.usage import Budget
from modelyard.lazy import calls
from modelyard.part import Part
from modelyard.platform.evaluations import job as evaluation_job
from modelyard.platform.evaluations import shards
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.jobs.job_type import (
    JobType,
    JobTypes,
    Reads,
    answers,
    longest_row,
    nothing,
    training_job,
    training_steps,
)
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import book_rest, is_over_budget
from modelyard.platform.training.methods import METHODS
from modelyard.platform.training.run import train
from modelyard.platform.usage.booking import warn_of
from modelyard.protocols import Tx


def _unknown(kind: str) -> JobType:
    """Return what is known of a kind of a part that is not open: its jobs wait, and keep their files."""

    def run(claimed: ClaimedJob) -> Generator[None, None, None]:
        raise TypeError(f"no open part has jobs of the kind {kind}")

    return JobType(kind, run, "job_ended", "job_failed", resumable=lambda job: True, can_run=lambda *_: False)


class KindsOfJobs(JobTypes):
    """The kinds of jobs by their names. A job of another kind is of a part that is not open."""

    def __init__(self, known: Mapping[str, Callable[[], JobType]], tell: Callable[..., None] | None = None) -> None:
        self._known, self._tell, self._loaded = known, tell, dict[str, JobType]()

    def __getitem__(self, kind: str) -> JobType:
        found = self._loaded.get(kind)
        if found is None:
            found = self._known[kind]() if kind in self._known else _unknown(kind)
            found = self._loaded[kind] = found if self._tell is None else _told(found, self._tell)
        return found

    def __contains__(self, kind: object) -> bool:
        return kind in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)


def job_types_of(parts: Sequence[Part], tell: Callable[..., None] | None = None) -> JobTypes:
    """Return the kinds of jobs of the core and of these parts. `Runtime.tell` is told of each that ends."""
    known = {**_CORE, **{kind: load for part in parts for kind, load in part.job_types.items()}}
    for run in (part.evaluates for part in parts if part.evaluates is not None):
        known[JobKind.EVALUATE] = partial(_evaluation, JobKind.EVALUATE, run=run)
    return KindsOfJobs(known, tell)


def _told(job_type: JobType, tell: Callable[..., None]) -> JobType:
    """Return the kind of job with an end that is told, as is what ends with the job."""

    def on_end(tx: Tx, job: Job) -> None:
        tell(tx, job, *(job_type.on_end(tx, job) or ()))

    return attrs.evolve(job_type, on_end=on_end)


def _trains(kind: str, runtime: Runtime, base_model: str) -> bool:
    return any(kind in trainer.methods(base_model) for trainer in runtime.trainers)


def _evaluation(kind: str, reads: Reads = nothing, run: Any = None) -> JobType:
    return JobType(
        kind,
        run or calls(evaluation_job, "evaluate"),
        "evaluation_ended",
        "evaluation_failed",
        calls(shards, "end_run"),
        after_end=calls(shards, "stop_others"),
        resumable=calls(shards, "has_failed"),
        shares_files=calls(shards, "shares_files"),
        found_by_lane=True,
        can_run=answers,
        reads=reads,
        longest_pause=longest_row,
        steps=lambda platform, job_id: platform.evaluations.events(platform.jobs.get(job_id).subject),
    )


def _training(kind: str) -> JobType:
    due: dict[str, list[Budget]] = {}

    def book(tx: Tx, job: Job) -> Iterable[Budget]:
        due[job.id] = [*book_rest(tx, job)]
        return due[job.id]

    return JobType(
        kind,
        train,
        TRAINING_ENDED,
        TRAINING_FAILED,
        book,
        after_end=lambda runtime, job: warn_of(runtime, due.pop(job.id, ())),
        resumable=is_over_budget,
        can_run=partial(_trains, kind),
        awaits_backend=True,
        shown=training_job,
        steps=training_steps,
        trains=True,
    )


_CORE: Mapping[str, Callable[[], JobType]] = {
    **{kind: partial(_training, kind) for kind in METHODS},
    JobKind.EVALUATE: partial(_evaluation, JobKind.EVALUATE),
    JobKind.RESCORE: partial(_evaluation, JobKind.RESCORE, lambda _, job: [(EvaluationRun, job.spec["source"])]),
}
