"""The work of a loop: round after round it samples, judges, trains and validates, and stores each of these steps.
Training and validating are separate jobs, queued in the transaction that records them in the loop's `result`; so
whatever happens to the loop's process, each is made once. The loop runs them itself if no other worker takes them. A
group of answers is stored as soon as it is sampled, and what a teacher says of an answer as it is booked."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.identity import Attribution
from modelyard.domain.job import Job, JobKind, JobProgress, JobStatus, NewEvent
from modelyard.domain.models import Model
from modelyard.domain.training import TRAINING_ROUND, TRAINING_STARTED, TrajectoryGroup
from modelyard.errors import BudgetExceeded, TrainingError
from modelyard.formats.jsonl import read_rows
from modelyard.formats.training_data import GROUPS
from modelyard.parts.distillation.taught import Teacher
from modelyard.parts.loops.config import LoopConfig, method_of
from modelyard.parts.loops.pieces import GroupPieces, named_file, pieces_of, whole_groups
from modelyard.parts.loops.record import RUN, LoopRecord, Turns
from modelyard.parts.loops.sampling import RoundSampler, first_failure, round_metrics, tasks_of_round
from modelyard.platform.evaluations.input_rows import build_specs
from modelyard.platform.evaluations.scorers import NamedScorer, build_scorer
from modelyard.platform.jobs.claims import ClaimedJob, fenced, latest_job, requester_principal, require_claim
from modelyard.platform.jobs.queue import announce, cancel, enqueue, save_resume, succeed
from modelyard.platform.paging import get_or_none, iter_columns
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import is_over_budget
from modelyard.platform.training.data import own
from modelyard.platform.training.job_files import intact
from modelyard.platform.training.methods import METHODS, JobRequest
from modelyard.platform.training.submission import CHILD, new_job
from modelyard.protocols import Snapshot, Tx

MOST_TASKS = 32
AddJob = Callable[[Tx, Job, int], object]
SHOWN_OF_TRAINING = ("loss", "kl_div", "entropy", "grad_norm", "policy_loss")


class TrainingLoop:
    """One attempt at a loop. Its state is read from its job, in the transaction that continues it."""

    def __init__(self, claimed: ClaimedJob) -> None:
        self.claimed, self.runtime, self.spec = claimed, claimed.runtime, claimed.job.spec
        self.config = LoopConfig(**self.spec["config"])
        self.principal = requester_principal(self.runtime, claimed.job)
        self.namespace = (claimed.job.entity, claimed.job.project)
        self.model = self._model()
        self.scorer = NamedScorer.kept(self.spec["reward"])
        self.record = LoopRecord(claimed)
        job = claimed.job
        self.needs = {"accelerators": job.accelerators, "memory": job.memory, "rank": job.rank}

    def _model(self) -> Model:
        model = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, self.spec["model_id"]))
        if model is None:
            raise TrainingError("the model of the loop was deleted; create it again and start a new loop")
        return model

    @property
    def done(self) -> Mapping[str, Any]:
        return self.record.done

    @property
    def rounds(self) -> int:
        return int(self.done.get("rounds", 0))

    # ---- the turns

    def turns(self) -> Turns:
        if self.claimed.progress.total is None:
            if self.spec["held_out"] and "start" not in self.done:  # a loop that is continued has begun
                yield from self._validate()
            self._begin()
            yield
        while not self._finished:
            if CHILD not in self.done:
                yield from self._sample()
                self._queue_training()
                yield
            yield from self._wait()
            trained = self._trained()
            if self._validates(self.rounds + 1):
                yield from self._validate()
            self._end_round(trained)
            yield
        self._succeed()

    @property
    def _finished(self) -> bool:
        return self.rounds >= self.config.rounds or "stop_reason" in self.done

    def _validates(self, number: int) -> bool:
        due = number % self.config.evaluate_every == 0 or number == self.config.rounds
        return bool(self.spec["held_out"]) and due

    # ---- sampling

    def _sample(self) -> Turns:
        tasks, files = self._tasks(self.rounds), self._groups()
        sample = partial(self._sampler().group, self.rounds)
        threads = ThreadPoolExecutor(self.config.concurrency, "modelyard-loop")
        try:
            left = ((place, task) for place, task in enumerate(tasks) if str(place) not in files)
            waiting = {threads.submit(sample, place, task): place for place, task in left}
            for future in as_completed(waiting):
                self._keep(waiting.pop(future), future.result(), len(tasks))
                yield
        except BudgetExceeded:
            threads.shutdown(cancel_futures=True)
            for future, place in waiting.items():  # what else was paid for by then
                if not future.cancelled() and future.exception() is None:
                    self._keep(place, future.result(), len(tasks))
            raise
        finally:
            threads.shutdown(cancel_futures=True)

    def _tasks(self, round_: int) -> Sequence[Mapping[str, Any]]:
        count = self.spec["tasks"]
        wanted = min(self.config.tasks_per_round or MOST_TASKS, count)
        places = tasks_of_round(self.spec["seed"], count, wanted, round_)
        chosen = set(places)
        with self.runtime.artifacts.open(self.spec["artifact"], self.spec["digest"]) as file:
            found = {place: row for place, row in enumerate(read_rows(file)) if place in chosen}
        return [found[place] for place in places]

    def _held_out(self) -> Iterator[Mapping[str, Any]]:
        with self.runtime.artifacts.open(self.spec["artifact"], self.spec["digest"]) as file:
            for place, row in enumerate(read_rows(file)):
                if place >= self.spec["tasks"]:
                    yield row

    def _groups(self) -> dict[str, Any]:
        groups = whole_groups(self.record.files)
        return {place: file for place, file in groups.items() if intact(self.runtime, {place: file})}

    def _sampler(self) -> RoundSampler:
        rule = build_scorer(self.runtime, self.principal, self.namespace, self.spec["reward"], None, retries=2)
        name = f"{self.model.entity}/{self.model.project}/{self.model.name}"
        place = Attribution(*self.namespace)
        asked = self.config.teacher
        teacher = None if asked is None else Teacher(self.runtime, self.principal, place, asked)
        of = self.runtime, self.principal, place, name, rule, self.config, self.spec["seed"]
        return RoundSampler(*of, teacher, partial(GroupPieces, self.record))

    def _keep(self, place: int, group: TrajectoryGroup, count: int) -> None:
        """Keep a group that is whole, in the place of its pieces."""
        stored, now = self.record.put(iter([GROUPS.dump(group)])), self.runtime.clock.now()

        def step(tx: Tx) -> tuple[JobProgress, Mapping[str, Any], Mapping[str, Any]]:
            before = require_claim(tx, self.claimed.claim).resume
            pieces = pieces_of(before, place)
            files = {name: file for name, file in before.items() if name not in pieces}
            files[str(place)] = named_file(stored)
            number = self.rounds * count + len(whole_groups(files))
            return save_resume(tx, self.claimed.claim, number, files, now), files, pieces

        self.claimed.progress, files, pieces = self.runtime.store.transact(step)
        self.claimed.moved_at = self.runtime.clock.monotonic()
        self.claimed.job = attrs.evolve(self.claimed.job, resume=files)
        self.record.named(stored)
        self.record.removed(pieces)

    # ---- training

    def _queue_training(self) -> None:
        files = self._groups()
        groups = [group for place in sorted(files, key=int) for group in self._read(files[place])]
        if self._queue(groups, round_metrics(groups), enqueue):
            self.record.replaced(files)

    def _queue(self, groups: Sequence[TrajectoryGroup], sampled: Mapping[str, float], add: AddJob) -> bool:
        if not any(group.trajectories for group in groups):
            raise TrainingError(
                f"nothing was sampled in round {self.rounds + 1}: {first_failure(groups)}; "
                f"correct the tasks, the reward{', the teacher' if self.config.teacher else ''} or the model, "
                "then start a new loop"
            )
        kind, rows = method_of(self.config.teacher), list[Any](groups)
        if kind == JobKind.DISTILL:
            rows = [one for group in groups for one in group.trajectories]
        stored = self.record.put(map(METHODS[kind].rows.dump, rows))
        method = METHODS[kind].of(self.runtime.trainers, self.model.base_model)
        config = method.config.resolve(self.config.training).of_round(self.rounds, self.config.rounds)
        request = JobRequest(method, self.model, config, None, self.needs)
        data = {**own(stored), "rows": len(rows), "loop_id": self.claimed.job.id, "seed": self.spec["seed"]}
        job = new_job(self.runtime, self.principal, request, data)

        changes = {CHILD: job.id, "sampled": sampled}
        queued = self.record.advance(changes, lambda tx: add(tx, job, sys.maxsize), forget_files=True)
        if queued:
            self.record.named(stored)
            announce(self.runtime, job)
        return queued

    def _wait(self) -> Turns:
        yield from self.record.until_ended(self._child)

    def _read(self, file: Mapping[str, Any]) -> list[TrajectoryGroup]:
        with self.runtime.artifacts.open(file["artifact"], file["digest"]) as opened:
            return list(GROUPS.read(opened))

    def _child(self, snapshot: Snapshot) -> Job:
        return snapshot.get(Job, self.done[CHILD])

    def _trained(self) -> Job:
        job = self.runtime.store.read(self._child)
        if is_over_budget(job):
            raise BudgetExceeded(job.error_message or "a budget has ended the training job")
        if job.status is not JobStatus.SUCCEEDED:
            raise TrainingError(f"the training job {job.id} of round {self.rounds + 1} {_ended(job)}")
        return job

    # ---- validating

    def _validate(self) -> Turns:
        if RUN not in self.done:
            self._queue_validation()
            yield
        yield from self.record.until_ended(lambda snapshot: latest_job(snapshot, self.done[RUN]))

    def _queue_validation(self) -> None:
        step = self.runtime.store.read(lambda snapshot: snapshot.get(Model, self.model.id)).last_step
        name = f"{self.model.entity}/{self.model.project}/{self.model.name}:step{step}"
        options = {
            "entity": self.namespace[0],
            "project": self.namespace[1],
            "temperature": 0,
            "max_tokens": self.config.max_tokens,
            "concurrency": self.config.concurrency,
            "retries": 2,
        }
        asked = (self.config.evaluation, [name], self._held_out(), [self.scorer], options)
        with closing(build_specs(self.runtime, self.principal, *asked)) as specs:  # type: ignore[arg-type]
            spec = next(specs)

            def add(tx: Tx) -> None:
                tx.add(spec.run)
                enqueue(tx, spec.job, sys.maxsize)

            changes = {RUN: spec.run.id, "validated": step}
            if self.record.took(spec.store(partial(self.record.advancing, changes, add, False))):
                announce(self.runtime, spec.job)

    def _score(self) -> float:
        run = self.runtime.store.read(lambda snapshot: get_or_none(snapshot, EvaluationRun, self.done[RUN]))
        if run is None or run.state is not RunState.COMPLETED:
            why = "was deleted" if run is None else f"is {run.state}: {run.reason or 'no reason was given'}"
            raise TrainingError(f"the validation, evaluation run {self.done[RUN]}, {why}; start a new loop")
        if refused := _refused(self.runtime, run.id):
            raise BudgetExceeded(
                f"a budget has cut short the validation, evaluation run {run.id}: {refused}; once it is raised, "
                "continue with platform.training.resume"
            )
        mean = (run.summary or {}).get("mean")
        if mean is None:
            raise TrainingError(
                f"the validation, evaluation run {run.id}, has no score; look at its rows, then start a new loop"
            )
        return float(mean)

    # ---- what is recorded

    def _begin(self) -> None:
        data: dict[str, Any] = {"num_sequences": self.config.rounds}
        if RUN in self.done:
            data |= {"held_out": self._score(), "checkpoint": self.done["validated"]}
        event, now = NewEvent(self.runtime.ids(), TRAINING_STARTED, data), self.runtime.clock.now()
        changes = {**self._validated(data), RUN: None}
        if "held_out" in data:
            changes["start"] = data["held_out"]
        self.record.record(event, changes, now, self.config.rounds)

    def _end_round(self, trained: Job) -> None:
        metrics = trained.result.get("metrics", {})
        data = {
            **self.done["sampled"],
            **{name: metrics[name] for name in SHOWN_OF_TRAINING if name in metrics},
            "checkpoint": trained.result["step"],
        }
        if RUN in self.done:
            data["held_out"] = self._score()
        number, now = self.rounds + 1, self.runtime.clock.now()
        event = NewEvent(self.runtime.ids(), TRAINING_ROUND, data, number)
        left = {"rounds": number, CHILD: None, RUN: None, "sampled": None, "last": trained.result["step"]}
        self.record.record(event, {**self._validated(data), **left, "metrics": _numbers(data)}, now)

    def _validated(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        if "held_out" not in data:
            return {}
        score, best, stop = data["held_out"], self.done.get("best"), self.config.stop_when
        better = best is None or score > best["score"]
        waited = 0 if better else self.done.get("waited", 0) + 1
        top = {"score": score, "step": self.done["validated"]} if best is None or better else best
        reason = None
        if score >= stop.get("score", float("inf")):
            reason = f"score: {score:.4g} on the held-out tasks reached the target of {stop['score']:.4g}"
        elif waited >= stop.get("patience", sys.maxsize):
            reason = f"patience ({waited}): no later validation was above {top['score']:.4g}, of step {top['step']}"
        return {"best": top, "waited": waited, "stop_reason": reason}

    # ---- ending

    def _succeed(self) -> None:
        event_id, now, types = self.runtime.ids(), self.runtime.clock.now(), self.runtime.job_types

        def step(tx: Tx) -> Job:
            job, progress = require_claim(tx, self.claimed.claim), fenced(tx, self.claimed.claim)
            if progress.cancelled_by:
                return cancel(tx, types, job, event_id, progress.cancelled_by, now)
            best = job.result.get("best") or {"step": job.result.get("last")}
            metrics = {**job.result.get("metrics", {})}
            if "score" in best:
                metrics |= {"best_held_out": best["score"], "start_held_out": job.result.get("start", best["score"])}
            why = {"stop_reason": job.result.get("stop_reason", f"rounds: all {self.rounds} are done")}
            result = {**job.result, **why, "step": best["step"], "metrics": metrics}
            for record in added:
                result |= record.add(tx, now)
            return succeed(tx, types, attrs.evolve(job, result=result), event_id, now, why)

        added = self.runtime.trained_records(self.claimed.job, self.claimed.loose)
        ended = self.runtime.store.transact(step)
        if ended.status is JobStatus.SUCCEEDED:
            self.claimed.loose.clear()
        self.claimed.job = announce(self.runtime, ended)


def _refused(runtime: Runtime, run_id: str) -> str:
    """Return why a call of a run, of its model or of its scorer, was refused for a budget; "" if none was."""
    kind = f"{BudgetExceeded.code}: "
    for record in (Prediction, Score):
        for error, *_ in iter_columns(runtime, record, ("error",), "by_row", run_id):
            if error is not None and error.startswith(kind):
                return str(error.removeprefix(kind))
    return ""


def _ended(job: Job) -> str:
    return f"is {job.status}: {job.error_message or 'no reason was given'}; start a new loop"


def _numbers(data: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: float(value) for name, value in data.items()}
