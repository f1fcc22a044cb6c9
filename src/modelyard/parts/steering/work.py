"""What a worker does when its run is steered: it finishes the rows under way, and another job of the lane goes on as it
was asked. One transaction ends the job, queues the next, keeps the answers that are asked for again, and says in the
audit that it is done; so a kill at any commit leaves the run as it was before or after."""

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.run import EvaluationRun, Prediction, RunState, Score
from modelyard.domain.evaluation.running_totals import VALUE, RunningTotals
from modelyard.domain.job import Job, JobProgress, JobStatus, NewEvent
from modelyard.errors import Conflict, StoreError
from modelyard.formats.jsonl import dump_row, in_chunks
from modelyard.lazy import log
from modelyard.parts.steering.records import EarlierAnswer, SteeringAction, SteeringEntry
from modelyard.platform.evaluations.job import UNSURE, _Attempt
from modelyard.platform.evaluations.row_evaluation import RunLimits
from modelyard.platform.evaluations.scorers import NO_CALLABLES, LocalCallables
from modelyard.platform.evaluations.shards import PROGRESS, SHARD_ENDED, RemainingRows, RowKey, last_progress, shard_of
from modelyard.platform.evaluations.stored_rows import JobRows, remaining_rows
from modelyard.platform.evaluations.stored_run import StoredRun, scores_of
from modelyard.platform.jobs.claims import ClaimedJob, record, require_claim
from modelyard.platform.jobs.job_type import nothing
from modelyard.platform.jobs.queue import CONTINUED_BY, announce, cancel, end, enqueue, request_pause
from modelyard.platform.paging import get_or_none, iter_index, iter_index_live
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

_OF_ROWS = (SteeringAction.REQUEUE, SteeringAction.ROWS)


class _Asked(Exception):
    """Rows were asked for in the moment in which a run ends."""


class _Steered(_Attempt):
    """An attempt at a run that ends only if no more rows were asked for."""

    def _end(self, event_id: str, summary: Mapping[str, Any] | None, wall: datetime, tx: Tx) -> Job | None:
        found = [] if self.over_budget else waiting(tx, self.claimed.job)
        if any(one.action in _OF_ROWS for one in found):
            raise _Asked
        ended = super()._end(event_id, summary, wall, tx)
        if ended is not None and ended.status is JobStatus.SUCCEEDED:
            for one in found:  # it came too late
                tx.replace(one.done_by(ended.lane, wall))
        return ended


def evaluate(claimed: ClaimedJob, callables: LocalCallables = NO_CALLABLES) -> Generator[None, None, None]:
    """Do the work of an EVALUATE job as the core does it, and look now and then whether something was asked of it."""
    runtime = claimed.runtime
    if found := _waiting(runtime, claimed.job):
        yield
        _go_on(claimed, found, drained=False)
        return
    attempt, looked_at, asked = _Steered(claimed, callables), runtime.clock.monotonic(), False
    attempt.begin()
    with attempt.scheduler() as scheduler:
        batches = scheduler.batches()
        try:
            yield
            for batch in batches:
                attempt.commit(batch, scheduler)
                now = runtime.clock.monotonic()
                if attempt.over_budget:
                    scheduler.stop()
                elif not asked and now - looked_at >= runtime.settings.poll:
                    looked_at, asked = now, bool(_waiting(runtime, claimed.job))
                    if asked:
                        scheduler.stop()
                yield
        except GeneratorExit:
            if claimed.finishes_rows:
                attempt.leave(scheduler, batches)
            raise
    try:
        if not asked or attempt.over_budget:
            attempt.end()
            return
    except _Asked:
        pass
    _go_on(claimed, _waiting(runtime, claimed.job), drained=True)


def waiting(snapshot: Snapshot, job: Job) -> list[SteeringEntry]:
    """Return what was asked of a run and is not done by the job of this lane, the oldest first."""
    found = iter_index(snapshot, SteeringEntry, "waiting", job.subject, True)
    return sorted((one for one in found if job.lane in one.left), key=lambda one: one.id)


def _waiting(runtime: Runtime, job: Job) -> list[SteeringEntry]:
    return runtime.store.read(lambda snapshot: waiting(snapshot, job))


# ---- another job goes on


@attrs.define
class _Next:
    """What the next job is made of: the limits and the rows that were asked for, and the totals without `again`."""

    spec: dict[str, Any]
    totals: RunningTotals
    left: RemainingRows = attrs.field(factory=RemainingRows)
    again: dict[RowKey, str] = attrs.field(factory=dict)
    paused_by: str = ""


