"""The table of tools: each is a call of the Python API, with the class of its arguments (`asked`)."""

from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

import attrs

from modelyard.cli.jobs import job_named
from modelyard.cli.names import own_name, run_named
from modelyard.domain.job import JobStatus
from modelyard.domain.promotion import NotWorse
from modelyard.http.body_schemas import JsonSchema, Schemas
from modelyard.parts.docs.command import matching, unknown
from modelyard.parts.docs.pages import pages
from modelyard.parts.improve.improvement import Improve
from modelyard.parts.mcp.asked import (
    AskComparison,
    AskDocs,
    AskEvents,
    AskImprovement,
    AskJob,
    AskJobs,
    AskMetrics,
    AskModel,
    AskModels,
    AskRows,
    AskRun,
    AskUsage,
    DoCreate,
    DoEvaluate,
    DoImprove,
    DoPromote,
    DoRollBack,
    DoRollOut,
    DoSteer,
    DoTrain,
    Paged,
)
from modelyard.parts.rollouts.service import THUMBS, StagedRollouts
from modelyard.parts.steering.service import Steering
from modelyard.platform.listing import Listing
from modelyard.platform.platform import Platform
from modelyard.report.numbers import run_title

ACTS = ("evaluate", "train", "promote")
"""What may be allowed besides reading."""

DOCS_PART = 12_000
"""Characters of a page of the docs at most in one answer."""

Answer = Mapping[str, Any]


# ---- what is answered ------------------------------------------------------------------------------------------------


def _page(found: Listing[Any], asked: Any, shown: Callable[[Any], Answer]) -> Answer:
    page = found.page(asked.limit, asked.after)
    return {"items": [shown(one) for one in page.items], "next": page.items[-1].id if page.has_more else None}


def models(platform: Platform, asked: AskModels) -> Answer:
    """List trainable models, the newest first."""
    columns = ("id", "base_model", "last_step", "created_at")
    return _page(
        platform.models.list(project=asked.project, order="desc"),
        asked,
        lambda one: {"name": own_name(platform, one), **{name: getattr(one, name) for name in columns}},
    )


def checkpoints(platform: Platform, asked: AskModel) -> Answer:
    """List the checkpoints of a model, the newest first, with metrics and the aliases that point to them."""
    aliases = [*platform.models.aliases(asked.model)]
    return _page(
        platform.models.checkpoints(asked.model, order="desc"),
        asked,
        lambda one: {
            **{name: getattr(one, name) for name in ("id", "step", "pinned", "created_at", "metrics")},
            "aliases": [alias.name for alias in aliases if alias.step == one.step],
        },
    )


def jobs(platform: Platform, asked: AskJobs) -> Answer:
    """List jobs, the newest first: trainings, evaluations and others, with their progress and errors."""
    found = platform.jobs.list(project=asked.project, status=asked.status, kind=asked.kind, order="desc")
    return _page(found, asked, attrs.asdict)


def job(platform: Platform, asked: AskJob) -> Answer:
    """Show a job: how it stands, its settings, what it has made, and why it failed."""
    found = job_named(platform, asked.job)
    shown = platform.job_types[found.kind].shown
    return {"job": found if shown is None else shown(platform, found.id), "waiting_for": found.waiting_for}


def job_events(platform: Platform, asked: AskEvents) -> Answer:
    """List what has happened to a job, the newest first."""
    found = platform.jobs.events(job_named(platform, asked.job).id, order="desc")
    return _page(found, asked, attrs.asdict)


def job_metrics(platform: Platform, asked: AskMetrics) -> Answer:
    """Show the numbers that a training recorded, step by step."""
    found = platform.training.job(job_named(platform, asked.job).id).metrics(asked.points)
    return {"steps": [*found]}


def runs(platform: Platform, asked: Paged) -> Answer:
    """List evaluation runs, the newest first, with their scores."""
    columns = ("id", "project", "state", "reason", "started_at")
    return _page(
        platform.evaluations.runs.list_all(order="desc"),
        asked,
        lambda one: {
            "run": run_title(one),
            **{name: getattr(one, name) for name in columns},
            "score": (one.summary or {}).get("mean"),
        },
    )


def run(platform: Platform, asked: AskRun) -> Answer:
    """Show a run: how many rows are done, and its scores with their intervals."""
    found = run_named(platform, asked.run)
    status = platform.evaluations.runs.status(found.id)
    done = {"completed_rows": status.completed_rows, "total_rows": status.total_rows}
    report = str(platform.evaluations.report(found)) if found.summary else None
    return {"run": run_title(found), "id": found.id, "state": found.state, "reason": found.reason, **done} | (
        {"report": report, "summary": found.summary} if report else {}
    )


