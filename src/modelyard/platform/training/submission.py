"""The submission of training jobs: made from the request, checked in the transaction that adds them."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job
from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.training_config import TrainingConfig
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.platform.jobs.queue import asked_before, enqueue
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.billing import OVER_BUDGET, billing_of, is_over_budget, require_budget
from modelyard.platform.training.methods import JobRequest
from modelyard.protocols import Snapshot, Tx

SEED_BYTES = 6

CHILD = "child_id"
"""The member of a job's result that names the training job that it waits for."""


def parent_lane(model_id: str) -> str:
    """Return the lane of jobs that wait for training jobs of a model, and so cannot share its lane."""
    return f"{model_id}/loop"


def require_offered(runtime: Runtime, base_model: str, method: str) -> None:
    """Raise `InvalidInput` if trainers of this platform know the base model, but none of them the method."""
    offered = {name for trainer in runtime.trainers for name in trainer.methods(base_model)}
    if offered and method not in offered:
        by = ", ".join(sorted(offered))
        raise InvalidInput.at("model", msg=f"its base model {base_model!r} is trained here by {by}, not by {method}")


def new_job(
    runtime: Runtime, principal: Principal, request: JobRequest, data: Mapping[str, Any], fingerprint: str = ""
) -> Job:
    drawn = drawn_for(runtime, principal, request.model, request.config)
    spec = {"config": attrs.asdict(request.config), **drawn, **data}
    place = (request.model.entity, request.model.project, request.model.id)
    head = (runtime.ids(), request.method.kind, *place, runtime.clock.now(), spec, fingerprint)
    return Job(*head, request.idempotency_key, base_model=request.model.base_model, **request.needs)


def drawn_for(runtime: Runtime, principal: Principal, model: Model, config: TrainingConfig) -> Mapping[str, Any]:
    given = getattr(config, "training", attrs.asdict(config)).get("seed")
    seed = int.from_bytes(runtime.randomness(SEED_BYTES), "big") if given is None else given
    return {"seed": seed, **billing_of(runtime, principal, model.base_model)}


def add_job(tx: Tx, job: Job, max_queued: int) -> Job:
    """Put a job into the queue, unless it was `asked_before`: then that job is returned. Raises `NotFound` if its model
    is gone, `InvalidInput`, `BudgetExceeded`, `RateLimited`, `Conflict`."""
    known = asked_before(tx, job)
    if known is not None:
        return known
    if job.base_model and get_or_none(tx, Model, job.subject) is None:
        raise NotFound("Model", job.subject)
    config = job.spec["config"]
    step = config.get("training", config).get("kl_penalty_reference_step")
    if step is not None and tx.find(Checkpoint, "step", job.subject, step) is None:
        raise InvalidInput.at("kl_penalty_reference_step", msg=f"the model has no checkpoint of step {step}")
    require_budget(tx, job)
    return enqueue(tx, job, max_queued)


def going_child(snapshot: Snapshot, job: Job) -> list[Job]:
    child = get_or_none(snapshot, Job, job.result[CHILD]) if CHILD in job.result else None
    return [] if child is None or child.ended else [child]


def continue_job(tx: Tx, ended: Job, ids: Sequence[str], now: datetime, max_queued: int) -> Job:
    """Queue a job, under the first of `ids`, that continues one that a budget has ended, from its last saved state. The
    training job of a loop's round is continued with it, under the second. Raises as `add_job`."""
    if not is_over_budget(ended):
        raise Conflict("only a job that is paused, or that a budget has ended, can be resumed, once; start a new job")
    result = {name: value for name, value in ended.result.items() if name != OVER_BUDGET}
    tx.replace(attrs.evolve(ended, result=result, resume={}))
    child = get_or_none(tx, Job, result[CHILD]) if CHILD in result else None
    if child is not None and is_over_budget(child):
        result[CHILD] = continue_job(tx, child, ids[1:], now, max_queued).id
    kept = (ended.kind, ended.entity, ended.project, ended.lane, now, ended.spec)
    job = Job(ids[0], *kept, result=result, resume=ended.resume, resume_step=ended.resume_step)
    job = attrs.evolve(
        job, base_model=ended.base_model, accelerators=ended.accelerators, memory=ended.memory, rank=ended.rank
    )
    return add_job(tx, job, max_queued)
