"""Jobs, the values of the queue, and their summary. The rules by which they change are functions of a transaction."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

import attrs

from modelyard.domain.frozen_fast import copies, quick_init
from modelyard.domain.record import (
    EMPTY,
    KEPT,
    KEY,
    Index,
    Record,
    digests_of,
    frozen_mapping,
    in_notebook,
    sequence_field,
)
from modelyard.errors import Conflict


class JobKind:
    """The kinds of jobs of the core. A part declares its own, which are strings, too (`modelyard.part.Part`)."""

    SFT: Final = "sft"
    RL: Final = "rl"
    DPO: Final = "dpo"
    DISTILL: Final = "distill"
    EVALUATE: Final = "evaluate"
    RESCORE: Final = "rescore"


class JobStatus(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


# A running job goes back to queued when its worker was lost or stopped in an orderly way.
TRANSITIONS: Mapping[JobStatus, frozenset[JobStatus]] = {
    JobStatus.QUEUED: frozenset({JobStatus.RUNNING, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.RUNNING: frozenset({JobStatus.QUEUED, JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.CANCELLED}),
    JobStatus.SUCCEEDED: frozenset(),
    JobStatus.FAILED: frozenset(),
    JobStatus.CANCELLED: frozenset(),
}

ENDED = frozenset(status for status, following in TRANSITIONS.items() if not following)


def check_transition(now: JobStatus, then: JobStatus) -> None:
    if then not in TRANSITIONS[now]:
        raise Conflict(f"a job that is {now} cannot become {then}")


class QueueState(StrEnum):
    """The state of a job in the queue: jobs of one lane run in order, so only a lane's first is ready. A paused job is
    in no lane: the jobs after it continue, and when it is resumed it is queued again. One that is held back keeps its
    place in its lane, and is ready again after a pause."""

    WAITING = "waiting"
    READY = "ready"
    CLAIMED = "claimed"
    PAUSED = "paused"
    HELD_BACK = "held_back"
    DONE = "done"


@attrs.frozen
class Needs:
    """The requirements of a job to its worker: that it does this kind of job, with this base model; "" if any will do.
    `accelerators` and GiB of main `memory` are for this job only; 0 if none was requested. A job that needs to be
    `alone` was in a process that died: it gets a process without other jobs, so that its next death counts against it
    only."""

    kind: str
    base_model: str = ""
    alone: bool = False
    accelerators: int = 0
    memory: int = 0

    def __str__(self) -> str:
        of = f"{self.kind} of {self.base_model!r}" if self.base_model else f"{self.kind}"
        amounts = [f"{self.accelerators} accelerators"] if self.accelerators else []
        amounts += [f"{self.memory} GiB of memory"] if self.memory else []
        return f"{of} with {' and '.join(amounts)}" if amounts else of


@attrs.frozen
class Job:
    """A piece of work: the request, its state in the queue, and its result. `lane` is what jobs queue up on (a model's
    id). `attempts` counts claims. `spec` is the request, resolved; `result` its outcome. `fingerprint` identifies equal
    requests; `idempotency_key` is the caller's name for this one, unique in its project. `resume` names the files of
    the saved state to resume from, at step `resume_step`. `handle` names what runs the job outside of its worker's
    process, if anything does (`protocols.Executor`). Everything that changes with every write of its worker is in its
    `JobProgress`. A job that is queued and claimed waits for room in its worker's executor. `base_model` is the one
    that its worker must have, "" if any worker will do. `accelerators` and GiB of `memory` are for this job only.
    `held_back` is why it could not run, until it is claimed again, no earlier than `not_before`; `refusals` counts how
    often no place was found for it. Of the ready jobs of an entity that with the lowest `rank` is first, and of equals
    the oldest."""

    id: str
    kind: str
    entity: str
    project: str
    lane: str
    created_at: datetime
    spec: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    fingerprint: str = ""
    idempotency_key: str | None = None
    status: JobStatus = JobStatus.QUEUED
    place: QueueState = QueueState.WAITING
    attempts: int = 0
    error_message: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    result: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    resume: Mapping[str, Any] = attrs.field(converter=frozen_mapping, factory=dict)
    resume_step: int = 0
    handle: str = ""
    base_model: str = ""
    accelerators: int = 0
    memory: int = 0
    held_back: str = ""
    not_before: datetime | None = None
    refusals: int = 0
    rank: int = 0
    seq: int = sequence_field()

    @property
    def needs(self) -> Needs:
        return Needs(self.kind, self.base_model, accelerators=self.accelerators, memory=self.memory)

    @property
    def subject(self) -> str:
        """The id of what it works on: a model, or an evaluation run. Loops and shards have their own lanes."""
        return str(self.spec.get("model_id", self.lane.partition("/")[0]))

    @property
    def ended(self) -> bool:
        return self.status in ENDED


class Gain(StrEnum):
    """The news of a claim: it may still be loading what it needs; or nothing, steps that an earlier claim had made too,
    or something new. Something new is a step beyond all before it, a later saved state, or a row."""

    LOADING = "loading"
    NOTHING = "nothing"
    REPEATED = "repeated"
    NEW = "new"


@quick_init
@attrs.frozen(weakref_slot=False)
class JobProgress:
    """Who has claimed a job and how far it has come: all that a worker's write reads and changes, kept small and apart.
    `epoch` grows with each claim and fences the worker's writes while the job is `held`; `beat` grows with each
    heartbeat. `step` is the last recorded optimizer step (or row), of `total`. `updated_at` never goes back, even if
    the wall clock does. `process` names the processes of the claim, as `process_identity` does. `alone` means that no
    other job shares them, `gain` is what the claim has stored. Since the job last stored something new, `crashes`
    claims were lost that stored nothing, `losses` that were ended from outside and stored steps again, and `faults`
    were given back because of a fault of the store. A `suspect` was in a process that died with several jobs in it, and
    runs alone next. `loose` names the artifacts, with spaces between, that the claim had stored by its last heartbeat
    and no other record names. `paused_by` is who has requested that it stops until it is resumed."""

    job_id: str
    updated_at: datetime
    epoch: int = 0
    worker_id: str = ""
    held: bool = False
    beat: int = 0
    last_seq: int = 0
    step: int = 0
    total: int | None = None
    crashes: int = 0
    cancelled_by: str = ""
    process: str = ""
    alone: bool = False
    gain: Gain = Gain.NOTHING
    suspect: bool = False
    losses: int = 0
    faults: int = 0
    loose: str = ""
    paused_by: str = ""

    @property
    def leaving(self) -> bool:
        """Whether its cancellation or its pause was requested, so that its worker stops at its next write."""
        return bool(self.cancelled_by or self.paused_by)

    def time(self, now: datetime) -> datetime:
        return max(now, self.updated_at)

    @copies
    def recorded(
        self,
        updated_at: datetime,
        held: bool,
        last_seq: int,
        step: int,
        total: int | None,
        gain: Gain,
        crashes: int,
        losses: int,
        faults: int,
    ) -> "JobProgress":
        """Return the progress after a write of its worker. Every event makes one, so the method is generated, to be
        fast."""
        raise NotImplementedError

    def gained(self) -> "JobProgress":
        """Return the progress of a claim that has stored something new: all earlier losses are forgiven."""
        return attrs.evolve(self, gain=Gain.NEW, crashes=0, losses=0, faults=0, suspect=False)


@quick_init
@attrs.frozen(weakref_slot=False)
class Claim:
    """A worker's claim of a job. Every write of the worker carries it; a newer epoch makes it worthless. `attempt` is
    the number of the claim from the queue, which a takeover within the attempt keeps; 0 if it is not known."""

    job_id: str
    epoch: int
    worker_id: str
    attempt: int = attrs.field(default=0, eq=False)

    @property
    def address(self) -> str:
        """The argument by which a separate process takes the job up in this attempt, and in no later one."""
        return f"{self.job_id}:{self.attempt}" if self.attempt else self.job_id


@quick_init
@attrs.frozen(weakref_slot=False)
class JobEvent:
    """Something that happened to a job. `seq` is dense from 1. (job, type, step) is its identity: a step that runs
    again after a crash keeps the event's id and `seq`, and replaces its data. `step` is 0 for other events."""

    job_id: str
    seq: int
    id: str
    type: str
    step: int
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    created_at: datetime
    epoch: int = 0


