"""Questions to stored traffic over HTTP: what they cost, how they are asked, and what comes of them."""

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import attrs

from modelyard.domain.evaluation.statistics import Interval, Paired
from modelyard.formats.constraints import NAME, Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, NEWEST_FIRST, PAGING, page_class, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.rollouts.service import THUMBS
from modelyard.parts.what_if.estimates import Counterfactual
from modelyard.parts.what_if.question import AskingEstimate
from modelyard.parts.what_if.records import AskedRow, AskedTraffic
from modelyard.parts.what_if.repricing import Repriced
from modelyard.parts.what_if.result import WhatIf
from modelyard.parts.what_if.service import AskTraffic

PATH = "/v1/what-ifs"
WHAT_IF = f"{PATH}/{{what_if}}"


@attrs.frozen
class NewWhatIf:
    """The body that asks stored requests again. `since` and `until` are times, or ages such as "7d". `judge` is an
    object with the `type` "llm_judge", a `model` and a `prompt`. `prices` are by the names of models. `options` are
    those of a completion. `budget` is in USD."""

    model: str = attrs.field(validator=Length(1, 512))
    since: str | None = attrs.field(default=None, validator=Length(1, 64))
    until: str | None = attrs.field(default=None, validator=Length(1, 64))
    asks: Literal["answers", "logprobs"] = "answers"
    judge: Mapping[str, Any] | None = None
    prices: Mapping[str, Any] | None = None
    metric: str = attrs.field(default=THUMBS, validator=Length(1, 64))
    answered_by: str | None = attrs.field(default=None, validator=Length(1, 512))
    sources: tuple[Literal["chat", "responses", "traces"], ...] = ("chat", "responses", "traces")
    metadata: Mapping[str, str] = attrs.field(factory=dict)
    limit: int | None = attrs.field(default=None, validator=Within(1, 100_000_000))
    options: Mapping[str, Any] = attrs.field(factory=dict)
    budget: str | None = attrs.field(default=None, validator=Length(1, 40))
    project: str | None = attrs.field(default=None, validator=NAME)
    entity: str | None = attrs.field(default=None, validator=NAME)


@attrs.frozen
class WhatIfEstimate:
    """What asking would cost, in USD, by the tokens of the stored requests and the prices of now. `longest` is what one
    request may cost, which a budget must have left for it."""

    rows: int
    prompt_tokens: int
    completion_tokens: int
    cost: str
    judge_cost: str
    longest: str


@attrs.frozen
class WhatIfObject:
    """A question: stored requests that are asked again. `spent` includes what is reserved for those that run."""

    id: str
    entity: str
    project: str
    model: str
    asks: str
    budget: str
    spent: str
    created_at: datetime


@attrs.frozen
class WhatIfBetween:
    """An interval, both ends included."""

    low: float
    high: float
    confidence: float


@attrs.frozen
class WhatIfDifference:
    """How values of the same rows differ, new minus served."""

    rows: int
    better: int
    same: int
    worse: int
    difference: float | None
    interval: WhatIfBetween | None


@attrs.frozen
class WhatIfAnswers:
    """The rows that were asked again. `logprob` is that of a token of the served answers. Costs are in USD."""

    done: int
    failed: int
    served_cost: str
    cost: str
    spent: str
    score: WhatIfDifference | None
    logprob: WhatIfDifference | None


@attrs.frozen
class WhatIfCosts:
    """What the calls of the time cost and would have cost, in USD; `unpriced` calls are in neither."""

    calls: int
    cost: str
    other_cost: str
    unpriced: int


@attrs.frozen
class WhatIfFeedback:
    """What users would have said. `coverage` is the share of the answers that the model had a chance to give; where it
    or `effective_users` is too small there is no `mean`, and `reason` says why."""

    answers: int
    coverage: float
    users: int
    effective_users: float
    mean: float | None
    interval: WhatIfBetween | None
    served: float | None
    difference: float | None
    difference_interval: WhatIfBetween | None
    reason: str


@attrs.frozen
class WhatIfFound:
    """What came of a question so far. `status` is that of its job; `reason` is why it ended before all was asked."""

    id: str
    model: str
    status: str
    reason: str
    estimate: WhatIfEstimate
    answers: WhatIfAnswers
    repriced: WhatIfCosts | None
    feedback: WhatIfFeedback | None


@attrs.frozen
class WhatIfRow:
    """A stored answer by its id, and what came of asking again."""

    id: str
    model: str
    answer: str | None
    served_cost: str | None
    cost: str | None
    served_score: float | None
    score: float | None
    served_logprob: float | None
    logprob: float | None
    tokens: int
    error: str
    done: bool


def _money(amount: Decimal | None) -> Any:
    return None if amount is None else f"{amount:f}"


def estimate_object(found: AskingEstimate) -> WhatIfEstimate:
    values = attrs.asdict(found)
    return WhatIfEstimate(**{name: _money(one) if isinstance(one, Decimal) else one for name, one in values.items()})


