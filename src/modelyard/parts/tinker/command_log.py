"""The log of a run's commands and of their answers: functions of a transaction."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.record import EMPTY
from modelyard.errors import InvalidInput, NotFound, RateLimited
from modelyard.parts.tinker.records import (
    CommandKind,
    FutureStatus,
    RunCommand,
    RunSession,
    TrainingRun,
    artifacts_in,
    future_topic,
    run_topic,
)
from modelyard.parts.tinker.turns import unpark
from modelyard.platform.paging import get_or_none
from modelyard.protocols import Snapshot, Tx

RUN_ID = "training_run_id"
"""The member of a job's spec that names its run."""

MOST_AHEAD = 10_000
"""How many commands may wait for those before them."""

KEPT = timedelta(days=1)
"""How long an answer is kept."""

_REMOVED_AT_ONCE = 4
_FULL_RETRY_AFTER = 5.0


@attrs.frozen
class Future:
    """The answer to a command or to a request to sample, or the promise of one."""

    id: str
    status: FutureStatus
    kind: CommandKind | None = None
    result: Mapping[str, Any] = EMPTY
    answer: Mapping[str, Any] = EMPTY
    error: str = ""

    @property
    def pending(self) -> bool:
        return self.status is FutureStatus.PENDING


def found_session(snapshot: Snapshot, principal: Principal, session_id: str) -> RunSession:
    session = get_or_none(snapshot, RunSession, session_id)
    if session is None or not principal.scope.covers(session.entity, session.project):
        raise NotFound("Session", session_id)
    return session


def found_run(snapshot: Snapshot, principal: Principal, run_id: str) -> TrainingRun:
    run = get_or_none(snapshot, TrainingRun, run_id)
    if run is None or not principal.scope.covers(run.entity, run.project):
        raise NotFound("Training run", run_id)
    return run


# ---- commands --------------------------------------------------------------------------------------------------


def add_command(tx: Tx, run: TrainingRun, command: RunCommand) -> bool:
    """Add a command to the log, for a worker to apply in its turn. Returns whether it is new.

    The same command may be sent again, and changes nothing. Raises `InvalidInput` if another command has its number, or
    if its answer is no longer kept, and `RateLimited` if it is too far ahead.
    """
    known = get_or_none(tx, RunCommand, run.id, command.number)
    if known is not None:
        if known.digest != command.digest:
            msg = f"{command.number} was the number of another request to this run; each has one of its own"
            raise InvalidInput.at("body", "seq_id", msg=msg)
        return False
    if command.number <= run.applied:
        raise InvalidInput.at("body", "seq_id", msg=f"{command.number} was answered, and its answer is gone")
    if command.number > run.applied + MOST_AHEAD:
        raise RateLimited(f"{MOST_AHEAD} commands wait for one before them; send it first", _FULL_RETRY_AFTER)
    tx.add(command)
    if not run.ended:
        unpark(tx, tx.get(Job, run.job_id))
    tx.notify(run_topic(run.id))
    return True


def remove_old(tx: Tx, run: TrainingRun, now: datetime) -> Sequence[str]:
    """Remove the oldest commands of a run, if their answers were kept for long enough. Returns their artifacts."""
    names: list[str] = []
    for old in tx.page(RunCommand, "by_run", run.id, limit=_REMOVED_AT_ONCE):
        if old.number > saved_at(tx, run) or old.ended_at is None or old.ended_at + KEPT > now:
            break
        tx.remove(RunCommand, run.id, old.number)
        names += artifacts_in(old.body, old.answer)
    return names


def saved_at(snapshot: Snapshot, run: TrainingRun) -> int:
    """Return the number of the last command with its outcome in a saved state; -1 if there is none."""
    job = get_or_none(snapshot, Job, run.job_id)
    return job.resume_step if job is not None and job.resume else -1


# ---- answers --------------------------------------------------------------------------------------------


def next_command(snapshot: Snapshot, run_id: str) -> RunCommand | None:
    run = get_or_none(snapshot, TrainingRun, run_id)
    return None if run is None or run.ended else get_or_none(snapshot, RunCommand, run_id, run.applied + 1)


def last_command(snapshot: Snapshot, run_id: str) -> RunCommand | None:
    return next(iter(last_commands(snapshot, run_id, 1)), None)


def last_commands(snapshot: Snapshot, run_id: str, most: int) -> Sequence[RunCommand]:
    return snapshot.page(RunCommand, "by_run", run_id, limit=most, descending=True)


def applied_since(snapshot: Snapshot, run: TrainingRun, number: int) -> Iterator[RunCommand]:
    for one in range(number + 1, run.applied + 1):
        yield snapshot.get(RunCommand, run.id, one)


def forget_bodies(tx: Tx, run: TrainingRun, before: int, upto: int) -> Sequence[str]:
    """Drop the bodies of commands after `before`, up to `upto`: a saved state has their outcome. Returns their
    artifacts.
    """
    names: list[str] = []
    for number in range(before + 1, upto + 1):
        command = get_or_none(tx, RunCommand, run.id, number)
        if command is not None and command.body:
            names += artifacts_in(command.body)
            tx.replace(attrs.evolve(command, body={}))
    return names


def close_command(tx: Tx, command: RunCommand, **outcome: Any) -> None:
    tx.replace(attrs.evolve(command, **outcome))
    run = tx.get(TrainingRun, command.run_id)
    tx.replace(attrs.evolve(run, applied=command.number))
    tx.notify(future_topic(command.id))


def end_run(tx: Tx, run: TrainingRun, why: str) -> None:
    """End a run: no more commands are applied. Callers that wait for answers are notified."""
    if not run.ended:
        tx.replace(attrs.evolve(run, ended=why))
        tx.notify(f"future/{run.id}")


def command_future(snapshot: Snapshot, principal: Principal, future_id: str) -> Future:
    run_id, _, number = future_id.rpartition(":")
    run = found_run(snapshot, principal, run_id)
    known = get_or_none(snapshot, RunCommand, run.id, int(number)) if number.isdecimal() and len(number) < 16 else None
    if known is None:
        if number.isdecimal() and int(number) <= run.applied:
            return Future(future_id, FutureStatus.LOST, error="the answer was kept for a day, and is gone")
        raise NotFound("Request", future_id)
    if known.status is FutureStatus.PENDING and run.ended:
        return Future(future_id, FutureStatus.FAILED, known.kind, error=f"the run has ended: {run.ended}")
    return Future(future_id, known.status, known.kind, known.result, known.answer, known.error)