def _go_on(claimed: ClaimedJob, entries: Sequence[SteeringEntry], drained: bool) -> None:
    """End a job of which something was asked, and queue the one that goes on."""
    runtime, job = claimed.runtime, claimed.job
    nothing_open = drained or (job.attempts == 1 and ("resumed" not in job.spec or bool(job.spec.get("drained"))))
    made = _next(runtime, job, entries)
    _write_rows(runtime, job, entries, made)
    new_file = made.spec.get("artifact")
    claimed.loose += [new_file] if new_file and new_file != job.spec.get("artifact") else []
    made.spec |= {"resumed": True, "drained": nothing_open}
    result = {UNSURE: job.result[UNSURE]} if UNSURE in job.result and not nothing_open else {}
    fresh = Job(runtime.ids(), job.kind, job.entity, job.project, job.lane, runtime.clock.now(), made.spec)
    needs = {name: getattr(job, name) for name in ("base_model", "accelerators", "memory", "rank")}
    fresh = attrs.evolve(fresh, result=result, **needs)
    ids = [runtime.ids() for _ in range(len(made.again) + 2)]
    step = partial(_succeed, runtime, claimed, entries, made, fresh, ids, runtime.clock.now())
    claimed.job = announce(runtime, runtime.store.transact(step), logged=False)
    if CONTINUED_BY in claimed.job.result:
        log.info("job %s was steered, and job %s goes on with its run", job.id, fresh.id)
        announce(runtime, fresh)
    for name in {entry.added for entry in entries if entry.added}:
        _remove(runtime, name)


def _remove(runtime: Runtime, name: str) -> None:
    with suppress(StoreError):  # a sweep removes what no record names
        runtime.artifacts.remove(name)


def _next(runtime: Runtime, job: Job, entries: Sequence[SteeringEntry]) -> _Next:
    made = _Next(dict(job.spec), RunningTotals({one["name"]: one["ref"] for one in job.spec["scorers"]}))
    made.left = runtime.store.read(partial(_left, runtime, job, made.totals))
    for entry in entries:
        if entry.action is SteeringAction.LIMITS:
            limits = {name: to for name, (_, to) in entry.changed.items()}
            made.spec |= {"error_budget": limits.pop("error_budget")} if "error_budget" in limits else {}
            made.spec["limits"] = {**made.spec["limits"], **limits}
        made.paused_by = entry.by if entry.action is SteeringAction.PAUSE else made.paused_by
    if any(entry.action is SteeringAction.REQUEUE for entry in entries):
        _choose(runtime, job, entries, made)
    return made


def _left(runtime: Runtime, job: Job, totals: RunningTotals, snapshot: Snapshot) -> RemainingRows:
    """Find what is left with the limits that held, since other limits let other numbers of rows be under way."""
    progress, width = last_progress(snapshot, job.lane), RunLimits(**job.spec["limits"]).uncommitted
    totals.restore(progress)
    keys = partial(JobRows(runtime, job).keys, snapshot)
    return remaining_rows(snapshot, job.subject, progress, keys, width, totals.add)


def _choose(runtime: Runtime, job: Job, entries: Sequence[SteeringEntry], made: _Next) -> None:
    """Choose the stored rows that are asked again, and add up the others."""
    shard, shards = shard_of(job)
    made.totals = RunningTotals({one["name"]: one["ref"] for one in job.spec["scorers"]})  # without these rows
    for prediction, scores in StoredRun(runtime, job.subject).full():
        if prediction.index is None or prediction.index % shards != shard:
            continue
        by = next((one.id for one in entries if _asks(one, prediction, scores)), None)
        if by is None:
            made.totals.add(prediction, list(scores))
        else:
            made.again[prediction.index, prediction.trial] = by
    if "forgiven" in made.spec:
        made.spec["forgiven"] = min(made.spec["forgiven"], made.totals.failed)


def _asks(entry: SteeringEntry, prediction: Prediction, scores: Sequence[Score]) -> bool:
    if entry.action is not SteeringAction.REQUEUE:
        return False
    if entry.rows.get("failed"):
        return prediction.error is not None or any(VALUE not in score.value for score in scores)
    return prediction.index in entry.rows["indices"]


# ---- the rows of the next job


def _write_rows(runtime: Runtime, job: Job, entries: Sequence[SteeringEntry], made: _Next) -> None:
    """Give the next job a file of its own, since the file of this one goes with it; with the rows that are added."""
    added = [entry for entry in entries if entry.added]
    own, shared = job.spec.get("artifact"), shard_of(job)[1] > 1
    if not added and ((own and shared) or (not own and "dataset" in job.spec)):
        return
    made.spec["artifact"] = runtime.artifacts.put(in_chunks(_lines(runtime, job, added))).name
    trials = job.spec.get("trials", 1)
    made.spec["total"] += trials * sum(to - before for one in added for before, to in [one.changed["rows"]])


def _lines(runtime: Runtime, job: Job, added: Sequence[SteeringEntry]) -> Iterator[bytes]:
    named = job.spec.get("artifact") or job.spec.get("dataset")
    if named is not None:
        yield from _file(runtime, named)
    else:
        yield from stored_rows(runtime, job.subject)
    for entry in added:
        yield from _file(runtime, entry.added)


def _file(runtime: Runtime, name: str) -> Iterator[bytes]:
    with runtime.artifacts.open(name) as file:
        yield from file