def asked_object(one: AskedTraffic) -> WhatIfObject:
    of = one.id, one.entity, one.project, one.model, one.asks
    return WhatIfObject(*of, _money(one.budget), _money(one.spent), one.created_at)


def _between(found: Interval | None) -> WhatIfBetween | None:
    return None if found is None else WhatIfBetween(found.low, found.high, found.confidence)


def _difference(found: Paired | None) -> WhatIfDifference | None:
    if found is None:
        return None
    counts = found.count, found.wins, found.ties, found.losses
    return WhatIfDifference(*counts, found.difference, _between(found.interval))


def _costs(found: Repriced | None) -> WhatIfCosts | None:
    if found is None:
        return None
    return WhatIfCosts(found.calls, _money(found.cost), _money(found.other_cost), found.unpriced)


def _feedback(found: Counterfactual | None) -> WhatIfFeedback | None:
    if found is None:
        return None
    values = attrs.asdict(found, recurse=False)
    between = {name: _between(values[name]) for name in ("interval", "difference_interval")}
    return WhatIfFeedback(**{**values, **between})


def found_object(found: WhatIf) -> WhatIfFound:
    answers, estimate = found.answers, found.estimate
    assert answers is not None
    assert estimate is not None, "it was asked"
    costs = _money(answers.served_cost), _money(answers.cost), _money(answers.spent)
    again = WhatIfAnswers(
        answers.done, answers.failed, *costs, _difference(answers.score), _difference(answers.logprob)
    )
    of = found.id or "", found.model or "", found.status or "", found.reason, estimate_object(estimate), again
    return WhatIfFound(*of, _costs(found.repriced), _feedback(found.feedback))


def row_object(row: AskedRow) -> WhatIfRow:
    of = row.id, row.model, row.answer, _money(row.served_cost), _money(row.cost), row.served_score, row.score
    return WhatIfRow(*of, row.served_logprob, row.logprob, row.tokens, row.error, row.done)


WhatIfPage: Any = page_class("WhatIfPage", WhatIfObject, asked_object, "A page of questions, the newest first.")
WhatIfRowPage: Any = page_class("WhatIfRowPage", WhatIfRow, row_object, "A page of rows that were asked again.")


def _of(call: RouteCall) -> AskTraffic:
    return call.platform.part(AskTraffic)


def _asked(call: RouteCall) -> dict[str, Any]:
    return attrs.asdict(structure_exactly(NewWhatIf, call.body, "body"), recurse=False)


def estimate_what_if(call: RouteCall) -> Response:
    """Say what asking stored requests again would cost, without asking."""
    asked = _asked(call)
    asked.pop("budget")
    with problems_at("body"):
        return json_response(estimate_object(_of(call).estimate(**asked)))


def create_what_if(call: RouteCall) -> Response:
    """Have a worker ask stored requests again."""
    asked, key = _asked(call), idempotency_key(call)
    with problems_at("body"):
        made = _of(call).submit(**asked, idempotency_key=key, require_worker=True)
    return json_response(asked_object(made))


def list_what_ifs(call: RouteCall) -> Response:
    """List questions to stored traffic, the newest first."""
    asked = {"project": call.one("project"), "entity": call.one("entity")}
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).list(**asked, order=order), "desc")
    return json_response(WhatIfPage.of(page))


def show_what_if(call: RouteCall) -> Response:
    """Show what came of a question so far."""
    return json_response(found_object(_of(call).get(call.params["what_if"])))


def list_what_if_rows(call: RouteCall) -> Response:
    """List the rows that were asked again."""
    what_if = call.params["what_if"]
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).rows(what_if, order=order))
    return json_response(WhatIfRowPage.of(page))


def cancel_what_if(call: RouteCall) -> Response:
    """End the asking: what came of it so far stays. Idempotent."""
    return json_response(found_object(_of(call).cancel(call.params["what_if"])))


def delete_what_if(call: RouteCall) -> Response:
    """Delete a question that has ended, with its rows."""
    return json_response(asked_object(_of(call).delete(call.params["what_if"])))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)
_BODY: Any = {"body": Body.CONTROL, "request": NewWhatIf}

ROUTES: tuple[Route, ...] = (
    _route("GET", PATH, list_what_ifs, query=(*NAMESPACE, *NEWEST_FIRST), response=WhatIfPage),
    _route("POST", PATH, create_what_if, **_BODY, response=WhatIfObject, headers=(IDEMPOTENCY_KEY,)),
    _route("POST", f"{PATH}/estimate", estimate_what_if, **_BODY, response=WhatIfEstimate),
    _route("GET", WHAT_IF, show_what_if, response=WhatIfFound),
    _route("DELETE", WHAT_IF, delete_what_if, response=WhatIfObject),
    _route("GET", f"{WHAT_IF}/rows", list_what_if_rows, query=PAGING, response=WhatIfRowPage),
    _route("POST", f"{WHAT_IF}/cancel", cancel_what_if, response=WhatIfFound),
)
