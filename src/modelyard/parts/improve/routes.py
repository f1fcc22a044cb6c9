"""Prompt jobs and improvements over HTTP: they are started, listed, shown and cancelled."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, TypeVar

import attrs

from modelyard.domain.evaluation.comparison import Verdict
from modelyard.domain.job import Job, JobStatus
from modelyard.domain.record import Page
from modelyard.errors import NotFound
from modelyard.formats.constraints import NAME, Length
from modelyard.formats.converter import structure_exactly
from modelyard.http.body_schemas import NeedsBody, resources_of
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS, TRAINING
from modelyard.http.listing import NAMESPACE, NEWEST_FIRST, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.improve.improvement import MOST_ROADS, Improve, ImprovementHandle
from modelyard.parts.improve.records import PromptProposal
from modelyard.parts.improve.result import ImprovementResult, RoadResult
from modelyard.parts.improve.service import PromptHandle, StartPrompt
from modelyard.platform.listing import Listing

T = TypeVar("T")

PROMPTS = "/v1/preview/prompt-jobs"
PROMPT = f"{PROMPTS}/{{training_job_id}}"
IMPROVEMENTS = "/v1/improvements"
IMPROVEMENT = f"{IMPROVEMENTS}/{{improvement}}"

MOST_TASKS = 100_000
_COUNT = {"schema": {"minimum": 1}}
_NAMED = Length(1, 512)
Rows = tuple[Mapping[str, Any], ...]


# ---- prompt jobs


@attrs.frozen
class PromptJobSettings:
    """How a prompt is optimised: the options of a prompt job; null means the default. `budget` is in USD."""

    calls: int | None = attrs.field(default=None, metadata=_COUNT)
    budget: str | None = attrs.field(default=None, validator=Length(1, 40))
    minibatch: int | None = attrs.field(default=None, metadata=_COUNT)
    concurrency: int | None = attrs.field(default=None, metadata=_COUNT)
    max_tokens: int | None = attrs.field(default=None, metadata=_COUNT)
    reflection_max_tokens: int | None = attrs.field(default=None, metadata=_COUNT)
    seed: int | None = attrs.field(default=None, metadata={"schema": {"minimum": 0}})


@attrs.frozen
class NewPromptJob:
    """The body that has the system text of a variant optimised, such as "desk/support@3". A task has `messages`, a
    `prompt` or the inputs of the template, and the fields that the reward reads. `reward` is a declarative scorer as
    data, by the name of its type if it needs no fields, or a published one by its reference. `reflection` is the model
    that writes the texts."""

    variant: str = attrs.field(validator=_NAMED)
    tasks: Rows = attrs.field(validator=Length(1, MOST_TASKS))
    reward: str | Mapping[str, Any]
    reflection: str = attrs.field(validator=_NAMED)
    held_out: Rows | None = attrs.field(default=None, validator=Length(1, MOST_TASKS))
    config: PromptJobSettings | None = None
    needs: NeedsBody | None = None


@attrs.frozen
class PromptJobObject:
    """A prompt job, which is a training job, too. It begins with a `version` of the variant and ends with `made`, the
    same if no text was better. `start_held_out` and `best_held_out` are their mean rewards on the held-out tasks,
    `spent` is in USD, and `stop_reason` says what has ended it: all are null before it has succeeded."""

    id: str
    entity: str
    project: str
    variant: str
    variant_id: str
    version: int
    reflection: str
    status: JobStatus
    error_message: str | None
    made: int | None
    start_held_out: float | None
    best_held_out: float | None
    spent: str | None
    stop_reason: str | None
    config: Mapping[str, Any]
    created_at: datetime


@attrs.frozen
class PromptProposalObject:
    """A system text that was proposed; `id` is its number, and 0 is the text that the job began with. `parent` is the
    number of that from which it was made. `before` and `after` are the sums of the scores of both on the same few
    tasks; only what is better has a `score`, its mean on the held-out tasks. `calls` were scored and `spent`, USD,
    until then."""

    id: str
    parent: int | None
    text: str
    before: float | None
    after: float | None
    score: float | None
    calls: int
    spent: str
    created_at: datetime


def prompt_object(job: Job) -> PromptJobObject:
    spec, result = job.spec, job.result
    metrics = result.get("metrics", {})
    return PromptJobObject(
        id=job.id,
        entity=job.entity,
        project=job.project,
        variant=spec.get("variant", ""),
        variant_id=spec["variant_id"],
        version=spec["version"],
        reflection=spec["config"]["reflection"],
        status=job.status,
        error_message=job.error_message,
        made=result.get("version"),
        start_held_out=metrics.get("start_held_out"),
        best_held_out=metrics.get("best_held_out"),
        spent=result.get("spent"),
        stop_reason=result.get("stop_reason"),
        config=spec["config"],
        created_at=job.created_at,
    )


def proposal_object(one: PromptProposal) -> PromptProposalObject:
    numbers = one.before, one.after, one.score, one.calls, one.spent
    return PromptProposalObject(str(one.number), one.parent, one.text, *numbers, one.created_at)


def _prompt_shown(handle: PromptHandle) -> PromptJobObject:
    return prompt_object(handle.stored())


PromptJobPage: Any = page_class("PromptJobPage", PromptJobObject, _prompt_shown, "A page of prompt jobs.")
PromptProposalPage: Any = page_class(
    "PromptProposalPage", PromptProposalObject, proposal_object, "A page of what was proposed."
)


def _newest_first(call: RouteCall, listing: Callable[..., Listing[T]]) -> Page[T]:
    asked = {"project": call.one("project"), "entity": call.one("entity")}
    with problems_at("query"):
        return requested_page(call, lambda order: listing(**asked, order=order), "desc")


def _prompts(call: RouteCall) -> StartPrompt:
    return call.platform.part(StartPrompt)


def create_prompt_job(call: RouteCall) -> Response:
    """Have the system text of a variant optimised on tasks, by GEPA."""
    body, key = structure_exactly(NewPromptJob, call.body, "body"), idempotency_key(call)
    given = {} if body.config is None else attrs.asdict(body.config)
    options: Any = {name: value for name, value in given.items() if value is not None}
    own = ("variant", "tasks", "held_out", "reward", "reflection", "needs")
    with problems_at("body", "config", **{name: name for name in own}):
        call.platform.jobs.require_worker()
        job = _prompts(call)(
            body.variant,
            body.tasks,
            body.reward,
            reflection=body.reflection,
            held_out=body.held_out,
            idempotency_key=key,
            needs=None if body.needs is None else resources_of(body.needs),
            **options,
        )
    return json_response(_prompt_shown(job))


def list_prompt_jobs(call: RouteCall) -> Response:
    """List prompt jobs, the newest first."""
    return json_response(PromptJobPage.of(_newest_first(call, _prompts(call).list)))


def show_prompt_job(call: RouteCall) -> Response:
    """Show a prompt job: with which version it began, which it made, and what they are worth."""
    return json_response(_prompt_shown(_prompts(call).get(call.params["training_job_id"])))


def list_prompt_proposals(call: RouteCall) -> Response:
    """List the texts that a prompt job has tried so far."""
    job = _prompts(call).get(call.params["training_job_id"])
    with problems_at("query"):
        page = requested_page(call, job.proposals)
    return json_response(PromptProposalPage.of(page))


# ---- improvements


@attrs.frozen
class NewImprovement:
    """The body that tries several roads to better answers from one variant, such as "desk/support@3". `tasks` and
    `reward` are as for a prompt job. A road is its name, "sft", or an object with it and the options of its job:
    {"road": "prompt", "reflection": "big-model", "calls": 300}, {"road": "sft", "data": [...]}, {"road": "rl"} or
    {"road": "distil", "teacher": "big-model"}. The roads may spend `budget` USD together; `unseen` is the part of the
    tasks that none of them sees."""

    target: str = attrs.field(validator=_NAMED)
    tasks: Rows = attrs.field(validator=Length(1, MOST_TASKS))
    reward: str | Mapping[str, Any]
    roads: tuple[str | Mapping[str, Any], ...] = attrs.field(validator=Length(1, MOST_ROADS))
    budget: str | None = attrs.field(default=None, validator=Length(1, 40))
    unseen: float = 0.3
    max_tokens: int = 1024
    seed: int | None = None
    name: str | None = attrs.field(default=None, validator=NAME)


@attrs.frozen
class ImprovementObject:
    """An improvement: the kinds of its roads, which begin with a `version` of the variant."""

    id: str
    name: str
    entity: str
    project: str
    variant: str
    variant_id: str
    version: int
    roads: tuple[str, ...]
    status: JobStatus
    error_message: str | None
    created_at: datetime


@attrs.frozen
class ImprovementBetween:
    """An interval, both ends included, widened for the number of roads."""

    low: float
    high: float
    confidence: float


@attrs.frozen
class ImprovementRoad:
    """What a road came to. `job` is its job, null before it begins, and `version` what it made of the variant, null if
    nothing. `score` is the mean reward on the unseen rows and `difference` that to the version that all began with; `p`
    is corrected for the number of roads, and `verdict` follows from it. `spent` is in USD, and `per_usd` what one of
    them has bought. `why` says what has ended it."""

    road: str
    job: str | None
    version: int | None
    score: float | None
    difference: float | None
    interval: ImprovementBetween | None
    p: float | None
    verdict: Verdict | None
    spent: str
    per_usd: float | None
    why: str


@attrs.frozen
class ImprovementFound:
    """What an improvement has come to so far. Scores, verdicts and the `recommendation` are there when it has
    succeeded, as long as its runs are: `baseline` is the score of the version that all began with, on the same `rows`,
    and `best` the version that is shown to be better, by most."""

    id: str
    name: str
    entity: str
    project: str
    variant: str
    variant_id: str
    version: int
    status: JobStatus
    error_message: str | None
    rows: int
    baseline: float | None
    best: int | None
    recommendation: str | None
    roads: tuple[ImprovementRoad, ...]
    created_at: datetime


@attrs.frozen
class ImprovementEvent:
    """Something that has happened to an improvement."""

    id: str
    type: str
    data: Mapping[str, Any]
    created_at: datetime


def improvement_object(handle: ImprovementHandle) -> ImprovementObject:
    return ImprovementObject(**_told(handle.stored()), roads=tuple(one.road for one in handle.roads()))


def _told(job: Job) -> dict[str, Any]:
    own = {name: getattr(job, name) for name in ("id", "entity", "project", "status", "error_message", "created_at")}
    return own | {name: job.spec[name] for name in ("name", "variant", "variant_id", "version")}


def road_object(one: RoadResult) -> ImprovementRoad:
    between = one.interval
    return ImprovementRoad(
        one.road,
        one.job,
        one.version,
        one.score,
        one.difference,
        None if between is None else ImprovementBetween(between.low, between.high, between.confidence),
        one.p,
        one.verdict,
        _money(one.spent),
        one.per_usd,
        one.why,
    )


def _money(amount: Decimal) -> str:
    return f"{amount:f}"


def found_object(handle: ImprovementHandle) -> ImprovementFound:
    job, result = handle.stored(), None
    if job.status is JobStatus.SUCCEEDED:
        with suppress(NotFound):  # a run was deleted
            result = handle.result()
    roads = handle.roads() if result is None else result.roads
    told = {**_told(job), "rows": job.spec["held_out"], "roads": tuple(map(road_object, roads))}
    return ImprovementFound(**told, **_compared(result))


def _compared(found: ImprovementResult | None) -> dict[str, Any]:
    if found is None:
        return dict.fromkeys(("baseline", "best", "recommendation"))
    best = None if found.best is None else found.best.version
    return {"baseline": found.baseline, "best": best, "recommendation": found.recommendation}


event_object: Any = answering(ImprovementEvent)
ImprovementPage: Any = page_class("ImprovementPage", ImprovementObject, improvement_object, "A page of improvements.")
ImprovementEventPage: Any = page_class(
    "ImprovementEventPage", ImprovementEvent, event_object, "Some events of an improvement, in order."
)


def _of(call: RouteCall) -> Improve:
    return call.platform.part(Improve)


def _found(call: RouteCall) -> ImprovementHandle:
    return _of(call).get(call.params["improvement"])


def create_improvement(call: RouteCall) -> Response:
    """Try several roads to better answers at equal budget, and compare them on rows that no road has seen."""
    body, key = structure_exactly(NewImprovement, call.body, "body"), idempotency_key(call)
    asked = attrs.asdict(body, recurse=False)
    with problems_at("body"):
        call.platform.jobs.require_worker()
        made = _of(call)(**asked, idempotency_key=key)
    return json_response(improvement_object(made))


def list_improvements(call: RouteCall) -> Response:
    """List improvements, the newest first."""
    return json_response(ImprovementPage.of(_newest_first(call, _of(call).list)))


def show_improvement(call: RouteCall) -> Response:
    """Show an improvement: its roads, what they are worth and have cost, and what to take."""
    return json_response(found_object(_found(call)))


def list_improvement_events(call: RouteCall) -> Response:
    """List the events of an improvement in order; those of its roads are the events of their jobs."""
    job = _found(call).id
    with problems_at("query"):
        page = requested_page(call, lambda order: call.platform.jobs.events(job, order=order))
    return json_response(ImprovementEventPage.of(page))


def cancel_improvement(call: RouteCall) -> Response:
    """End an improvement, and the job that it waits for. Idempotent."""
    return json_response(improvement_object(_found(call).cancel()))


_train = partial(documented_route, TRAINING, Auth.BEARER)
_operate = partial(documented_route, OPERATIONS, Auth.BEARER)
_LISTED: Any = {"query": (*NAMESPACE, *NEWEST_FIRST)}
_CREATES: Any = {"body": Body.CONTROL, "headers": (IDEMPOTENCY_KEY,)}
_IDS: Any = {"links": {"training_job_id": "id"}}

PROMPT_ROUTES: tuple[Route, ...] = (
    _train("GET", PROMPTS, list_prompt_jobs, **_LISTED, response=PromptJobPage),
    _train("POST", PROMPTS, create_prompt_job, **_CREATES, request=NewPromptJob, response=PromptJobObject, **_IDS),
    _train("GET", PROMPT, show_prompt_job, response=PromptJobObject, **_IDS),
    _train("GET", f"{PROMPT}/proposals", list_prompt_proposals, query=PAGING, response=PromptProposalPage),
)

IMPROVEMENT_ROUTES: tuple[Route, ...] = (
    _operate("GET", IMPROVEMENTS, list_improvements, **_LISTED, response=ImprovementPage),
    _operate("POST", IMPROVEMENTS, create_improvement, **_CREATES, request=NewImprovement, response=ImprovementObject),
    _operate("GET", IMPROVEMENT, show_improvement, response=ImprovementFound),
    _operate("GET", f"{IMPROVEMENT}/events", list_improvement_events, query=PAGING, response=ImprovementEventPage),
    _operate("POST", f"{IMPROVEMENT}/cancel", cancel_improvement, response=ImprovementObject),
)
