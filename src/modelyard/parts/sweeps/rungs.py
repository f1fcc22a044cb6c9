"""The rungs of a sweep that stops its worst trials early: when all jobs of a rung have ended, the best go on, in the
transaction in which the last of them ends. So a sweep needs no process that looks after it."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from modelyard.domain.job import START, Job, JobStatus
from modelyard.domain.models import Model
from modelyard.lazy import hashlib
from modelyard.parts.sweeps.plan import best_of
from modelyard.parts.sweeps.records import RUNG, SWEEP_ID, TRIAL, Sweep
from modelyard.platform.jobs.queue import enqueue
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

SCORE, ERROR = "full_valid_loss", "full_valid_loss_error"
"""The metrics of a checkpoint by which trials are compared: the loss on the held-out rows, and its standard error."""


def jobs_of(snapshot: Snapshot, sweep: Sweep, trial: Mapping[str, Any]) -> list[Job]:
    """Return the jobs of a trial, in the order in which they were requested."""
    lane = iter_index(snapshot, Job, "of_lane", trial["model_id"])
    return [job for job in lane if job.spec.get(SWEEP_ID) == sweep.id]


def score_of(jobs: Sequence[Job], metric: str = SCORE) -> float | None:
    """Return what the last job that has succeeded has measured."""
    done = [job for job in jobs if job.status is JobStatus.SUCCEEDED]
    return done[-1].result.get("metrics", {}).get(metric) if done else None


def seed_of(seed: int, trial: int, rung: int) -> int:
    """Return the seed of a job: the same sweep trains the same."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{trial}/{rung}".encode()).digest()[:6], "big")


def advance(runtime: Runtime, tx: Tx, ended: Job) -> None:
    """Queue the jobs of the next rung if the job that has ended was the last of its own."""
    sweep = get_or_none(tx, Sweep, ended.spec[SWEEP_ID])
    if sweep is None or sweep.state["cancelled"] or ended.spec[RUNG] != sweep.state["rung"]:
        return
    rung, going = sweep.state["rung"], sweep.state["going"]
    if rung + 1 == len(sweep.rungs):
        return
    jobs = {trial["number"]: jobs_of(tx, sweep, trial) for trial in sweep.plan["trials"] if trial["number"] in going}
    if any(not job.ended for of_trial in jobs.values() for job in of_trial):
        return
    reached = {number: found for number, found in jobs.items() if found and _succeeded(found[-1], rung)}
    scores = {number: _rank(score_of(found)) for number, found in reached.items()}
    best = best_of(scores, len(going), sweep.plan["halving"])
    for number in best:
        _go_on(runtime, tx, sweep, reached[number][-1], rung + 1)
    tx.replace(attrs.evolve(sweep, state={**sweep.state, "rung": rung + 1, "going": best}))


def _succeeded(job: Job, rung: int) -> bool:
    return job.status is JobStatus.SUCCEEDED and job.spec[RUNG] == rung


def _rank(score: float | None) -> float:
    return float("inf") if score is None else score


def _go_on(runtime: Runtime, tx: Tx, sweep: Sweep, last: Job, rung: int) -> None:
    if get_or_none(tx, Model, last.lane) is None:  # it was deleted
        return
    config = {**last.spec["config"], "epochs": sweep.rungs[rung]}
    seed = seed_of(sweep.plan["seed"], last.spec[TRIAL], rung)
    kept = {name: value for name, value in last.spec.items() if name != START}
    spec = {**kept, "config": config, "seed": seed, RUNG: rung}
    place = (last.kind, last.entity, last.project, last.lane, runtime.clock.now(), spec)
    job = Job(runtime.ids(), *place, base_model=last.base_model, rank=last.rank)
    enqueue(tx, attrs.evolve(job, accelerators=last.accelerators, memory=last.memory), sys.maxsize)
