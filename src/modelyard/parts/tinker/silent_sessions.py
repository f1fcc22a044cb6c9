"""Sessions of clients that left without a word: they end with their runs, and later lose the answers of the runs.

Saved weights stay. A client is known to be there by its heartbeat, or by a command.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial

import attrs

from modelyard.domain.job import Job
from modelyard.parts.tinker.command_log import KEPT, last_command, next_command
from modelyard.parts.tinker.held_run import close_unused
from modelyard.parts.tinker.records import (
    RunCommand,
    RunSession,
    SamplingSession,
    SessionStage,
    TrainingRun,
    artifacts_in,
)
from modelyard.platform.jobs.queue import announce, request_cancel
from modelyard.platform.paging import iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

WATCHED = 120.0
"""Seconds for which this process must have watched a silent session: before, it may have been down itself."""

SILENT = "its client is silent"
"""Why such a session has finished."""

_AT_ONCE = 100
"""How many sessions are looked at, or commands removed, at once."""

_ENDS_RUNS = "the end of its session: nothing was heard of the client"


def tidy_sessions(runtime: Runtime) -> None:
    """End the sessions of silent clients, and remove the old answers of runs of ended sessions."""
    close_unused(runtime)
    now = runtime.clock.now()
    silent = _unseen_since(runtime, SessionStage.OPEN, now - timedelta(seconds=runtime.settings.session_idle))
    seen = {session.id: session.seen_at for session in silent}
    watched = runtime.liveness.idle_seconds("silent sessions", seen, runtime.clock.monotonic())
    for session in silent:
        if watched[session.id] >= WATCHED:
            _end(runtime, session)
    for session in _unseen_since(runtime, SessionStage.ENDED, now - KEPT):
        _clear(runtime, session)


def _unseen_since(runtime: Runtime, stage: SessionStage, moment: datetime) -> Sequence[RunSession]:
    first = runtime.look(lambda snapshot, _: snapshot.page(RunSession, "by_stage", stage, limit=_AT_ONCE))
    return [session for session in first if session.seen_at <= moment]


# ---- to its end --------------------------------------------------------------------------------------------------


def _end(runtime: Runtime, session: RunSession) -> None:
    """End a session and its runs, each by itself; what a crash leaves open is ended the next time."""
    now = runtime.clock.now()
    if not runtime.store.transact(partial(_finish, seen=session, now=now, idle=runtime.settings.session_idle)):
        return
    for run in runtime.store.read(lambda snapshot: list(_going(snapshot, session.id))):
        job = runtime.store.transact(partial(_end_run, runtime, run.job_id, runtime.ids(), now))
        if job.ended:
            announce(runtime, job)
    runtime.store.transact(lambda tx: _enter(tx, session.id, SessionStage.ENDED, now))


def _going(snapshot: Snapshot, session_id: str) -> Sequence[TrainingRun]:
    return [run for run in iter_index(snapshot, TrainingRun, "by_session", session_id) if not run.ended]


def _finish(tx: Tx, seen: RunSession, now: datetime, idle: float) -> bool:
    """Have no more runs begin in a session. Returns False if its client was heard of after all."""
    session = tx.get(RunSession, seen.id)
    if session.seen_at != seen.seen_at or session.stage is not SessionStage.OPEN:
        return False
    heard = max((_heard(tx, run, now) for run in _going(tx, session.id)), default=session.seen_at)
    if heard > now - timedelta(seconds=idle):
        tx.replace(attrs.evolve(session, seen_at=heard))
        return False
    tx.replace(attrs.evolve(session, finished=session.finished or SILENT))
    return True


def _heard(snapshot: Snapshot, run: TrainingRun, now: datetime) -> datetime:
    """Return when the last command of a run has come; now, if one is to be applied."""
    if next_command(snapshot, run.id) is not None:
        return now
    last = last_command(snapshot, run.id)
    return run.created_at if last is None else last.created_at


def _end_run(runtime: Runtime, job_id: str, event_id: str, now: datetime, tx: Tx) -> Job:
    return request_cancel(tx, runtime.job_types, job_id, event_id, _ENDS_RUNS, now)


def _enter(tx: Tx, session_id: str, stage: SessionStage, now: datetime) -> None:
    tx.replace(attrs.evolve(tx.get(RunSession, session_id), stage=stage, seen_at=now))


# ---- after its end -----------------------------------------------------------------------------------------------


def _clear(runtime: Runtime, session: RunSession) -> None:
    """Remove a session's samplers, and the commands of all its runs with their data and answers."""
    while runtime.store.transact(partial(_remove_samplers, session_id=session.id)):
        pass
    runs = runtime.store.read(lambda s: [run.id for run in iter_index(s, TrainingRun, "by_session", session.id)])
    for run_id in runs:
        while removed := runtime.store.transact(partial(_remove_commands, run_id=run_id)):
            for name in artifacts_in(*(kept for command in removed for kept in (command.body, command.answer))):
                runtime.artifacts.remove(name)
    runtime.store.transact(lambda tx: _enter(tx, session.id, SessionStage.CLEARED, runtime.clock.now()))


def _remove_samplers(tx: Tx, session_id: str) -> bool:
    first = tx.page(SamplingSession, "by_session", session_id, limit=_AT_ONCE)
    for sampler in first:
        tx.remove(SamplingSession, sampler.id)
    return bool(first)


def _remove_commands(tx: Tx, run_id: str) -> Sequence[RunCommand]:
    first = tx.page(RunCommand, "by_run", run_id, limit=_AT_ONCE)
    for command in first:
        tx.remove(RunCommand, run_id, command.number)
    return first