@quick_init
@attrs.frozen(weakref_slot=False)
class NewEvent:
    id: str
    type: str
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping, default=EMPTY)
    step: int = 0


@attrs.frozen
class SupersededEvent:
    event_id: str
    epoch: int
    data: Mapping[str, Any] = attrs.field(converter=frozen_mapping)
    created_at: datetime


@attrs.frozen
class Tenant:
    """The share of an entity in the workers. `turn` is the virtual time of its next job, and `taken` that of the last
    one: of those that wait, the lowest turn is next, and a job moves it on by one divided by its `weight`. `limits` are
    how many of its jobs may run at a time, by kind; "" for all. Only earlier versions read `waiting`."""

    entity: str
    turn: int = 0
    taken: int = 0
    waiting: bool = False
    weight: int = 1
    limits: Mapping[str, int] = attrs.field(converter=frozen_mapping, factory=dict)


MIXED = -1


@attrs.frozen
class Demand:
    """The ready jobs of an entity with the same needs; a claim reads the first demand of each needs. `turn` is that of
    the entity. Those with many different needs have a demand of `MIXED` amounts for the rest of a kind and model."""

    entity: str
    kind: str
    base_model: str
    accelerators: int
    memory: int
    turn: int = 0

    @property
    def mixed(self) -> bool:
        return self.memory == MIXED

    @property
    def needs(self) -> Needs:
        """What its jobs need at least."""
        return Needs(self.kind, self.base_model, accelerators=self.accelerators, memory=self.memory)


