"""The job of a training run: it applies the commands of its log, one after the other, while it is claimed.

It gives up its claim when no command has come for a while, at once if other jobs wait, and after a turn if commands
keep coming. Its weights stay open in the process. After a crash, commands are applied again from the last saved state,
in the same order and with the same outcome; an answer that was recorded does not change.
"""

import threading
from collections.abc import Generator
from contextlib import closing

import attrs

from modelyard.domain.job import Job, JobProgress, NewEvent, QueueState
from modelyard.domain.training import GRADIENT_STEP
from modelyard.domain.usage import Budget
from modelyard.errors import Conflict, InvalidInput, LeaseLost, ModelyardError, NotFound, RecordNotFound, StoreError
from modelyard.lazy import log
from modelyard.parts.tinker.apply import Applied, Applier
from modelyard.parts.tinker.command_log import (
    RUN_ID,
    close_command,
    end_run,
    forget_bodies,
    next_command,
    saved_at,
)
from modelyard.parts.tinker.held_run import keep_held, take_held
from modelyard.parts.tinker.records import FutureStatus, RunCommand, TrainingRun, run_topic
from modelyard.parts.tinker.turns import park, rotate
from modelyard.platform.jobs.claims import ClaimedJob, fenced, record_events, require_claim
from modelyard.platform.jobs.queue import announce, fail, save_resume, succeed
from modelyard.platform.jobs.runner import sentence
from modelyard.platform.jobs.shares import READY
from modelyard.platform.paging import get_or_none
from modelyard.platform.training.billing import book_tokens, cost_of, require_budget
from modelyard.platform.training.job_files import Files
from modelyard.platform.usage.booking import warn_of
from modelyard.protocols import Tx

TURN = 2.0
"""Seconds after which a run lets other jobs go first, if any are ready."""

STEPS_PER_STATE, SECONDS_PER_STATE = 20, 60.0
"""After how many optimizer steps, or seconds, the state of a run is saved. So much is computed again after a crash."""

_BEFORE_ANY_CHANGE = (InvalidInput, NotFound, Conflict)
"""Errors that are raised before a command has changed any weights."""


def apply_commands(claimed: ClaimedJob) -> Generator[None, None, None]:
    """Do the work of a run's job. Yields after each command, and while it waits for one."""
    runtime = claimed.runtime
    run = runtime.store.read(lambda snapshot: get_or_none(snapshot, TrainingRun, claimed.job.spec[RUN_ID]))
    if run is None:
        raise RecordNotFound(f"the training run of job {claimed.job.id} is gone")
    holder = _Holder(claimed, run)
    began = runtime.clock.monotonic()
    try:
        while True:
            command = runtime.store.read(lambda snapshot: next_command(snapshot, run.id))
            if command is None:
                if (yield from holder.wait()):
                    return
                continue
            holder.apply(command)
            if holder.ended:
                return
            yield
            if runtime.clock.monotonic() - began >= TURN and holder.others_wait():
                runtime.store.transact(holder.rotate, durable=False)
                return
    finally:
        holder.leave()


def end_with_job(tx: Tx, job: Job) -> None:
    run = get_or_none(tx, TrainingRun, job.spec[RUN_ID])
    if run is not None:
        end_run(tx, run, job.error_message or "it was unloaded")