def stored_rows(runtime: Runtime, run_id: str) -> Iterator[bytes]:
    """Yield the lines of the rows of a run that has completed: its file is gone, and its predictions have them all."""
    expected = 0
    for prediction in iter_index_live(runtime, Prediction, "by_index", run_id):
        if prediction.trial:
            continue
        if prediction.index != expected:
            raise Conflict(f"row {expected} of evaluation run {run_id} is gone, so it cannot go on")
        yield dump_row(dict(prediction.inputs), expected)
        expected += 1


# ---- in one transaction


def _succeed(
    runtime: Runtime,
    claimed: ClaimedJob,
    entries: Sequence[SteeringEntry],
    made: _Next,
    fresh: Job,
    ids: Sequence[str],
    wall: datetime,
    tx: Tx,
) -> Job:
    job, progress = require_claim(tx, claimed.claim), tx.get(JobProgress, claimed.claim.job_id)
    now, types = progress.time(wall), runtime.job_types
    if progress.cancelled_by or get_or_none(tx, EvaluationRun, job.subject) is None:
        return cancel(tx, types, job, ids[0], progress.cancelled_by or "deletion", now)
    for (place, by), new_id in zip(made.again.items(), ids[2:], strict=True):
        _keep_earlier(tx, job, place, by, new_id)
    for entry in entries:
        tx.replace(tx.get(SteeringEntry, entry.id).done_by(job.lane, now))
    queued = enqueue(tx, fresh, sys.maxsize)
    total, rows = made.spec["total"], sorted({*made.left.open, *made.again})
    data = {**made.totals.data, **_shard(job), "total": total, "begun": made.left.begun, "open": rows}
    seed = NewEvent(ids[1], PROGRESS, data, made.totals.rows)
    record(tx, tx.get(JobProgress, queued.id), [seed], now, total, held=False)
    untold = {job.kind: attrs.evolve(types[job.kind], on_end=nothing)}  # the run has not ended
    replaced = attrs.evolve(job, result={**job.result, CONTINUED_BY: queued.id})
    ended = end(tx, untold, replaced, JobStatus.SUCCEEDED, NewEvent(ids[0], SHARD_ENDED, _shard(job)), now)
    if made.paused_by:
        request_pause(tx, queued.id, made.paused_by)
    return ended


def _shard(job: Job) -> Mapping[str, Any]:
    return {"shard": list(shard_of(job))} if "shard" in job.spec else {}


def _keep_earlier(tx: Tx, job: Job, place: RowKey, by: str, new_id: str) -> None:
    prediction = tx.find(Prediction, "place", job.subject, *place)
    if prediction is None:
        return
    scores = scores_of(tx, prediction)
    answer = {
        "prediction_id": prediction.id,
        "output": prediction.output.get(VALUE),
        "error": prediction.error,
        "started_at": prediction.started_at.isoformat(),
        "latency": prediction.latency,
        "prompt_tokens": prediction.prompt_tokens,
        "completion_tokens": prediction.completion_tokens,
        "cost": None if prediction.cost is None else f"{prediction.cost:f}",
        "attempts": prediction.attempts,
        "scores": [{"scorer": one.scorer, "value": one.value.get(VALUE), "error": one.error} for one in scores],
    }
    tx.add(EarlierAnswer(new_id, job.entity, job.project, job.subject, by, *place, answer))
    for score in scores:
        tx.remove(Score, score.id)
    tx.remove(Prediction, prediction.id)


# ---- after its end


def reopen(
    runtime: Runtime, tx: Tx, run: EvaluationRun, jobs: Sequence[Job], now: datetime, file: str | None = None
) -> list[Job]:
    """Let a run go on that has completed or failed, with a new job for each lane. Its summary goes until it has ended
    again. `file` has the rows of one that has completed: its own went with it."""
    tx.replace(attrs.evolve(run, state=RunState.RUNNING, finished_at=None, summary=None, reason=None))
    gone = run.state is RunState.COMPLETED
    queued = [enqueue(tx, _again(runtime, job, now, gone, file), runtime.settings.max_queued_jobs) for job in jobs]
    for job in queued:  # which stands where the last one of its lane ended
        if data := last_progress(tx, job.lane):
            seed = NewEvent(runtime.ids(), PROGRESS, data, data["done"])
            record(tx, tx.get(JobProgress, job.id), [seed], now, job.spec["total"], held=False)
    return queued


def _again(runtime: Runtime, job: Job, now: datetime, gone: bool, file: str | None) -> Job:
    spec = {**job.spec, **job.result, "resumed": True}
    spec["drained"] = job.status is JobStatus.SUCCEEDED or "forgiven" in job.result
    if gone:
        spec.pop("artifact", None)
        spec |= {"artifact": file} if file else {}
    new = Job(runtime.ids(), job.kind, job.entity, job.project, job.lane, now, spec)
    needs = {name: getattr(job, name) for name in ("base_model", "accelerators", "memory", "rank")}
    return attrs.evolve(new, **needs)
