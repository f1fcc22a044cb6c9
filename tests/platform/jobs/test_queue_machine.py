"""A search for histories of the queue in which the rules and a plain model of them disagree."""

from datetime import datetime
from typing import Any

import attrs
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from modelyard.domain.job import Claim, Gain, Job, JobEvent, JobKind, JobProgress, NewEvent, QueueState
from modelyard.domain.schema import RECORDS
from modelyard.errors import Conflict, LeaseLost
from modelyard.platform.job_types import job_types_of
from modelyard.platform.jobs.claims import (
    Claimant,
    claim,
    claim_of,
    heartbeat,
    ready_in_lane,
    record_events,
    require_claim,
)
from modelyard.platform.jobs.expired_claims import expire
from modelyard.platform.jobs.queue import (
    LOSSES_PER_CRASH,
    enqueue,
    fail,
    request_cancel,
    request_pause,
    requeue,
    resume_paused,
    succeed,
)
from modelyard.platform.jobs.shares import demands_of, ready_needs, take_ready
from modelyard.protocols import Tx
from modelyard.stores.memory import MemoryStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore

JOB_TYPES = job_types_of(())


LANES = ("a", "b")


def _claim(tx: Tx, claimant: Claimant, now: datetime, lane: str | None) -> tuple[Job, JobProgress] | None:
    ready = take_ready(tx, "acme", ready_needs(tx, demands_of(tx, "acme"))) if lane is None else ready_in_lane(tx, lane)
    return claim(tx, claimant, now, ready)


MAX_CRASHES = 3


@attrs.define
class Expected:
    """What the model knows of a job."""

    lane: str
    status: str = "queued"
    epoch: int = 0
    steps: int = 0
    crashes: int = 0
    losses: int = 0
    alone: bool = True
    suspect: bool = False
    gain: Gain = Gain.NOTHING
    cancelled: bool = False
    paused: bool = False
    story: list[tuple[str, int]] = attrs.field(factory=list)

    def over(self, status: str, event: str) -> None:
        self.status = status
        self.story.append((event, 0))

    def returned(self) -> None:
        if self.cancelled:
            self.over("cancelled", "training_failed")
        else:
            self.status = "queued"

    def lost(self) -> bool:
        """Whether it fails of this loss."""
        if not self.alone:
            self.suspect = True
        elif self.gain is Gain.REPEATED:
            self.losses += 1
        elif self.gain is Gain.NOTHING:
            self.crashes += 1
        return self.crashes >= MAX_CRASHES or self.losses >= MAX_CRASHES * LOSSES_PER_CRASH


class QueueMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.store = RunTwiceStore(MemoryStore(RECORDS))
        self.clock = ManualClock()
        self.jobs: dict[str, Expected] = {}
        self.claims: list[Claim] = []
        self.numbers = iter(range(1_000_000))
        self.first: dict[str, str] = {}

    def id(self) -> str:
        return f"id-{next(self.numbers):06d}"

    def transact(self, how: Any, *more: Any) -> Any:
        return self.store.transact(lambda tx: how(tx, *more))

    def held(self, token: Claim) -> Expected | None:
        """The job, if the claim should still be worth something."""
        job = self.jobs[token.job_id]
        return job if job.status == "running" and job.epoch == token.epoch else None

    def write(self, token: Claim, how: Any, *more: Any) -> Expected | None:
        job = self.held(token)
        try:
            self.transact(how, *more)
        except LeaseLost:
            assert job is None
        else:
            assert job is not None
        return job

    # ---- what may happen

    @rule(lane=st.sampled_from(LANES))
    def enqueue(self, lane: str) -> None:
        job = Job(self.id(), JobKind.SFT, "acme", "p", lane, self.clock.now())
        self.transact(enqueue, job, 1000)
        self.jobs[job.id] = Expected(lane)

    @rule(lane=st.sampled_from((None, *LANES)), alone=st.booleans())
    def claim(self, lane: str | None, alone: bool) -> None:
        claimant = Claimant(f"worker-{len(self.claims)}", alone=alone)
        claimed = self.transact(_claim, claimant, self.clock.now(), lane)
        job = claimed and claimed[0]
        ready = [id for id in self.heads() if self.jobs[id].status == "queued" and lane in (None, self.jobs[id].lane)]
        assert (job.id if job else None) == (min(ready) if ready else None)
        if job is not None:
            expected = self.jobs[job.id]
            expected.status, expected.epoch = "running", expected.epoch + 1
            expected.alone, expected.gain = alone or expected.suspect, Gain.NOTHING
            self.claims.append(claim_of(claimed[1]))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.claims))
        self.write(token, heartbeat, token, self.clock.now())

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def record(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.claims))
        steps = self.jobs[token.job_id].steps
        number = data.draw(st.integers(1, steps + 1)) if token.epoch > 1 else steps + 1
        event = NewEvent(self.id(), "gradient_step", {"epoch": token.epoch}, number)
        job = self.write(token, record_events, token, [event], self.clock.now())
        if job is not None and job.gain is Gain.NOTHING:
            job.gain = Gain.REPEATED
        if job is not None and number > job.steps:
            job.steps, job.crashes, job.losses, job.gain = number, 0, 0, Gain.NEW
            job.story.append(("gradient_step", number))

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), well=st.booleans())
    def finish(self, data: st.DataObject, well: bool) -> None:
        token, now = data.draw(st.sampled_from(self.claims)), self.clock.now()
        event_id = self.id()

        def step(tx: Any) -> None:
            job = require_claim(tx, token)
            if well and not tx.get(JobProgress, job.id).cancelled_by:
                succeed(tx, JOB_TYPES, job, event_id, now)
            else:
                fail(tx, JOB_TYPES, job, event_id, "why", now)

        job = self.write(token, step)
        if job is not None and job.cancelled:
            job.over("cancelled", "training_failed")
        elif job is not None:
            job.over(*(("succeeded", "training_ended") if well else ("failed", "training_failed")))

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def stop_in_order(self, data: st.DataObject) -> None:
        token, event_id, now = data.draw(st.sampled_from(self.claims)), self.id(), self.clock.now()
        job = self.write(token, lambda tx: requeue(tx, JOB_TYPES, require_claim(tx, token), event_id, now))
        if job is not None:
            job.returned()

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        token = data.draw(st.sampled_from(self.claims))
        seen = self.store.read(lambda s: s.get(JobProgress, token.job_id))
        taken = self.transact(expire, JOB_TYPES, seen, self.id(), self.clock.now(), MAX_CRASHES)
        job = self.jobs[token.job_id]
        assert (taken is not None) == (job.status == "running")
        if taken is None:
            return
        if not job.lost() or job.cancelled:
            job.returned()
        else:
            job.over("failed", "training_failed")

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        self.transact(request_cancel, JOB_TYPES, job_id, self.id(), "me", self.clock.now())
        job = self.jobs[job_id]
        if job.status == "queued":
            job.over("cancelled", "training_failed")
        elif job.status == "running":
            job.cancelled = True

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        job = self.jobs[job_id]
        try:
            self.transact(request_pause, job_id, "me")
        except Conflict:
            assert not self.alive(job)
        else:
            assert self.alive(job)
            job.paused = job.paused or not job.cancelled

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.jobs)))
        resumed = self.transact(lambda tx: resume_paused(tx, tx.get(Job, job_id)))
        job = self.jobs[job_id]
        assert (resumed is not None) == (job.paused and self.alive(job))
        job.paused = job.paused and not self.alive(job)

    @rule(seconds=st.sampled_from((-100, 0, 1)))
    def clock_jumps(self, seconds: int) -> None:
        self.clock.jump(seconds)

    # ---- what must hold

    def heads(self) -> list[str]:
        """The first job of each lane: as long as it has not ended and is not paused, then the oldest that waits."""
        for lane in LANES:
            left = [id for id, job in self.jobs.items() if job.lane == lane and self.in_lane(job)]
            if self.first.get(lane) not in left:
                self.first[lane] = left[0] if left else ""
        return [first for first in self.first.values() if first]

    def in_lane(self, job: Expected) -> bool:
        return job.status == "running" or (job.status == "queued" and not job.paused)

    def alive(self, job: Expected) -> bool:
        return job.status in ("queued", "running")

    @invariant()
    def records_agree(self) -> None:
        heads = self.heads()
        for job_id, expected in self.jobs.items():
            job = self.store.read(lambda s, job_id=job_id: s.get(Job, job_id))  # type: ignore[misc]
            assert job.status == expected.status
            progress = self.store.read(lambda s, job_id=job_id: s.get(JobProgress, job_id))  # type: ignore[misc]
            reported = (progress.epoch, progress.step, progress.last_seq, progress.held)
            assert reported == (expected.epoch, expected.steps, len(expected.story), expected.status == "running")
            assert job.place == self.place(job_id, expected, heads)
            assert (job.ended_at is not None) == job.ended

    def place(self, job_id: str, expected: Expected, heads: list[str]) -> QueueState:
        if not self.alive(expected):
            return QueueState.DONE
        if expected.status == "running":
            return QueueState.CLAIMED
        if expected.paused:
            return QueueState.PAUSED
        return QueueState.READY if job_id in heads else QueueState.WAITING

    @invariant()
    def events_are_dense_and_tell_the_story(self) -> None:
        for job_id, expected in self.jobs.items():
            events = self.store.read(lambda s, job_id=job_id: s.page(JobEvent, "by_job", job_id, limit=1000))  # type: ignore[misc]
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert [(event.type, event.step) for event in events] == expected.story
            times = [event.created_at for event in events]
            assert times == sorted(times)


TestQueue = pytest.mark.slow(QueueMachine.TestCase)
TestQueue.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