JOB = "job"
TENANT = "tenant"

HELD_OUT = "validation"
"""The member of a training job's spec that names its held-out rows: a data set, or a file that belongs to the job."""

START = "start_id"
"""The member that names the checkpoint, also of another model, that a job starts from; else the latest of its model."""


def files_of(job: Job) -> Mapping[str, str | None]:
    """Return the artifacts that belong to a job alone, with their digests: its own data and its saved state, useless
    after its end."""
    data = [one for one in (job.spec, job.spec.get(HELD_OUT, EMPTY)) if "artifact" in one]
    return digests_of([*data, *job.resume.values()])


RECORDS = (
    Record(
        Job,
        "jobs",
        ("id",),
        unique={"idempotency": ("entity", "project", "idempotency_key")},
        indexes={
            "all": Index(()),
            "by_place": Index(("place",)),
            "needs": Index(("place", "entity"), ("kind", "base_model", "accelerators", "memory", "rank")),
            "by_needs": Index(("place", "entity", "kind", "base_model", "accelerators", "memory"), ("rank",)),
            "by_kind": Index(("place", "entity", "kind"), ("base_model", "accelerators", "memory", "rank")),
            "by_lane": Index(("lane", "place")),
            "of_lane": Index(("lane",)),
            "of_kind": Index(("kind",)),
            "by_entity": Index(("entity",)),
            "by_project": Index(("entity", "project")),
            "by_status": Index(("entity", "status")),
            "by_state": Index(("status",)),
            "by_fingerprint": Index(("fingerprint",)),
        },
        sequence="seq",
        domain=(JOB, "id"),
        artifacts=files_of,
        texts=KEPT,
    ),
    Record(
        Tenant,
        "tenants",
        ("entity",),
        indexes={"by_taken": Index((), ("taken",)), "by_entity": Index(("entity",), ("turn",))},
        domain=(TENANT, "entity"),
    ),
    Record(
        Demand,
        "demands",
        ("entity", "kind", "base_model", "accelerators", "memory"),
        indexes={
            "by_turn": Index((), ("kind", "base_model", "accelerators", "memory", "turn", "entity")),
            "by_entity": Index(("entity",)),
        },
        domain=(TENANT, "entity"),
    ),
    Record(
        JobProgress,
        "job_progress",
        ("job_id",),
        indexes={"by_held": Index(("held",))},
        domain=(JOB, "job_id"),
        erased_with={Job: KEY},
    ),
    Record(
        JobEvent,
        "job_events",
        ("job_id", "seq"),
        unique={"id": ("job_id", "id"), "identity": ("job_id", "type", "step")},
        indexes={"by_job": Index(("job_id",), ("seq",)), "all": Index((), ("job_id", "seq"))},
        domain=(JOB, "job_id"),
        months="job_id",
        erased_with={Job: "by_job"},
        texts=KEPT,
    ),
    Record(
        SupersededEvent,
        "superseded_events",
        ("event_id", "epoch"),
        indexes={"by_event": Index(("event_id",), ("epoch",))},
        erased_with={JobEvent: "by_event"},
        texts=KEPT,
    ),
)


@attrs.frozen
class JobSummary:
    """A job of any kind in short. `subject` is the id of what it works on: a model, or an evaluation run. `progress` is
    its last recorded step, or row, of `total`. `waiting_for` is a reason to wait other than the queue, or None."""

    id: str
    kind: str
    status: JobStatus
    entity: str
    project: str
    subject: str
    progress: int
    total: int | None
    attempts: int
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    error_message: str | None
    waiting_for: str | None = None
    priority: int = 0
    _repr_html_ = in_notebook

    @classmethod
    def of(cls, job: Job, progress: JobProgress, waiting_for: str | None = None) -> "JobSummary":
        of = job.id, job.kind, job.status, job.entity, job.project, job.subject, progress.step, progress.total
        times = job.attempts, job.created_at, job.started_at, job.ended_at
        return cls(*of, *times, job.error_message, waiting_for, -job.rank)
