"""The weights of a run in this process: opened from its last saved state, then brought up to date from its log."""

from collections.abc import Mapping
from typing import Any, cast

import attrs

from modelyard.domain.training_run import AdamParams, AdapterConfig, token_objective
from modelyard.errors import TrainingError
from modelyard.parts.tinker.command_log import applied_since, saved_at
from modelyard.parts.tinker.formats.forward_backward import ScoredRows, read_rows
from modelyard.parts.tinker.payloads import kept_bytes
from modelyard.parts.tinker.records import CommandKind, FutureStatus, RunCommand, TrainingRun
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.job_files import Files, opener
from modelyard.protocols import OpenRun, StepTrainer

MOST_HELD = 128
"""How many runs a process keeps open while no job works on them."""


@attrs.define
class HeldRun:
    """An open run: the last command that its weights have, and what came since its last optimizer step.

    `unsaved` counts the optimizer steps since the last saved state, which was at `saved_at` of the monotonic clock. Its
    job was put aside at `left_at`.
    """

    state: OpenRun
    applied: int
    saved_at: float
    unsaved: int = 0
    loss: float = 0.0
    tokens: int = 0
    trained: bool = False
    left_at: float = 0.0

    def accumulate(self, request: ScoredRows) -> tuple[Any, Mapping[str, float]]:
        scores, loss = self.state.accumulate(request.rows, objective_of(request))
        self.loss += loss.value
        self.tokens += request.tokens
        self.trained = self.trained or any(slope for row in loss.derivatives for slope in row)
        return scores, loss.metrics

    def optim_step(self, params: AdamParams) -> Mapping[str, float]:
        """Make an optimizer step. Returns its metrics, with the loss and the tokens of its gradients; without a loss if
        no token had a gradient, as nothing was measured.
        """
        measured = {"loss": self.loss} if self.trained else {}
        metrics = {**measured, "num_trainable_tokens": float(self.tokens), **self.state.optim_step(params)}
        self.loss, self.tokens, self.trained = 0.0, 0, False
        self.unsaved += 1
        return metrics


def objective_of(request: ScoredRows) -> Any:
    return token_objective(request.loss, request.settings, request.rows, request.columns)


class HeldRuns(dict[str, HeldRun]):
    """Training runs whose weights stay open between their commands, by id."""

    def close(self) -> None:
        for held in self.values():
            held.state.close()


def step_trainer(runtime: Runtime, base_model: str) -> StepTrainer | None:
    for trainer in runtime.trainers:
        if trainer.methods(base_model) and hasattr(trainer, "open_run"):
            return cast("StepTrainer", trainer)
    return None


def new_state(runtime: Runtime, run: TrainingRun, files: Files) -> OpenRun:
    trainer = step_trainer(runtime, run.base_model)
    if trainer is None:
        raise TrainingError(f"no trainer of this worker trains {run.base_model!r} step by step")
    adapter = AdapterConfig(**run.adapter)
    return trainer.open_run(run.base_model, adapter, frozenset(files), opener(runtime.artifacts, files))


def take_held(claimed: ClaimedJob, run: TrainingRun) -> HeldRun | None:
    """Return the run with all commands that were applied: kept open, or opened again. None before its first command."""
    runtime, held = claimed.runtime, claimed.runtime.cache.slot(HeldRuns)
    with runtime.cache.lock:
        kept = held.pop(run.id, None)
    if kept is not None:
        if kept.applied == run.applied:
            return kept
        kept.state.close()
    if run.applied < 0:
        return None
    return _rebuilt(claimed, run)


def _rebuilt(claimed: ClaimedJob, run: TrainingRun) -> HeldRun:
    runtime, job = claimed.runtime, claimed.job
    number = runtime.store.read(lambda snapshot: saved_at(snapshot, run))
    commands = runtime.store.read(lambda snapshot: list(applied_since(snapshot, run, max(number, 0))))
    opened = HeldRun(new_state(runtime, run, job.resume), run.applied, runtime.clock.monotonic())
    try:
        for command in commands:
            _repeat(runtime, opened, command)
            claimed.moved_at = runtime.clock.monotonic()
    except BaseException:
        opened.state.close()
        raise
    return opened


def _repeat(runtime: Runtime, opened: HeldRun, command: RunCommand) -> None:
    if command.status is not FutureStatus.DONE:
        return
    if command.kind is CommandKind.FORWARD_BACKWARD:
        opened.accumulate(read_rows(kept_bytes(runtime, command.body)))
    elif command.kind is CommandKind.OPTIM_STEP:
        opened.optim_step(AdamParams(**command.arguments))


def keep_held(runtime: Runtime, run_id: str, opened: HeldRun) -> None:
    opened.left_at = runtime.clock.monotonic()
    held = runtime.cache.slot(HeldRuns)
    with runtime.cache.lock:
        held[run_id] = opened
    close_unused(runtime)


def close_unused(runtime: Runtime) -> None:
    """Close runs that are kept open: what is too many, and what is idle for as long as a session may be."""
    held, before = runtime.cache.slot(HeldRuns), runtime.clock.monotonic() - runtime.settings.session_idle
    with runtime.cache.lock:
        too_many = len(held) - MOST_HELD
        kept = enumerate(held.items())
        unused = [run_id for at, (run_id, run) in kept if at < too_many or run.left_at <= before]
        closed = [held.pop(run_id) for run_id in unused]
    for one in closed:
        one.state.close()
