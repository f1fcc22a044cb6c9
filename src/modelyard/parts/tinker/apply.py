"""The commands of a run: what each kind does to the weights, and to the records in its transaction."""

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

import attrs

from modelyard.domain.job import Job
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY
from modelyard.domain.training_run import AdamParams
from modelyard.errors import InvalidInput, NotFound, TrainingError
from modelyard.parts.tinker.formats.forward_backward import ScoredRows, output_message, read_rows
from modelyard.parts.tinker.held_run import HeldRun, new_state, objective_of
from modelyard.parts.tinker.payloads import Kept, keep_bytes, keep_files, kept_bytes
from modelyard.parts.tinker.records import (
    CommandKind,
    RunCommand,
    RunWeights,
    SamplingSession,
    TrainingRun,
    WeightsKind,
)
from modelyard.parts.tinker.saved_weights import NewWeights, expiry, files_to_load, save_weights
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.paging import get_or_none
from modelyard.platform.training.job_files import Files
from modelyard.protocols import Snapshot, Tx

UNNAMED_KEPT = timedelta(days=1)
"""How long weights without a name are kept for a client to sample from."""

Recording = Callable[[Tx, Job, datetime], list[str]]
"""Makes the changes of a command to the records. Returns the artifacts that no record names any more."""


def _record_nothing(tx: Tx, job: Job, now: datetime) -> list[str]:
    return []


@attrs.frozen
class Applied:
    """The outcome of a command: its answer, and the records to write with it.

    `metrics` are an optimizer step's, `tokens` is how many to book, `saved` is the state to resume the run from. The
    `last` command ends the run.
    """

    result: Mapping[str, Any] = EMPTY
    answer: Kept = EMPTY
    record: Recording = _record_nothing
    metrics: Mapping[str, float] | None = None
    tokens: int = 0
    saved: Files | None = None
    last: bool = False


class Applier:
    """Applies the commands of one run to its weights, which its first command opens."""

    def __init__(self, claimed: ClaimedJob, run: TrainingRun, opened: HeldRun | None) -> None:
        self.claimed, self.runtime, self.run = claimed, claimed.runtime, run
        self.opened = opened

    def apply(self, command: RunCommand, require: Callable[[int], None]) -> Applied:
        """Apply a command. `require` is called with the tokens that it costs. Raises what makes it fail."""
        if command.kind is CommandKind.CREATE:
            return self._create()
        if command.kind is CommandKind.LOAD:
            return self._load(command)
        if command.kind is CommandKind.UNLOAD:
            return Applied({"model_id": self.run.id, "type": "unload_model"}, last=True)
        if self.opened is None:
            raise TrainingError("the run was never opened")
        if command.kind in (CommandKind.FORWARD, CommandKind.FORWARD_BACKWARD):
            request = read_rows(kept_bytes(self.runtime, command.body))
            require(request.tokens)
            return self._score(self.opened, request)
        if command.kind is CommandKind.OPTIM_STEP:
            metrics = self.opened.optim_step(AdamParams(**command.arguments))
            return Applied({"metrics": dict(metrics)}, metrics=metrics)
        if command.kind is CommandKind.REFUSED:
            raise InvalidInput.at("body", msg=str(command.arguments["why"]))
        return self._save(self.opened, command)

    def put(self, files: Mapping[str, Any]) -> Files:
        """Store files, which stay without a record until the command is recorded."""
        return keep_files(self.runtime, files, self.claimed.loose)

    # ---- opening

    def _create(self) -> Applied:
        state = new_state(self.runtime, self.run, {})
        self.opened = HeldRun(state, -1, self.runtime.clock.monotonic())
        return Applied({"model_id": self.run.id, "type": "create_model"})

    def _load(self, command: RunCommand) -> Applied:
        """Open saved weights in place of the current ones, and save them as the run's own state."""
        path, files = str(command.arguments["path"]), self.runtime.store.read(lambda s: self._files(s, command))
        state = new_state(self.runtime, self.run, files)
        if self.opened is not None:
            self.opened.state.close()
        self.opened = HeldRun(state, -1, self.runtime.clock.monotonic())
        result = {"path": path, "model_id": self.run.id, "type": "load_weights"}
        return Applied(result, saved=self.put(state.state()))

    def _files(self, snapshot: Snapshot, command: RunCommand) -> Files:
        arguments, now = command.arguments, self.runtime.clock.now()
        weights, projects = get_or_none(snapshot, RunWeights, arguments["weights"]), arguments["projects"]
        seen = weights is not None and weights.entity == self.run.entity and weights.expires_at > now
        if weights is None or not seen or (projects is not None and weights.project not in projects):
            raise NotFound("Checkpoint", arguments["path"])
        return files_to_load(snapshot, weights, bool(arguments["optimizer"]))

    # ---- training

    def _score(self, opened: HeldRun, request: ScoredRows) -> Applied:
        if request.forward_only:
            scores = opened.state.score(request.rows)
            metrics = objective_of(request).of(scores).metrics
        else:
            scores, metrics = opened.accumulate(request)
        message = output_message(request.rows, scores, metrics)
        return Applied(answer=keep_bytes(self.runtime, message, self.claimed.loose), tokens=request.tokens)

    # ---- saving

    def _save(self, opened: HeldRun, command: RunCommand) -> Applied:
        arguments, now = command.arguments, self.runtime.clock.now()
        kind = WeightsKind.STATE if command.kind is CommandKind.SAVE else WeightsKind.SAMPLER
        sampler, ttl = arguments.get("sampler"), arguments.get("ttl_seconds")
        files = self.put(opened.state.files())
        state = opened.state.state() if kind is WeightsKind.STATE else {}
        new = NewWeights(
            kind,
            arguments["name"],
            self.runtime.ids(),
            files,
            self.put({name: chunks for name, chunks in state.items() if name not in files}),
            {"steps": self.run.steps},
            now + UNNAMED_KEPT if sampler and ttl is None else expiry(now, ttl),
            arguments.get("metadata") or {},
            bool(arguments.get("overwrite")),
        )
        path = f"tinker://{self.run.id}/{kind}/{new.name}"
        result = {"sampling_session_id": sampler["id"]} if sampler else {"path": path}

        def record(tx: Tx, job: Job, now: datetime) -> list[str]:
            weights, gone = save_weights(tx, self.runtime, self.run, job, new, now)
            if sampler:
                _add_sampler(tx, self.run, weights, sampler)
            return gone

        return Applied({**result, "type": str(command.kind)}, record=record)


def _add_sampler(tx: Tx, run: TrainingRun, weights: RunWeights, asked: Mapping[str, Any]) -> None:
    """Add a sampling session for these weights, or with `inflight` for the latest that the run has saved."""
    model = tx.get(Model, run.model_id)
    name = f"{model.entity}/{model.project}/{model.name}"
    if get_or_none(tx, SamplingSession, asked["id"]) is not None:
        raise InvalidInput.at("body", "sampling_session_seq_id", msg="was the number of another sampling session")
    place = (run.session_id, run.entity, run.project, run.base_model)
    named = name if asked["inflight"] else f"{name}:step{weights.step}"
    tx.add(SamplingSession(asked["id"], *place, named, weights.created_at, weights.path))
