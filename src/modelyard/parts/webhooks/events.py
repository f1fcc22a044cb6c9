"""What an event is on the wire."""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from modelyard.domain.evaluation.run import EvaluationRun
from modelyard.domain.job import Job
from modelyard.domain.promotion import Promotion
from modelyard.domain.usage import Budget
from modelyard.formats.converter import unstructure
from modelyard.parts.variants.records import VariantMove
from modelyard.parts.webhooks.records import WebhookEvent


def _job(job: Job) -> Mapping[str, Any]:
    return {
        "id": job.id,
        "kind": job.kind,
        "project": job.project,
        "status": job.status,
        "error_message": job.error_message,
        "ended_at": job.ended_at,
    }


def _run(run: EvaluationRun) -> Mapping[str, Any]:
    return {
        "id": run.id,
        "project": run.project,
        "evaluation": run.evaluation,
        "model": run.model,
        "state": run.state,
        "reason": run.reason,
        "finished_at": run.finished_at,
    }


def _promotion(made: Promotion) -> Mapping[str, Any]:
    return {
        "id": made.id,
        "model_id": made.model_id,
        "project": made.project,
        "alias": made.alias,
        "change": made.change,
        "step": made.step,
        "from_step": made.from_step,
        "by": made.by,
    }


def _variant_move(made: VariantMove) -> Mapping[str, Any]:
    return {
        "id": made.id,
        "variant_id": made.variant_id,
        "project": made.project,
        "alias": made.alias,
        "change": made.change,
        "number": made.number,
        "before": made.before,
        "by": made.by,
    }


def _budget(budget: Budget) -> Mapping[str, Any]:
    return {
        "id": budget.id,
        "key_id": budget.key_id,
        "project": budget.project,
        "limit": f"{budget.limit:f}",
        "spent": f"{budget.spent:f}",
        "period": budget.period,
        "since": budget.since,
    }


_SHOWN: Mapping[type, tuple[WebhookEvent, Callable[[Any], Mapping[str, Any]]]] = {
    Job: (WebhookEvent.JOB_ENDED, _job),
    EvaluationRun: (WebhookEvent.RUN_ENDED, _run),
    Promotion: (WebhookEvent.ALIAS_MOVED, _promotion),
    VariantMove: (WebhookEvent.ALIAS_MOVED, _variant_move),
    Budget: (WebhookEvent.BUDGET_WARNED, _budget),
}


def type_of(event: object) -> WebhookEvent | None:
    """Return the type of an event; None for one that is not posted."""
    shown = _SHOWN.get(type(event))
    return None if shown is None else shown[0]


def body_of(event: Any, now: datetime) -> str:
    """Return the body of an event that is posted."""
    named, show = _SHOWN[type(event)]
    return body(named, now, {"entity": event.entity, **show(event)})


def body(type: str, now: datetime, data: Mapping[str, Any]) -> str:
    """Return the body of a message."""
    return json.dumps(unstructure({"type": type, "timestamp": now, "data": data}), separators=(",", ":"))