class _Holder:
    """One claim of a run's job."""

    def __init__(self, claimed: ClaimedJob, run: TrainingRun) -> None:
        self.claimed, self.runtime, self.run = claimed, claimed.runtime, run
        self.ended = False
        self._applier: Applier | None = None
        self._unsound = False  # whether a command may have changed the weights, and is not recorded

    # ---- between commands

    def wait(self) -> Generator[None, None, bool]:
        """Wait for a command. Returns whether the job was put aside because none came."""
        runtime, come = self.runtime, threading.Event()
        until = runtime.clock.monotonic() + runtime.settings.run_idle
        subscribe = runtime.store.subscribe
        with closing(subscribe(run_topic(self.run.id), come.set)), closing(subscribe(READY, come.set)):
            while True:
                if runtime.store.read(lambda snapshot: next_command(snapshot, self.run.id)) is not None:
                    return False
                left = until - runtime.clock.monotonic()
                if (left <= 0 or self.others_wait()) and runtime.store.transact(self._park, durable=False):
                    return True
                runtime.clock.sleep(max(0.0, min(left, runtime.settings.poll)), come)
                come.clear()
                self.claimed.moved_at = runtime.clock.monotonic()
                self.claimed.progress = runtime.store.read(lambda snapshot: fenced(snapshot, self.claimed.claim))
                yield

    def others_wait(self) -> bool:
        return bool(self.runtime.store.read(lambda snapshot: snapshot.page(Job, "by_place", QueueState.READY, limit=1)))

    def _park(self, tx: Tx) -> bool:
        """Put the job aside, unless a command has come, or its cancellation or pause was requested."""
        job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
        if progress.leaving or next_command(tx, self.run.id) is not None:
            return False
        park(tx, job, self.runtime.clock.now())
        return True

    def rotate(self, tx: Tx) -> None:
        rotate(tx, require_claim(tx, self.claimed.claim), self.runtime.clock.now())

    def leave(self) -> None:
        """Keep the run open in this process for its next claim, unless the state of its weights is unknown."""
        applier, self._applier = self._applier, None
        if applier is None or applier.opened is None:
            return
        if self._unsound or self.ended:
            applier.opened.state.close()
        else:
            keep_held(self.runtime, self.run.id, applier.opened)

    # ---- a command

    def apply(self, command: RunCommand) -> None:
        """Apply a command and record its outcome. A failure ends only its command."""
        try:
            outcome = self._outcome(command)
            self._record(command, outcome)
        except (LeaseLost, StoreError):
            self._unsound = True
            raise
        except Exception as error:  # noqa: BLE001 - the client hears of it
            if not isinstance(error, ModelyardError):
                log.exception("command %s failed", command.id)
            if not isinstance(error, _BEFORE_ANY_CHANGE):
                self._forget_weights()
            self._record_failure(command, sentence(error))
            return
        self._save_state_now_and_then(command, outcome)

    def _outcome(self, command: RunCommand) -> Applied:
        if self._applier is None:
            self.run = self.runtime.store.read(lambda snapshot: snapshot.get(TrainingRun, self.run.id))
            self._applier = Applier(self.claimed, self.run, take_held(self.claimed, self.run))
        self._unsound = True
        return self._applier.apply(command, self._require_budget)

    def _forget_weights(self) -> None:
        """Close the weights, so that the next command opens them again: it is unknown how this command changed them."""
        applier, self._applier = self._applier, None
        self._unsound = False
        if applier is not None and applier.opened is not None:
            applier.opened.state.close()

    def _require_budget(self, tokens: int) -> None:
        if cost := cost_of(self.claimed.job, tokens):
            self.runtime.store.read(lambda snapshot: require_budget(snapshot, self.claimed.job, cost))

    def _record(self, command: RunCommand, outcome: Applied) -> None:
        runtime, now, claim = self.runtime, self.runtime.clock.now(), self.claimed.claim
        event_id, entry_id = runtime.ids(), runtime.ids()
        gone, warnings = list[str](), list[Budget]()

        def step(tx: Tx) -> tuple[Job, JobProgress, TrainingRun]:
            gone.clear()
            job = require_claim(tx, claim)
            book_tokens(tx, job, outcome.tokens, entry_id, now, warnings)
            runtime.tell(tx, *warnings)
            gone.extend(outcome.record(tx, job, now))
            answered = {"status": FutureStatus.DONE, "result": outcome.result, "answer": outcome.answer}
            close_command(tx, command, **answered, ended_at=now)
            run = tx.get(TrainingRun, self.run.id)
            progress = fenced(tx, claim)
            if outcome.metrics is not None:
                run = attrs.evolve(run, steps=run.steps + 1)
                tx.replace(run)
                event = NewEvent(event_id, GRADIENT_STEP, outcome.metrics, run.steps)
                progress = record_events(tx, claim, [event], now)
            else:
                progress = attrs.evolve(progress.gained(), updated_at=progress.time(now))
                tx.replace(progress)
            if outcome.saved is not None:
                gone.extend(self._resume_from(tx, job, command.number, outcome.saved))
            if outcome.last:
                job = succeed(tx, runtime.job_types, tx.get(Job, job.id), event_id, now)
            return tx.get(Job, job.id), progress, run

        self.claimed.job, self.claimed.progress, self.run = runtime.store.transact(step)
        self._recorded(command, gone)
        warn_of(runtime, warnings)
        if outcome.last:
            self.ended = True
            announce(runtime, self.claimed.job)

    def _recorded(self, command: RunCommand, gone: list[str]) -> None:
        """Note that the command is applied, and remove the artifacts in `gone`."""
        self.claimed.moved_at = self.runtime.clock.monotonic()
        self.claimed.loose.clear()
        if self._applier is not None:
            self._applier.run = self.run
            if self._applier.opened is not None:
                self._applier.opened.applied = command.number
        self._unsound = False
        for name in gone:
            self.runtime.artifacts.remove(name)

    def _record_failure(self, command: RunCommand, message: str) -> None:
        """Record that a command has failed. A run that could not be opened ends with it."""
        runtime, now, claim, event_id = self.runtime, self.runtime.clock.now(), self.claimed.claim, self.runtime.ids()
        loose = list(self.claimed.loose)

        def step(tx: Tx) -> tuple[Job, JobProgress]:
            job = require_claim(tx, claim)
            close_command(tx, command, status=FutureStatus.FAILED, error=message, ended_at=now)
            progress = fenced(tx, claim).gained()
            tx.replace(attrs.evolve(progress, updated_at=progress.time(now)))
            if command.number == 0:
                fail(tx, runtime.job_types, job, event_id, message, now)
            return tx.get(Job, job.id), progress

        self.claimed.job, self.claimed.progress = runtime.store.transact(step)
        self._recorded(command, loose)
        if command.number == 0:
            self.ended = True
            announce(runtime, self.claimed.job)

    # ---- the saved state

    def _save_state_now_and_then(self, command: RunCommand, outcome: Applied) -> None:
        """Save the state if the last one is old. This is done only after an optimizer step, when there are no gradients
        to save.
        """
        opened, runtime = self._applier and self._applier.opened, self.runtime
        if outcome.metrics is None or not opened or self._applier is None:
            return
        age = runtime.clock.monotonic() - opened.saved_at
        if opened.unsaved < STEPS_PER_STATE and age < SECONDS_PER_STATE:
            return
        files = self._applier.put(opened.state.state())
        gone = list[str]()

        def step(tx: Tx) -> Job:
            gone[:] = self._resume_from(tx, require_claim(tx, self.claimed.claim), command.number, files)
            return tx.get(Job, self.claimed.job.id)

        self.claimed.job = runtime.store.transact(step)
        opened.unsaved, opened.saved_at = 0, runtime.clock.monotonic()
        self._recorded(command, gone)

    def _resume_from(self, tx: Tx, job: Job, number: int, files: Files) -> list[str]:
        """Make these files the state to resume from. Returns the artifacts that are no longer needed."""
        gone = [file["artifact"] for file in job.resume.values()]
        before = saved_at(tx, self.run)
        save_resume(tx, self.claimed.claim, number, files, self.runtime.clock.now())
        return [*gone, *forget_bodies(tx, self.run, before, number)]
