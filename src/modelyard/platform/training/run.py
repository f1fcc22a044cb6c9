"""One training job from its claim to its checkpoint: the trainer is pulled, and each item stored before the next. A job
begins at the model's highest checkpoint and keeps that parent however often it is resumed."""

import math
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from numbers import Integral, Real
from typing import Any

import attrs

from modelyard.domain.canonical import digest
from modelyard.domain.job import HELD_OUT, START, Claim, Gain, Job, JobProgress, JobStatus
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.training import GRADIENT_STEP, TRAINING_STARTED, Dataset
from modelyard.domain.training_config import BatchedConfig
from modelyard.domain.usage import Budget
from modelyard.errors import BudgetExceeded, RecordNotFound, TrainingError
from modelyard.platform.artifacts import remove_all, remove_loose
from modelyard.platform.checkpoints.retention import enforce
from modelyard.platform.jobs.claims import ClaimedJob, require_claim
from modelyard.platform.jobs.queue import announce, cancel, fail, save_resume, succeed
from modelyard.platform.owned import artifacts_of
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import OVER_BUDGET, book_steps, cost_of, require_budget, tokens_of
from modelyard.platform.training.job_files import Files, TrainingRows, intact, opener
from modelyard.platform.training.methods import METHODS
from modelyard.platform.training.trainer_border import close, next_of, trainer_border
from modelyard.platform.training.trajectories import nothing_trained, to_keep
from modelyard.platform.usage.booking import warn_of
from modelyard.protocols import SavedState, Started, Step, TrainContext, Trained, Trainer, TrainItem, Tx


def train(claimed: ClaimedJob) -> Generator[None, None, None]:
    kept = to_keep(claimed.runtime, claimed.job)
    start = claimed.runtime.store.transact(lambda tx: _begin(tx, claimed.claim, kept))
    claimed.job = start.job
    run = _Run(claimed, start)
    items = run.items()
    with remove_loose(claimed.runtime.artifacts, claimed.loose):
        try:
            while not run.ended:
                run.store(next_of(items))
                yield
        finally:
            close(items)


# ---- where it begins ---------------------------------------------------------------------------------------------


@attrs.frozen
class _Start:
    """The start of a run: `parent` is None for the untouched base; `reference` is the checkpoint of a KL penalty;
    `artifact` and `held_out` are its data."""

    job: Job
    model: Model
    parent: Checkpoint | None
    reference: Checkpoint | None
    artifact: str
    held_out: str | None


def _begin(tx: Tx, claim: Claim, kept: Mapping[str, Any]) -> _Start:
    job = require_claim(tx, claim)
    model = tx.get(Model, job.lane)
    if "parent_id" not in job.result:
        parent_id = job.spec.get(START) or _latest(tx, model)
        job = attrs.evolve(job, result={"parent_id": parent_id, "reference_id": _reference(tx, job), **kept})
        tx.replace(job)
    parent, reference = (_checkpoint(tx, job.result[name]) for name in ("parent_id", "reference_id"))
    held_out = _data_of(tx, job.spec[HELD_OUT]) if HELD_OUT in job.spec else None
    return _Start(job, model, parent, reference, _data_of(tx, job.spec), held_out)


def _latest(tx: Tx, model: Model) -> str | None:
    found = tx.page(Checkpoint, "by_model", model.id, limit=1, descending=True)
    return found[0].id if found else None


def _reference(tx: Tx, job: Job) -> str | None:
    step = job.spec["config"].get("kl_penalty_reference_step")
    if step is None:
        return None
    found = tx.find(Checkpoint, "step", job.lane, step)
    if found is None:
        raise TrainingError(f"the checkpoint of step {step}, which kl_penalty_reference_step names, was deleted")
    return found.id


def _checkpoint(tx: Tx, checkpoint_id: str | None) -> Checkpoint | None:
    try:
        return None if checkpoint_id is None else tx.get(Checkpoint, checkpoint_id)
    except RecordNotFound:
        raise TrainingError("the checkpoint that training starts from was deleted; start a new job") from None


def _data_of(tx: Tx, data: Mapping[str, Any]) -> str:
    if "artifact" in data:
        return str(data["artifact"])
    try:
        return tx.get(Dataset, data["dataset_id"]).artifact
    except RecordNotFound:
        raise TrainingError("the job's dataset was deleted; upload it again and start a new job") from None


