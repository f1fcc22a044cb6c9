"""The price of training: the tokens that a job trains on, at the price that its base model had when it was requested.
The tokens of a step are its metric `num_trainable_tokens`. They are booked with each saved state and at the end of the
job, in the same transaction, and each step once, however often it runs. What a budget cannot pay for is not booked: the
job ends."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Any

import attrs

from modelyard.domain.identity import Principal
from modelyard.domain.job import Job, JobEvent
from modelyard.domain.models import Model
from modelyard.domain.training import GRADIENT_STEP
from modelyard.domain.usage import EXACT, Budget, LedgerEntry
from modelyard.errors import BudgetExceeded, ModelNotFound
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.usage.booking import book, budget_ids, budgets_of, charge
from modelyard.protocols import Snapshot, Tx

BILLED_STEP = "billed_step"
OVER_BUDGET = "over_budget"
TOKENS = "num_trainable_tokens"
_NOTHING = Decimal(0)


def billing_of(runtime: Runtime, principal: Principal, base_model: str) -> Mapping[str, Any]:
    try:
        price = Catalogue(runtime, principal).get(base_model).pricing.training
    except ModelNotFound:
        return {}
    own = {"key_id": principal.key_id, **({"purse": principal.purse} if principal.purse else {})}
    return {"billing": {"price": f"{price:f}", **own}} if price else {}


def is_over_budget(job: Job) -> bool:
    return bool(job.result.get(OVER_BUDGET))


def cost_of(job: Job, tokens: int) -> Decimal:
    price = Decimal(job.spec["billing"]["price"]) if "billing" in job.spec else _NOTHING
    return EXACT.multiply(price, tokens)


def require_budget(snapshot: Snapshot, job: Job, cost: Decimal = _NOTHING) -> Sequence[Budget]:
    if "billing" not in job.spec:
        return ()
    key_id, purse = job.spec["billing"]["key_id"], job.spec["billing"].get("purse", "")
    budgets = budgets_of(snapshot, budget_ids(job.entity, key_id, job.project, purse))
    for budget in budgets:
        if cost > budget.remaining or budget.remaining <= 0:
            raise BudgetExceeded(_exceeded(budget, cost))
    return budgets


def _exceeded(budget: Budget, cost: Decimal) -> str:
    left = f"the budget of {budget.id} ({budget.limit:f} USD) has {max(budget.remaining, _NOTHING):f} USD left"
    if not cost:
        return f"{left}; raise it before you train"
    return (
        f"{left}, and the next steps have cost {cost:f} USD; raise it, then continue from the last saved state with "
        "platform.training.resume, or start a new job"
    )


def book_steps(tx: Tx, job: Job, entry_id: str, now: datetime, warnings: list[Budget]) -> Job:
    """Book the steps of a job that are not booked. Returns the job, replaced. Raises `BudgetExceeded`. `warnings`
    collects the budgets of which it is time to warn."""
    warnings.clear()  # a step may be made again
    if "billing" not in job.spec:
        return job
    steps = dict(_steps_after(tx, job, job.result.get(BILLED_STEP, 0)))
    tokens = sum(steps.values())
    if not tokens:
        return job
    book_tokens(tx, job, tokens, entry_id, now, warnings)
    billed = attrs.evolve(job, result={**job.result, BILLED_STEP: max(steps)})
    tx.replace(billed)
    return billed


def book_tokens(tx: Tx, job: Job, tokens: int, entry_id: str, now: datetime, warnings: list[Budget]) -> None:
    warnings.clear()  # a step may be made again
    if not tokens or "billing" not in job.spec:
        return
    budgets = require_budget(tx, job, cost_of(job, tokens))
    entry = _entry(tx, job, tokens, entry_id, now)
    if book(tx, entry):
        for budget in budgets:
            charge(tx, budget, _NOTHING, entry.cost, warnings)


def book_rest(tx: Tx, job: Job) -> Iterable[Budget]:
    """Book what an ended job has not. Returns the budgets of which it is time to warn."""
    warnings: list[Budget] = []
    with suppress(BudgetExceeded):
        book_steps(tx, job, job.id, job.ended_at or job.created_at, warnings)
    return warnings


def _entry(tx: Tx, job: Job, tokens: int, entry_id: str, now: datetime) -> LedgerEntry:
    model = get_or_none(tx, Model, job.lane)
    return LedgerEntry(
        id=entry_id,
        entity=job.entity,
        project=job.project,
        key_id=job.spec["billing"]["key_id"],
        model=job.lane if model is None else f"{model.entity}/{model.project}/{model.name}",
        base_model=job.base_model,
        checkpoint_step=None,
        prompt_tokens=0,
        cached_tokens=0,
        completion_tokens=0,
        images=0,
        estimated=False,
        cost=cost_of(job, tokens),
        created_at=now,
        trained_tokens=tokens,
    )


def _steps_after(snapshot: Snapshot, job: Job, step: int) -> Iterator[tuple[int, int]]:
    last = snapshot.find(JobEvent, "identity", job.id, GRADIENT_STEP, step) if step else None
    after = None if last is None else (last.seq,)
    for event in iter_index(snapshot, JobEvent, "by_job", job.id, after=after):
        if event.type == GRADIENT_STEP and event.step > step:
            yield event.step, tokens_of(event.data)


def tokens_of(metrics: Mapping[str, Any]) -> int:
    return int(metrics.get(TOKENS, 0))