def run_rows(platform: Platform, asked: AskRows) -> Answer:
    """Show rows of a run: inputs, output, scores, errors, tokens and cost."""
    result = platform.evaluations.result(run_named(platform, asked.run).id)
    rows, after = result.errors if asked.errors else result.rows, _place(asked.after)
    found = [*islice((row for row in rows.since(after[0]) if (row.index, row.trial) > after), asked.limit + 1)]
    items = [{"cursor": f"{row.index}.{row.trial}", **attrs.asdict(row, recurse=False)} for row in found[: asked.limit]]
    return {"items": items, "next": items[-1]["cursor"] if len(found) > asked.limit else None}


def _place(after: str | None) -> tuple[int, int]:
    index, _, trial = (after or "-1.0").partition(".")
    try:
        return int(index), int(trial)
    except ValueError:
        raise ValueError("after: must be the `next` of the page before") from None


def compare_runs(platform: Platform, asked: AskComparison) -> Answer:
    """Compare runs row by row: which is shown to be better or worse, corrected for how many are compared."""
    baseline = None if asked.baseline is None else run_named(platform, asked.baseline)
    every = [run_named(platform, one) for one in asked.runs]
    return {"text": str(platform.evaluations.compare_all(every, baseline, lower_is_better=asked.lower_is_better))}


def improvement(platform: Platform, asked: AskImprovement) -> Answer:
    """Show the roads of an improvement: versions, scores, money, and what to take."""
    found = platform.part(Improve).get(asked.improvement)
    job = found.stored()
    roads = [one.plain() for one in found.roads()]
    told = {"text": str(found.result())} if job.status is JobStatus.SUCCEEDED else {"roads": roads}
    return {"improvement": found.id, "status": job.status, "error": job.error_message, **told}


def usage(platform: Platform, asked: AskUsage) -> Answer:
    """Sum tokens, requests and cost in USD exactly."""
    found = platform.usage.total(by=asked.by, since=asked.since, until=asked.until, month=asked.month)
    first = _place(f"{asked.after or 0}.0")[0]
    items = [{"cursor": str(at), **attrs.asdict(one)} for at, one in enumerate(found, 1)]
    shown = items[first : first + asked.limit]
    return {"items": shown, "next": shown[-1]["cursor"] if first + asked.limit < len(items) else None}


def catalogue(platform: Platform, asked: Paged) -> Answer:
    """List the models that can be asked, with lengths, features and prices in USD per token."""
    return _page(platform.catalogue.list(), asked, attrs.asdict)


def docs(platform: Platform, asked: AskDocs) -> Answer:
    """Search the docs of modelyard, or read a page of them."""
    known, first = pages(), _place(f"{asked.after or 0}.0")[0]
    found = matching(known, asked.topic)
    if not found:
        raise ValueError(unknown(known, asked.topic))
    if not asked.topic or len(found) > 1:
        return {"pages": [f"{page.name}: {page.sentence}" for page in found]}
    text = found[0].text
    parts = [text[at : at + 2000] for at in range(first, min(len(text), first + DOCS_PART), 2000)]
    more = first + DOCS_PART < len(text)
    return {"page": found[0].name, "text": parts, "next": str(first + DOCS_PART) if more else None}


def rollouts(platform: Platform, asked: Paged) -> Answer:
    """List rollouts, the newest first, with the scores of both arms and what these show."""
    own = platform.part(StagedRollouts)
    return _page(own.list(order="desc"), asked, lambda one: {"id": one.id, "text": str(own.standing(one.id))})


# ---- what is done ----------------------------------------------------------------------------------------------------


def evaluate(platform: Platform, asked: DoEvaluate) -> Answer:
    """Evaluate a model in the background. Look at it with `run`."""
    given = {"project": asked.project, "trials": asked.trials}
    options: Any = {**asked.options, **{name: value for name, value in given.items() if value is not None}}
    made = platform.evaluations.submit(asked.evaluation, asked.model, asked.rows, asked.scorers or None, **options)
    return {"run": made.id, "state": made.state}