# ---- the run -----------------------------------------------------------------------------------------------------


class _Run:
    def __init__(self, claimed: ClaimedJob, start: _Start) -> None:
        self.runtime, self.claimed, self.start = claimed.runtime, claimed, start
        self.ended = False
        self._started = False
        self._loose = claimed.loose
        self._unbooked = 0
        self._saved = start.job.resume
        resume = intact(self.runtime, self._saved)
        self._last_step = start.job.resume_step if resume else 0
        self._context = _context(self.runtime, start, resume, self._last_step)

    def items(self) -> Iterator[TrainItem]:
        artifacts, held_out = self.runtime.artifacts, self.start.held_out
        base_model, method = self.start.model.base_model, METHODS[self.start.job.kind]
        trainer = _trainer_for(self.runtime, base_model, method.kind)
        method = method.of((trainer,), base_model)
        config = method.config.resolve(self.start.job.spec["config"])
        epochs = config.epochs if isinstance(config, BatchedConfig) else 1
        rows = TrainingRows(artifacts, self.start.artifact, method.rows.read, epochs)
        validated = () if held_out is None else TrainingRows(artifacts, held_out, method.rows.read)
        context = attrs.evolve(self._context, held_out=validated)
        with trainer_border():
            return iter(trainer.train(method.kind, config, rows, context))

    def store(self, item: TrainItem) -> None:
        if not self._started and not isinstance(item, Started):
            raise TrainingError(f"the trainer yielded {type(item).__name__} before Started; correct the trainer")
        if isinstance(item, Started):
            self._store_started(item)
            return
        try:
            if isinstance(item, Step):
                self._store_step(item)
            elif isinstance(item, SavedState):
                self._store_state(item)
            else:
                self._store_checkpoint(item)
        except BudgetExceeded as error:
            self._end_over_budget(str(error))

    def _store_started(self, item: Started) -> None:
        self._started = True
        if self.claimed.progress.total is None:
            data = {"num_sequences": item.steps, **({"about": dict(item.about)} if item.about else {})}
            self.claimed.record(TRAINING_STARTED, data, total=item.steps)
        self.claimed.note(Gain.NOTHING)

    def _store_step(self, item: Step) -> None:
        if item.number != self._last_step + 1:
            raise TrainingError(f"the trainer made step {item.number} after {self._last_step}; correct the trainer")
        metrics = _finite(item.metrics, f"step {item.number}")
        self._require_budget(tokens_of(metrics))
        self.claimed.record(GRADIENT_STEP, metrics, step=item.number)
        self._last_step = item.number

    def _require_budget(self, tokens: int) -> None:
        self._unbooked += tokens
        if cost := cost_of(self.start.job, self._unbooked):
            self.runtime.store.read(lambda snapshot: require_budget(snapshot, self.start.job, cost))

    def _store_state(self, item: SavedState) -> None:
        if item.number != self._last_step:
            raise TrainingError(f"the trainer saved step {item.number} after {self._last_step}; correct the trainer")
        files, entry_id, now = self._put(item.files), self.runtime.ids(), self.runtime.clock.now()
        warnings: list[Budget] = []

        def step(tx: Tx) -> JobProgress:
            book_steps(tx, require_claim(tx, self.claimed.claim), entry_id, now, warnings)
            self.runtime.tell(tx, *warnings)
            return save_resume(tx, self.claimed.claim, item.number, files, now)

        self.claimed.write(step)
        self._loose[:] = [file["artifact"] for file in self._saved.values()]
        self._saved, self._unbooked = files, 0
        warn_of(self.runtime, warnings)
        remove_all(self.runtime.artifacts, self._loose)

    def _store_checkpoint(self, item: Trained) -> None:
        if not self._last_step and (why := nothing_trained(self.runtime, self.start.job)):
            raise TrainingError(why)
        metrics, files = _finite(item.metrics, "the result"), self._put(item.files)
        said = {"stop_reason": item.stop_reason} if item.stop_reason else {}
        added = self.runtime.trained_records(self.start.job, self._loose)
        checkpoint_id, event_id, entry_id = self.runtime.ids(), self.runtime.ids(), self.runtime.ids()
        now = self.runtime.clock.now()
        types, warnings = self.runtime.job_types, list[Budget]()

        def step(tx: Tx) -> tuple[Job, Sequence[Checkpoint]]:
            job, progress = require_claim(tx, self.claimed.claim), tx.get(JobProgress, self.claimed.claim.job_id)
            if progress.cancelled_by:
                return cancel(tx, types, job, event_id, progress.cancelled_by, now), ()
            job, model = book_steps(tx, job, entry_id, now, warnings), tx.get(Model, job.lane)
            self.runtime.tell(tx, *warnings)
            checkpoint = _new_checkpoint(checkpoint_id, model, job, files, metrics, progress.time(now))
            tx.add(checkpoint)
            tx.replace(attrs.evolve(model, last_step=checkpoint.step))
            result = {**job.result, **said, "checkpoint_id": checkpoint.id, "step": checkpoint.step, "metrics": metrics}
            for record in added:
                result |= record.add(tx, now)
            ended = succeed(tx, types, attrs.evolve(job, result=result), event_id, now, said)
            return ended, enforce(tx, self.runtime, model, now)

        self.claimed.job, gone = self.runtime.store.transact(step)
        self.ended = True
        if self.claimed.job.status is JobStatus.SUCCEEDED:
            self._loose[:] = artifacts_of(*gone)
        warn_of(self.runtime, warnings)
        announce(self.runtime, self.claimed.job)

    def _end_over_budget(self, message: str) -> None:
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job = require_claim(tx, self.claimed.claim)
            stopped = attrs.evolve(job, result={**job.result, OVER_BUDGET: True})
            return fail(tx, types, stopped, event_id, message, now)

        self.claimed.job = self.runtime.store.transact(step)
        self.ended = True
        announce(self.runtime, self.claimed.job)

    def _put(self, files: Mapping[str, Iterable[bytes]]) -> Files:
        kept = {}
        for name, chunks in files.items():
            with trainer_border():
                stored = self.runtime.artifacts.put(chunks)
            self._loose.append(stored.name)
            kept[name] = {"artifact": stored.name, "size": stored.size, "digest": stored.digest}
        return kept


