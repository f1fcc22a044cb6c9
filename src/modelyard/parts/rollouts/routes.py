"""Rollouts over HTTP: they are started, watched and stopped, and answers under them are scored."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.promotion import NotWorse
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.rollouts.decisions import Standing
from modelyard.parts.rollouts.records import RolloutAnswer, RolloutScore, RolloutTally, StagedRollout
from modelyard.parts.rollouts.service import CANARY, LEAST, MOST_LEAST, THUMBS, StagedRollouts
from modelyard.platform.models.promotion import PROD

ROLLOUTS = "/v1/rollouts"
ROLLOUT = f"{ROLLOUTS}/{{rollout}}"

_MODEL = Parameter("model", description="Only those of this model, by its id or name.")


@attrs.frozen
class RolloutGuard:
    """A metric that users score, from 0 to 1, and by how much it may be worse."""

    metric: str = attrs.field(default=THUMBS, validator=Length(1, 64))
    margin: float = 0.02
    confidence: float = 0.95
    lower_is_better: bool = False


@attrs.frozen
class RolloutShadow:
    """How requests are mirrored first: a share of the answers, how many are wanted (100; 1 with `lasts`), what they may
    cost in USD, and for how long at least, such as 30m, 1h or 2d. With `scorer`, a declarative scorer or its reference,
    the answers of both arms are scored."""

    answers: int | None = None
    share: float = 0.1
    purse: str = "1"
    lasts: str | None = None
    scorer: str | Mapping[str, Any] | None = None


@attrs.frozen
class NewRollout:
    """The body that brings a step of a model, or a version of a variant ("variants/desk/support"), to the users of an
    alias. `also` are the most of "errors" (a share), "p95" (seconds) and "cost" (USD, the mean of an answer)."""

    model: str = attrs.field(validator=Length(1, 400))
    step: int
    alias: str = attrs.field(default=PROD, validator=Length(1, 64))
    canary: tuple[float, ...] = CANARY
    guard: RolloutGuard = RolloutGuard()
    least: int = attrs.field(default=LEAST, validator=Within(1, MOST_LEAST))
    also: Mapping[str, float] = attrs.field(factory=dict)
    shadow: RolloutShadow | None = None


@attrs.frozen
class StopRollout:
    """The body that stops a rollout."""

    reason: str = attrs.field(default="", validator=Length(0, 1000))


@attrs.frozen
class NewRolloutScore:
    """The body that scores an answer: true or false, or a number from 0 to 1."""

    value: bool | float


@attrs.frozen
class RolloutGuardObject:
    """The guard of a rollout, as it is given."""

    metric: str
    margin: float
    confidence: float
    lower_is_better: bool


@attrs.frozen
class RolloutShadowObject:
    """How requests are mirrored first, as it is given: `lasts` in minutes, such as 60m, and `scorer` as data."""

    answers: int
    share: float
    purse: str
    lasts: str | None
    scorer: Mapping[str, Any] | None


@attrs.frozen
class RolloutObject:
    """A rollout; `guard`, `also` and `shadow` have the form in which they are given. `kind` is model or variant, whose
    steps are the numbers of versions. `stage` is the place in `canary` of the share in force, -1 while requests are
    only mirrored. `state` is shadow, canary, watch, promoted, rolled_back or stopped."""

    id: str
    entity: str
    project: str
    kind: str
    model: str
    alias: str
    baseline: int
    step: int
    canary: tuple[float, ...]
    guard: RolloutGuardObject
    least: int
    also: Mapping[str, float]
    shadow: RolloutShadowObject | None
    state: str
    stage: int
    since: datetime
    by: str
    created_at: datetime
    ended_at: datetime | None
    reason: str


@attrs.frozen
class RolloutArm:
    """What is counted of an arm in a stage; `mean` is that of its scores."""

    scores: int
    mean: float | None
    answers: int
    failed: int
    cost: str


@attrs.frozen
class RolloutLimit:
    """What the candidate has of a limit, as a confidence sequence, and the most that it may have."""

    name: str
    low: float
    high: float
    most: float


@attrs.frozen
class RolloutJudged:
    """What a scorer says of mirrored requests: the means of so many pairs, of what users got and of the candidate, and
    the confidence sequence of their difference."""

    name: str
    pairs: int
    baseline: float | None
    candidate: float | None
    low: float
    high: float


@attrs.frozen
class RolloutStanding:
    """How a rollout stands in its stage. `low` and `high` are the confidence sequence of the difference, candidate
    minus baseline, turned so that more is better: it goes on above minus `margin`, and back below."""

    stage: int
    baseline: RolloutArm
    candidate: RolloutArm
    margin: float
    difference: float | None
    low: float
    high: float
    limits: tuple[RolloutLimit, ...]
    judged: RolloutJudged | None


@attrs.frozen
class RolloutStepObject:
    """A look that saw something new, and what it came to: started, looked, advanced, promoted, rolled_back, stopped."""

    id: str
    number: int
    stage: int
    change: str
    baseline_scores: int
    candidate_scores: int
    difference: float | None
    low: float
    high: float
    reason: str
    at: datetime


@attrs.frozen
class RolloutAnswerObject:
    """An answer under a rollout, by the id of its request: its arm, and the chance that this arm had."""

    id: str
    stage: int
    arm: str
    propensity: float
    step: int
    seconds: float
    cost: str
    shadow: bool
    created_at: datetime


@attrs.frozen
class RolloutScoreObject:
    """What was said of an answer; `counted` is whether it is in the sequence."""

    answer: str
    metric: str
    value: float
    stage: int
    arm: str
    counted: bool
    created_at: datetime


def _money(amount: Any) -> str:
    return f"{amount:f}"


guard_object = answering(RolloutGuardObject)


def shadow_object(given: Mapping[str, Any]) -> RolloutShadowObject | None:
    if not given:
        return None
    minutes = f"{given.get('lasts', 0) / 60:.9f}".rstrip("0").rstrip(".")
    lasts, scorer = f"{minutes}m" if "lasts" in given else None, given.get("scorer", {}).get("rule")
    return RolloutShadowObject(given["answers"], given["share"], given["purse"], lasts, scorer)


rollout_object = answering(
    RolloutObject, guard=guard_object, also="limits", shadow=lambda one: shadow_object(one.shadow)
)


step_object: Any = answering(RolloutStepObject)


def answer_object(one: RolloutAnswer) -> RolloutAnswerObject:
    of = one.id, one.stage, one.side.value, one.propensity, one.step, one.seconds, _money(one.cost), one.shadow
    return RolloutAnswerObject(*of, one.created_at)


score_object: Any = answering(RolloutScoreObject, answer="answer_id", arm="side")
RolloutPage: Any = page_class("RolloutPage", RolloutObject, rollout_object, "A page of rollouts.")
RolloutStepPage: Any = page_class("RolloutStepPage", RolloutStepObject, step_object, "A page of looks.")
RolloutAnswerPage: Any = page_class("RolloutAnswerPage", RolloutAnswerObject, answer_object, "A page of answers.")


def _arm(tally: RolloutTally) -> RolloutArm:
    return RolloutArm(tally.scores, tally.mean, tally.answers, tally.failed, _money(tally.cost))


def standing_object(found: Standing) -> RolloutStanding:
    limits = tuple(RolloutLimit(one.name, one.low, one.high, one.most) for one in found.limits)
    arms = _arm(found.baseline), _arm(found.candidate)
    judged = None if found.judged is None else RolloutJudged(*attrs.astuple(found.judged))
    return RolloutStanding(found.stage, *arms, found.margin, found.difference, found.low, found.high, limits, judged)


def _of(call: RouteCall) -> StagedRollouts:
    return call.platform.part(StagedRollouts)


def start_rollout(call: RouteCall) -> StagedRollout:
    """Bring a step of a model to the users of an alias in stages."""
    body = structure_exactly(NewRollout, call.body, "body")
    said = body.guard
    lower = (said.metric,) if said.lower_is_better else ()
    guard = NotWorse(said.metric, margin=said.margin, confidence=said.confidence, lower_is_better=lower)
    shadow = None if body.shadow is None else attrs.asdict(body.shadow, filter=lambda _, value: value is not None)
    with problems_at("body"):
        return _of(call).start(
            body.model,
            body.step,
            body.alias,
            canary=body.canary,
            guard=guard,
            least=body.least,
            also=body.also,
            shadow=shadow,
        )


def list_rollouts(call: RouteCall) -> Response:
    """List rollouts, of all models or of one."""
    asked = {"model": call.one("model"), "project": call.one("project"), "entity": call.one("entity")}
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).list(**asked, order=order))
    return json_response(RolloutPage.of(page))


def show_rollout(call: RouteCall) -> Response:
    """Show a rollout and its stage."""
    return json_response(rollout_object(_of(call).get(call.params["rollout"])))


def delete_rollout(call: RouteCall) -> Response:
    """Delete a rollout that has ended, with its answers and scores."""
    return json_response(rollout_object(_of(call).delete(call.params["rollout"])))


def stop_rollout(call: RouteCall) -> Response:
    """Stop a rollout: the alias points to what it did before it. Idempotent."""
    body = structure_exactly(StopRollout, {} if call.body is None else call.body, "body")
    with problems_at("body"):
        stopped = _of(call).stop(call.params["rollout"], body.reason)
    return json_response(rollout_object(stopped))


def show_rollout_standing(call: RouteCall) -> Response:
    """Show how a rollout stands: both arms, and the confidence sequence of their difference."""
    return json_response(standing_object(_of(call).standing(call.params["rollout"])))


def list_rollout_steps(call: RouteCall) -> Response:
    """List what was decided, and the looks that were kept in between."""
    rollout = call.params["rollout"]
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).steps(rollout, order=order))
    return json_response(RolloutStepPage.of(page))


def list_rollout_answers(call: RouteCall) -> Response:
    """List the answers under a rollout, each with its arm and propensity."""
    rollout = call.params["rollout"]
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).answers(rollout, order=order))
    return json_response(RolloutAnswerPage.of(page))


def score_answer(call: RouteCall) -> Response:
    """Keep what somebody says of an answer under a rollout. Idempotent."""
    body = structure_exactly(NewRolloutScore, call.body, "body")
    with problems_at("body"):
        kept: RolloutScore = _of(call).score(call.params["answer"], body.value, call.params["metric"])
    return json_response(score_object(kept))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("GET", ROLLOUTS, list_rollouts, query=(_MODEL, *NAMESPACE, *PAGING), response=RolloutPage),
    _route(
        "POST",
        ROLLOUTS,
        creating(start_rollout, rollout_object),
        body=Body.CONTROL,
        request=NewRollout,
        response=RolloutObject,
        headers=(IDEMPOTENCY_KEY,),
    ),
    _route("GET", ROLLOUT, show_rollout, response=RolloutObject),
    _route("DELETE", ROLLOUT, delete_rollout, response=RolloutObject),
    _route("POST", f"{ROLLOUT}/stop", stop_rollout, body=Body.CONTROL, request=StopRollout, response=RolloutObject),
    _route("GET", f"{ROLLOUT}/standing", show_rollout_standing, response=RolloutStanding),
    _route("GET", f"{ROLLOUT}/steps", list_rollout_steps, query=PAGING, response=RolloutStepPage),
    _route("GET", f"{ROLLOUT}/answers", list_rollout_answers, query=PAGING, response=RolloutAnswerPage),
    _route(
        "PUT",
        f"{ROLLOUTS}/answers/{{answer}}/scores/{{metric}}",
        score_answer,
        body=Body.CONTROL,
        request=NewRolloutScore,
        response=RolloutScoreObject,
    ),
)