def steer(platform: Platform, asked: DoSteer) -> Answer:
    """Pause or resume a run, give it other limits or more rows, or ask rows again; a worker does it."""
    steering, run = platform.part(Steering), run_named(platform, asked.run).id
    if asked.action == "requeue":
        made = steering.requeue(run, asked.indices)
    elif asked.action == "limits":
        made = steering.change_limits(run, asked.limits)
    elif asked.action == "rows":
        made = steering.add_rows(run, asked.rows or ())
    else:
        made = steering.pause(run) if asked.action == "pause" else steering.resume(run)
    return {"run": run, "action": made.action, "changed": dict(made.changed), "done": made.applied_at is not None}


def create_model(platform: Platform, asked: DoCreate) -> Answer:
    """Make a trainable model of a base model."""
    place, _, name = asked.model.rpartition("/")
    entity, _, project = place.rpartition("/")
    made = platform.models.create(name, project=project or None, entity=entity or None, base_model=asked.base_model)
    return {"model": own_name(platform, made), "id": made.id}


def train(platform: Platform, asked: DoTrain) -> Answer:
    """Train a model in the background. Look at it with `job` and `job_metrics`."""
    more: Any = {"idempotency_key": asked.idempotency_key}
    made = platform.training.submit(asked.method, asked.model, asked.data, dict(asked.options), **more)
    return {"job": made.id, "status": made.status}


def improve(platform: Platform, asked: DoImprove) -> Answer:
    """Try roads to better answers of a variant in the background, at equal budget. Look with `improvement`."""
    made = platform.part(Improve)(**attrs.asdict(asked, recurse=False))
    return {"improvement": made.id, "status": made.status}


def promote(platform: Platform, asked: DoPromote) -> Answer:
    """Point an alias at a checkpoint, if an evaluation does not show it to be worse."""
    made = platform.models.promote(asked.model, asked.step, asked.alias, require=NotWorse(asked.evaluation))
    return {"alias": asked.alias, "step": made.step, "before": made.from_step, "verdict": dict(made.verdict)}


def roll_out(platform: Platform, asked: DoRollOut) -> Answer:
    """Bring a step to users in stages; it goes back by itself if they say that it is worse. Look with `rollouts`."""
    more: Any = {"guard": NotWorse(THUMBS, margin=asked.margin), "also": asked.also, "shadow": asked.shadow}
    made = platform.part(StagedRollouts).start(asked.model, asked.step, asked.alias, **more)
    return {"rollout": made.id, "state": made.state}


def roll_back(platform: Platform, asked: DoRollBack) -> Answer:
    """Point an alias back to where it pointed before."""
    made = platform.models.rollback(asked.model, asked.alias)
    return {"alias": asked.alias, "step": made.step, "before": made.from_step}


# ---- the table -------------------------------------------------------------------------------------------------------


@attrs.frozen
class AgentTool:
    """A tool: the function that answers, and the class of what it is asked. `act` is what must be allowed for it."""

    answer: Callable[[Platform, Any], Answer]
    asks: type
    act: str = ""

    @property
    def name(self) -> str:
        return self.answer.__name__

    @property
    def help(self) -> str:
        return " ".join((self.answer.__doc__ or "").split())

    @property
    def schema(self) -> JsonSchema:
        """The JSON Schema of its arguments."""
        schemas = Schemas()
        schemas.of(self.asks)
        return {**schemas.components[self.asks.__name__], "additionalProperties": False}


TOOLS = (
    AgentTool(models, AskModels),
    AgentTool(checkpoints, AskModel),
    AgentTool(jobs, AskJobs),
    AgentTool(job, AskJob),
    AgentTool(job_events, AskEvents),
    AgentTool(job_metrics, AskMetrics),
    AgentTool(runs, Paged),
    AgentTool(run, AskRun),
    AgentTool(run_rows, AskRows),
    AgentTool(compare_runs, AskComparison),
    AgentTool(rollouts, Paged),
    AgentTool(improvement, AskImprovement),
    AgentTool(usage, AskUsage),
    AgentTool(catalogue, Paged),
    AgentTool(docs, AskDocs),
    AgentTool(evaluate, DoEvaluate, "evaluate"),
    AgentTool(steer, DoSteer, "evaluate"),
    AgentTool(create_model, DoCreate, "train"),
    AgentTool(train, DoTrain, "train"),
    AgentTool(improve, DoImprove, "train"),
    AgentTool(promote, DoPromote, "promote"),
    AgentTool(roll_out, DoRollOut, "promote"),
    AgentTool(roll_back, DoRollBack, "promote"),
)


def tools_for(allowed: Collection[str]) -> Mapping[str, AgentTool]:
    """Return the tools by name: those that read, and those of the acts that are allowed."""
    return {tool.name: tool for tool in TOOLS if not tool.act or tool.act in allowed}