def _new_checkpoint(
    checkpoint_id: str, model: Model, job: Job, files: Files, metrics: Mapping[str, float], time: datetime
) -> Checkpoint:
    return Checkpoint(
        checkpoint_id,
        model.id,
        model.entity,
        model.project,
        model.last_step + 1,
        time,
        digest({name: file["digest"] for name, file in files.items()}),
        metrics,
        files,
        parent_id=job.result["parent_id"],
        job_id=job.id,
    )


def _finite(metrics: Mapping[str, Any], where: str) -> Mapping[str, float]:
    """Return the metrics as plain numbers. Raises `TrainingError` for one that is not finite: training went astray."""
    plain: dict[str, float] = {}
    for name, value in metrics.items():
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            raise TrainingError(
                f"{where} has {name} = {value!r}, which is not a finite number: the training went astray; "
                "try a lower learning_rate, and look for extreme values in the data"
            )
        plain[name] = int(value) if isinstance(value, Integral) else float(value)
    return plain


# ---- what the trainer is given -----------------------------------------------------------------------------------


def _trainer_for(runtime: Runtime, base_model: str, method: str) -> Trainer:
    for trainer in runtime.trainers:
        if method in trainer.methods(base_model):
            return trainer
    raise TrainingError(
        f"no trainer of this worker trains {base_model!r} by {method}; start a worker with one that does"
    )


def _context(runtime: Runtime, start: _Start, resume: Files, resume_step: int) -> TrainContext:
    parent = start.parent.files if start.parent else {}
    reference = start.reference.files if start.reference else {}
    return TrainContext(
        base_model=start.model.base_model,
        seed=start.job.spec["seed"],
        parent_files=frozenset(parent),
        parent=opener(runtime.artifacts, parent),
        resume_step=resume_step,
        resume_files=frozenset(resume),
        resume=opener(runtime.artifacts, resume) if resume else None,
        reference_files=frozenset(reference),
        reference=opener(runtime.artifacts, reference) if reference else None,
    )
