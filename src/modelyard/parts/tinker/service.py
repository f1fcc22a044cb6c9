"""`platform.compat.training_runs`: models that clients train command by command, as Tinker's interface has it."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.models import Model
from modelyard.domain.record import EMPTY
from modelyard.domain.training_run import AdamParams, AdapterConfig
from modelyard.engines import TabularBackend
from modelyard.errors import InvalidInput, NotFound, RateLimited
from modelyard.flow import Await, Call, Flow, run
from modelyard.formats.converter import structure_exactly
from modelyard.parts.tinker import tabular_tokenizer
from modelyard.parts.tinker.command_log import (
    RUN_ID,
    Future,
    add_command,
    command_future,
    found_run,
    found_session,
    last_command,
    last_commands,
    remove_old,
)
from modelyard.parts.tinker.held_run import step_trainer
from modelyard.parts.tinker.payloads import keep_bytes, kept_bytes
from modelyard.parts.tinker.records import (
    COMMANDS_JOB,
    RUN,
    CommandKind,
    RunCommand,
    TrainingRun,
    future_topic,
    is_command,
    run_of,
)
from modelyard.parts.tinker.samplers import Samplers
from modelyard.parts.tinker.saved_weights import check_weights_name, remove_expired
from modelyard.parts.tinker.sessions import ClientSessions, ListedSlice, listed_slice
from modelyard.parts.tinker.weights import SavedWeights, load_arguments, weights_to_load
from modelyard.platform.chat.backend_stream import backend_of
from modelyard.platform.checkpoints.transactions import create
from modelyard.platform.jobs.announced import alive
from modelyard.platform.jobs.queue import announce, enqueue
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.jobs.wakeups import JobPause, JobWaiter
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity, listed_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import billing_of
from modelyard.platform.training.metrics import MetricRows, metric_rows
from modelyard.protocols import Snapshot, Tx

SEED_BYTES = 4
_LONGEST_PAUSE = 2.0


class TrainingRuns:
    """Models that clients train command by command.

    Each run is a model with a log of commands, which a job applies in the order of their numbers, each once. A command
    is answered with the id of a future. The same command sent again has the same future.
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    @property
    def sessions(self) -> ClientSessions:
        """Clients at work, each with the runs and samplers that it has begun."""
        return ClientSessions(self._runtime, self._principal)

    @property
    def weights(self) -> SavedWeights:
        """The weights that runs have saved, under paths that never change."""
        return SavedWeights(self._runtime, self._principal)

    @property
    def samplers(self) -> Samplers:
        """The sources that clients sample from."""
        return Samplers(self._runtime, self._principal)

    # ---- runs

    def trainable(self, base_model: str) -> bool:
        """Return whether this base model can be trained command by command."""
        return step_trainer(self._runtime, base_model) is not None

    def create(
        self,
        session_id: str,
        number: int,
        *,
        base_model: str,
        adapter: Mapping[str, Any],
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a run on a base model, and return the future of its first command. Raises `NotFound`, `InvalidInput`.

        `adapter` are members of `AdapterConfig`; a seed is drawn if it has none.
        """
        request = [base_model, dict(adapter), dict(metadata or {})]
        if not self.trainable(base_model):
            raise InvalidInput.at("body", "base_model", msg=f"is {base_model!r}, which cannot be trained here")
        seed = adapter.get("seed")
        drawn = int.from_bytes(self._runtime.randomness(SEED_BYTES), "big") if seed is None else seed
        chosen = structure_exactly(AdapterConfig, {**adapter, "seed": drawn}, "body", "lora_config")
        command = self._command("", 0, CommandKind.CREATE, {}, digest([CommandKind.CREATE, *request]))
        return self._begin(session_id, number, base_model, attrs.asdict(chosen), metadata, command)

    def create_from(
        self,
        session_id: str,
        number: int,
        path: str,
        *,
        optimizer: bool,
        base_model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> str:
        """Create a run from saved weights, with the optimizer's state or without. Raises as `create` does."""
        weights, source = weights_to_load(self._runtime, self._principal, path, optimizer)
        if base_model not in (None, source.base_model):
            msg = f"is {base_model!r}, and the weights are of {source.base_model!r}"
            raise InvalidInput.at("body", "base_model", msg=msg)
        arguments = load_arguments(self._principal, weights, optimizer)
        identity = digest([CommandKind.LOAD, arguments["path"], optimizer, dict(metadata or {})])
        command = self._command("", 0, CommandKind.LOAD, arguments, identity)
        return self._begin(session_id, number, source.base_model, source.adapter, metadata, command)

    def _begin(
        self,
        session_id: str,
        number: int,
        base_model: str,
        adapter: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        first: RunCommand,
    ) -> str:
        runtime, now = self._runtime, self._runtime.clock.now()
        run_id, model_id, job_id = f"{session_id}:{RUN}:{number}", runtime.ids(), runtime.ids()
        checkpoint_id, spec = runtime.ids(), billing_of(runtime, self._principal, base_model)

        def step(tx: Tx) -> Job | None:
            session = found_session(tx, self._principal, session_id)
            known = get_or_none(tx, TrainingRun, run_id)
            if known is not None:
                add_command(tx, known, attrs.evolve(first, run_id=run_id, entity=known.entity))
                return None
            if session.finished:
                raise InvalidInput.at("body", "session_id", msg="is of a session that has finished; begin another")
            place = (session.entity, session.project)
            model = Model(model_id, *place, f"run-{session_id}-{number}", base_model, now)
            create(tx, model, checkpoint_id, False)
            head = (job_id, COMMANDS_JOB, *place, model_id, now, {**spec, RUN_ID: run_id, "model_id": model_id})
            named = (run_id, session_id, *place, model_id, base_model, adapter, job_id, now)
            tx.add(TrainingRun(*named, metadata=metadata or {}))
            tx.add(attrs.evolve(first, run_id=run_id, entity=session.entity))
            return enqueue(tx, Job(*head, base_model=base_model), runtime.settings.max_queued_jobs)

        made = runtime.store.transact(step)
        if made is not None:
            announce(runtime, made)
        return f"{run_id}:0"

    def get(self, run_id: str) -> TrainingRun:
        """Return a run. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: found_run(snapshot, self._principal, run_id))

    def list(self, offset: int, limit: int, project: str | None = None) -> ListedSlice:
        """List runs, the newest first."""
        return listed_slice(
            self._runtime,
            self._principal,
            TrainingRun,
            offset,
            limit,
            lambda run: project is None or run.project == project,
        )

    def listing(self, *, entity: str | None = None) -> Listing[TrainingRun]:
        """List runs, the newest first: all that the caller may see, or those of an entity. Raises `Forbidden`."""
        index, *where = listed_index(listed_entity(self._principal, entity, None), None)

        def place(after: str, snapshot: Snapshot) -> Cursor:
            return cursor_at(TrainingRun, index, found_run(snapshot, self._principal, after))

        def keep(run: TrainingRun) -> bool:
            return self._principal.scope.covers(run.entity, run.project)

        return index_listing(self._runtime, TrainingRun, index, *where, place=place, order="desc", keep=keep)

    def of_job(self, job_id: str) -> TrainingRun:
        """Return the run of a job, which applies its commands. Raises `NotFound`."""

        def query(snapshot: Snapshot) -> TrainingRun:
            job = get_or_none(snapshot, Job, job_id)
            return found_run(snapshot, self._principal, "" if job is None else str(job.spec.get(RUN_ID)))

        return self._runtime.store.read(query)

    def metrics(self, run: TrainingRun, most: int | None = None) -> MetricRows:
        """Return the metrics of a run's optimizer steps; at most about `most` rows, evenly spaced."""
        return metric_rows(self._runtime, run.job_id, most)

    def last_request(self, run: TrainingRun) -> datetime:
        """Return when the last command of a run came."""
        return next((one.created_at for one in self.last_commands(run, 1)), run.created_at)

    def last_commands(self, run: TrainingRun, most: int) -> Sequence[RunCommand]:
        """Return at most so many commands of a run, the last one first."""
        return self._runtime.store.read(lambda snapshot: last_commands(snapshot, run.id, most))

    def tokenizer_of(self, base_model: str) -> str | None:
        """Return a folder on this machine that has the tokenizer of a base model: its own, or that of tabular models;
        None for another base model."""
        folder = next(filter(None, (engine.folder_of(base_model) for engine in self._runtime.engines)), None)
        if folder is not None or base_model not in {entry.id for entry in self._runtime.backend.entries()}:
            return folder
        reads = getattr(backend_of(self._runtime.backend, base_model), "token_bytes", None)
        tabular = isinstance(getattr(reads, "__self__", None), TabularBackend)  # a deferred one has its methods
        return next(iter(tabular_tokenizer.__path__)) if tabular else None

    # ---- commands

    def command(
        self, run_id: str, number: int, kind: CommandKind, arguments: Mapping[str, Any], body: bytes | None = None
    ) -> str:
        """Add a command to the log of a run, and return the id of its future. `number` counts from 1.

        Raises `NotFound`, `InvalidInput`, `RateLimited`.
        """
        runtime = self._runtime
        if kind is CommandKind.OPTIM_STEP:
            arguments = attrs.asdict(structure_exactly(AdamParams, dict(arguments), "body", "adam_params"))
        identity = digest([kind, dict(arguments), "" if body is None else hashlib.sha256(body).hexdigest()])
        command = self._command(run_id, number, kind, arguments, identity)
        loose: list[str] = []
        if body is not None:
            runtime.store.read(lambda snapshot: found_run(snapshot, self._principal, run_id))
            command = attrs.evolve(command, body=keep_bytes(runtime, body, loose))
        gone: list[str] = []

        def step(tx: Tx) -> None:
            gone.clear()
            run = found_run(tx, self._principal, run_id)
            body = EMPTY if run.ended else command.body
            if not add_command(tx, run, attrs.evolve(command, entity=run.entity, body=body)) or run.ended:
                gone.extend(loose)
            else:
                gone.extend(remove_old(tx, run, command.created_at))
                gone.extend(remove_expired(tx, self._runtime, run.entity, command.created_at))

        try:
            runtime.store.transact(step)
        except (InvalidInput, NotFound, RateLimited):
            gone = loose
            raise
        finally:
            for name in gone:
                runtime.artifacts.remove(name)
        return command.id

    def save(
        self,
        run_id: str,
        number: int,
        kind: CommandKind,
        name: str | None,
        *,
        overwrite: bool = False,
        ttl_seconds: int | None = None,
        metadata: Mapping[str, str] | None = None,
        sampler: Mapping[str, Any] | None = None,
    ) -> str:
        """Save the weights of a run under a name; with `sampler` (`id`, `inflight`) for a sampling session, which is
        made. Raises as `command` does.
        """
        named = check_weights_name(f"{number:06d}" if name is None else name)
        kept = {"overwrite": overwrite, "ttl_seconds": ttl_seconds, "metadata": dict(metadata or {})}
        return self.command(run_id, number, kind, {"name": named, "sampler": sampler, **kept})

    def load(self, run_id: str, number: int, path: str, *, optimizer: bool) -> str:
        """Load saved weights into a run. Raises as `command` does."""
        run = self.get(run_id)
        weights, source = weights_to_load(self._runtime, self._principal, path, optimizer)
        if (source.base_model, source.adapter["rank"]) != (run.base_model, run.adapter["rank"]):
            msg = f"are weights of {source.base_model} and rank {source.adapter['rank']}; the run has others"
            raise InvalidInput.at("body", "path", msg=msg)
        return self.command(run_id, number, CommandKind.LOAD, load_arguments(self._principal, weights, optimizer))

    def unload(self, run_id: str) -> str:
        """End a run after the commands that it has, and return the id of the future of its end. Raises `NotFound`."""

        run = self.get(run_id)
        newest = self._runtime.store.read(lambda snapshot: last_command(snapshot, run.id))
        if newest is not None and newest.kind is CommandKind.UNLOAD:
            return newest.id
        return self.command(run_id, (run.applied if newest is None else newest.number) + 1, CommandKind.UNLOAD, {})

    def finish_session(self, session_id: str, why: str) -> None:
        """End a session, and its runs after the commands that they have. Raises `NotFound`."""
        self.sessions.finish(session_id, why)
        for run_id in self.sessions.get(session_id).runs:
            if not self.get(run_id).ended:
                self.unload(run_id)

    def _command(
        self, run_id: str, number: int, kind: CommandKind, arguments: Mapping[str, Any], identity: str
    ) -> RunCommand:
        return RunCommand(run_id, number, "", kind, self._runtime.clock.now(), identity, arguments)

    # ---- answers

    def future(self, future_id: str) -> Future:
        """Return the answer to a command or a request to sample, or the promise of one. Raises `NotFound`."""
        if is_command(future_id):
            return self._runtime.store.read(lambda snapshot: command_future(snapshot, self._principal, future_id))
        return self.samplers.future(future_id)

    def answer_bytes(self, future: Future) -> bytes:
        """Return an answer that is not JSON. Raises `ArtifactMissing`."""
        return kept_bytes(self._runtime, future.answer)

    def wait(self, future_id: str, seconds: float) -> Future:
        """Wait for an answer, for so many seconds at most, and return its future. Raises `NotFound`.

        If no worker is alive, the commands of its run are applied in this thread.
        """
        return run(self._waiting(future_id, seconds))

    def _waiting(self, future_id: str, seconds: float) -> Flow[Future]:
        clock, store = self._runtime.clock, self._runtime.store
        threads = self._runtime.store_threads(self._principal.entity)
        until = clock.monotonic() + seconds
        with closing(JobWaiter(clock, store, self._runtime.settings.poll)) as waiter:
            while True:
                found: Future = yield Call(partial(self.future, future_id), store.blocking, threads)
                left = until - clock.monotonic()
                if not found.pending or left <= 0:
                    return found
                yield Call(partial(waiter.watch, future_topic(future_id)), store.blocking, threads)
                pause = JobPause(min(left, _LONGEST_PAUSE), waiter)
                yield Await(pause.asleep, partial(self._work, future_id, pause))

    def _work(self, future_id: str, pause: JobPause) -> None:
        """Apply the commands of a run in this thread if no worker is alive; else sleep."""
        if not is_command(future_id) or alive(self._runtime):
            pause.sleep()
            return
        of, runner = self.get(run_of(future_id)), Runner(self._runtime)
        runner.reclaim_expired()
        claimed = runner.claim(of.model_id)
        if claimed is None:
            pause.sleep()
            return
        with runner.beating(), closing(runner.steps(claimed)) as steps:
            for _ in steps:
                if not self.future(future_id).pending:
                    return
