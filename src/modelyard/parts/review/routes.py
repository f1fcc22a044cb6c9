"""Reviews over HTTP: rows are drawn, labelled blind, and judges checked and corrected by the labels."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import attrs

from modelyard.domain.evaluation.statistics import CONFIDENCE, Interval
from modelyard.errors import InvalidInput
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.http.idempotency import IDEMPOTENCY_KEY, creating
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import NAMESPACE, PAGING, page_class, requested_page
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.review.corrected import Corrected
from modelyard.parts.review.estimates import JudgeCheck
from modelyard.parts.review.records import MAX_NOTE, MOST_ROWS, Review
from modelyard.parts.review.service import MOST_SEED, Reviews
from modelyard.parts.review.table_file import MAX_FILE

REVIEWS = "/v1/reviews"
REVIEW = f"{REVIEWS}/{{review}}"
PERSON = f"{REVIEW}/people/{{person}}"

_RUN = Parameter("run", description="Only those of this evaluation run, by its id.")
_SCORER = Parameter("scorer", description="The name or the reference of a scorer; the run's first when absent.")
_CLUSTER = Parameter("cluster_by", description="An input that rows share which go together.")
_ONE_RUN = (Parameter("run", description="The id of an evaluation run.", required=True), _SCORER, _CLUSTER)
_MARGIN = Parameter("margin", {"type": "string", "default": "0.05"}, "By how much it may be worse, a number from 0.")
_TWO_RUNS = (
    Parameter("baseline", description="The id of an evaluation run.", required=True),
    Parameter("candidate", description="The id of another one over the same rows.", required=True),
    _MARGIN,
    Parameter("lower_is_better", {"type": "boolean", "default": False}, "Whether lower values are better."),
    _SCORER,
    _CLUSTER,
)


@attrs.frozen
class NewReview:
    """The body that draws rows of a run to label; `by_score`, about as many of each score."""

    run: str = attrs.field(validator=Length(1, 128))
    scorer: str | None = attrs.field(default=None, validator=Length(1, 1024))
    rows: int = attrs.field(default=100, validator=Within(1, MOST_ROWS))
    seed: int = attrs.field(default=0, validator=Within(0, MOST_SEED))
    by_score: bool = False


@attrs.frozen
class NewReviewLabel:
    """The body that labels a row. `value` is true or false, or a number; null if the person cannot say."""

    value: bool | float | None
    note: str = attrs.field(default="", validator=Length(0, MAX_NOTE))


@attrs.frozen
class ReviewLabelFile:
    """A person's rows and labels as CSV."""

    file: str = attrs.field(validator=Length(1, MAX_FILE))


@attrs.frozen
class ReviewLabelCount:
    """How many labels a file had."""

    labels: int


@attrs.frozen
class ReviewObject:
    """A random sample of the rows of a run. `propensity` is each row's chance to be drawn, and `choices` what labels
    may be, [0, 1] for no and yes and [] for any number. `models` are those that the scorer asks."""

    id: str
    entity: str
    project: str
    run: str
    scorer: str
    models: Mapping[str, Any]
    population: int
    size: int
    propensity: float
    seed: int
    choices: tuple[float, ...]
    by_score: bool
    by: str
    created_at: datetime


@attrs.frozen
class ReviewProgressObject:
    """How many of the rows each person has labelled, and how many of the first rows have a label."""

    size: int
    people: Mapping[str, int]
    counted: int


@attrs.frozen
class ReviewRowObject:
    """A row as a person sees it who labels, with their own label."""

    row: int
    inputs: Mapping[str, Any]
    output: Any
    labelled: bool
    value: float | None
    note: str


@attrs.frozen
class ReviewRowList:
    """The rows of a review in their random order."""

    data: tuple[ReviewRowObject, ...]


@attrs.frozen
class ReviewDisagreementObject:
    """A row of which not all say the same; `labels` are by person."""

    row: int
    verdict: float
    labels: Mapping[str, float | None]


@attrs.frozen
class ReviewDisagreementList:
    """The rows of a review of which not all say the same."""

    data: tuple[ReviewDisagreementObject, ...]


@attrs.frozen
class JudgeCheckObject:
    """Whether people have checked a version of a scorer, and if not, why. The numbers are null where they cannot be
    computed; `sensitivity` and `specificity` are [low, value, high]."""

    scorer: str
    models: Mapping[str, str]
    checked: bool
    reason: str
    labelled: int
    kappa: float | None
    alpha: float | None
    people_kappa: float | None
    people_alpha: float | None
    sensitivity: tuple[float, ...] | None
    specificity: tuple[float, ...] | None


@attrs.frozen
class JudgedEstimateObject:
    """A judge's mean, and corrected by labels. `low` and `high` are those of a 95 % interval that has the judge's error
    in it; null if the judge is not checked or nothing can be told."""

    method: str
    rows: int
    labelled: int
    judged: float
    mean: float | None
    low: float | None
    high: float | None
    check: JudgeCheckObject


@attrs.frozen
class JudgedComparisonObject:
    """A corrected difference, candidate minus baseline, and its verdict for a margin. `labels_needed` is about how many
    labelled rows would tell."""

    verdict: str
    labels_needed: int | None
    difference: JudgedEstimateObject


@attrs.frozen
class JudgedPromotion:
    """The body that points an alias at a step of a model, or at a version of a variant ("variants/desk/support"), if
    labels of its run of the evaluation show it to be at most `margin` worse."""

    name: str = attrs.field(validator=Length(1, 512))
    number: int = attrs.field(validator=Within(0))
    evaluation: str = attrs.field(validator=Length(1, 1024))
    margin: float = 0.05
    scorer: str | None = attrs.field(default=None, validator=Length(1, 1024))
    lower_is_better: bool = False
    confidence: float = attrs.field(default=CONFIDENCE, validator=Within(0.5, 0.9999))


@attrs.frozen
class JudgedPromotionObject:
    """What an alias points at, and the numbers by which that was decided."""

    name: str
    alias: str
    number: int
    verdict: Mapping[str, Any]


review_object = answering(ReviewObject, run="run_id")
row_object = answering(ReviewRowObject, row="place")
disagreement_object = answering(ReviewDisagreementObject, row="place")
progress_object = answering(ReviewProgressObject)
ReviewPage = page_class("ReviewPage", ReviewObject, review_object, "A page of reviews.")


def check_object(check: JudgeCheck) -> JudgeCheckObject:
    found = check.agreement
    shown = check.scorer, check.models, check.checked, check.reason
    if found is None:
        return JudgeCheckObject(*shown, 0, *[None] * 6)
    agreed = found.kappa, found.alpha, found.people_kappa, found.people_alpha
    rates = (None, None) if found.confusion is None else (found.confusion.sensitivity, found.confusion.specificity)
    intervals = [_rate(*pair) for pair in zip(rates, (found.sensitivity, found.specificity), strict=True)]
    return JudgeCheckObject(*shown, found.labelled, *agreed, *intervals)


def _rate(value: float | None, interval: Interval | None) -> tuple[float, ...] | None:
    return None if value is None or interval is None else (interval.low, value, interval.high)


def estimate_object(found: Corrected, check: JudgeCheck) -> JudgedEstimateObject:
    interval = found.interval
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    numbers = found.method, found.rows, found.labelled, found.judged, found.mean, low, high
    return JudgedEstimateObject(*numbers, check_object(check))


def _of(call: RouteCall) -> Reviews:
    return call.platform.part(Reviews)


def _asked(call: RouteCall, name: str) -> str:
    found = call.one(name)
    if found is None:
        raise InvalidInput.at("query", name, msg="is required", type="missing")
    return found


def start_review(call: RouteCall) -> Review:
    """Draw rows of a completed run for people to label."""
    body = structure_exactly(NewReview, call.body, "body")
    with problems_at("body"):
        return _of(call).start(body.run, body.scorer, rows=body.rows, seed=body.seed, by_score=body.by_score)


def list_reviews(call: RouteCall) -> Response:
    """List reviews, of all runs or of one."""
    asked = {"run": call.one("run"), "project": call.one("project"), "entity": call.one("entity")}
    with problems_at("query"):
        page = requested_page(call, lambda order: _of(call).list(**asked, order=order))
    return json_response(ReviewPage.of(page))


def show_review(call: RouteCall) -> Response:
    """Show a review and how far people are."""
    return json_response(review_object(_of(call).get(call.params["review"])))


def delete_review(call: RouteCall) -> Response:
    """Delete a review with its labels."""
    return json_response(review_object(_of(call).delete(call.params["review"])))


def show_review_progress(call: RouteCall) -> Response:
    """Show how far people are."""
    return json_response(progress_object(_of(call).progress(call.params["review"])))


def list_review_rows(call: RouteCall) -> Response:
    """List the rows for a person to label, without what others or the judge say."""
    rows = _of(call).rows(call.params["review"], call.params["person"])
    return json_response(ReviewRowList(tuple(map(row_object, rows))))


def label_review_row(call: RouteCall) -> Response:
    """Keep what a person says of a row. Idempotent."""
    body = structure_exactly(NewReviewLabel, call.body, "body")
    review, person, row = (call.params[name] for name in ("review", "person", "row"))
    if not (row.isascii() and row.isdigit() and len(row) <= 9):
        raise InvalidInput.at("path", "row", msg="must be the number of a row")
    with problems_at("body"):
        _of(call).label(review, person, int(row), body.value, body.note)
    return json_response(row_object(_of(call).row(review, person, int(row))))


def show_review_file(call: RouteCall) -> Response:
    """Show the rows for a person to label as CSV."""
    return json_response(ReviewLabelFile(_of(call).write_csv(call.params["review"], call.params["person"])))


def read_review_file(call: RouteCall) -> Response:
    """Keep a person's labels from CSV, all or none; the columns row, label and note are enough. Idempotent."""
    body = structure_exactly(ReviewLabelFile, call.body, "body")
    with problems_at("body"):
        count = _of(call).read_csv(call.params["review"], call.params["person"], body.file)
    return json_response(ReviewLabelCount(count))


def list_review_disagreements(call: RouteCall) -> Response:
    """List the rows of which not all say the same, for a person who has labelled every row."""
    found = _of(call).disagreements(call.params["review"], call.params["person"])
    return json_response(ReviewDisagreementList(tuple(map(disagreement_object, found))))


def show_judged_estimate(call: RouteCall) -> Response:
    """Show the mean of a run, corrected by labels."""
    with problems_at("query"):
        asked = _asked(call, "run"), call.one("scorer")
        found = _of(call).estimate(*asked, cluster_by=call.one("cluster_by"))
    return json_response(estimate_object(found.corrected, found.check))


def show_judged_comparison(call: RouteCall) -> Response:
    """Show the difference of two runs, corrected by labels."""
    try:
        margin = float(call.one("margin") or 0.05)
    except ValueError:
        margin = -1.0
    if not 0 <= margin < float("inf"):
        raise InvalidInput.at("query", "margin", msg="must be a number from 0")
    lower = call.one("lower_is_better") or "false"
    if lower not in ("true", "false"):
        raise InvalidInput.at("query", "lower_is_better", msg="must be true or false")
    with problems_at("query"):
        runs = _asked(call, "baseline"), _asked(call, "candidate"), call.one("scorer")
        kept: Any = {"lower_is_better": lower == "true", "cluster_by": call.one("cluster_by")}
        found = _of(call).compare(*runs, **kept)
    shown = estimate_object(found.corrected, found.check)
    return json_response(JudgedComparisonObject(found.verdict(margin), found.labels_needed(margin), shown))


def promote_judged(call: RouteCall) -> Response:
    """Point an alias at a step or a version, if labels show it to be no worse. Idempotent."""
    body, alias = structure_exactly(JudgedPromotion, call.body, "body"), call.params["alias"]
    with problems_at("body"):
        made = _of(call).promote(
            *(body.name, body.number, body.evaluation, body.margin, body.scorer),
            alias=alias,
            lower_is_better=body.lower_is_better,
            confidence=body.confidence,
        )
    return json_response(JudgedPromotionObject(body.name, alias, body.number, made.verdict))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)
_put = partial(_route, "PUT")

ROUTES: tuple[Route, ...] = (
    _route("GET", REVIEWS, list_reviews, query=(_RUN, *NAMESPACE, *PAGING), response=ReviewPage),
    _route(
        "POST",
        REVIEWS,
        creating(start_review, review_object),
        body=Body.CONTROL,
        request=NewReview,
        response=ReviewObject,
        headers=(IDEMPOTENCY_KEY,),
    ),
    _route("GET", REVIEW, show_review, response=ReviewObject),
    _route("DELETE", REVIEW, delete_review, response=ReviewObject),
    _route("GET", f"{REVIEW}/progress", show_review_progress, response=ReviewProgressObject),
    _route("GET", f"{PERSON}/rows", list_review_rows, response=ReviewRowList),
    _put(
        f"{PERSON}/rows/{{row}}", label_review_row, body=Body.CONTROL, request=NewReviewLabel, response=ReviewRowObject
    ),
    _route("GET", f"{PERSON}/file", show_review_file, response=ReviewLabelFile),
    _put(f"{PERSON}/file", read_review_file, body=Body.CHAT, request=ReviewLabelFile, response=ReviewLabelCount),
    _route("GET", f"{PERSON}/disagreements", list_review_disagreements, response=ReviewDisagreementList),
    _route("GET", "/v1/judged/estimate", show_judged_estimate, query=_ONE_RUN, response=JudgedEstimateObject),
    _route("GET", "/v1/judged/comparison", show_judged_comparison, query=_TWO_RUNS, response=JudgedComparisonObject),
    _put(
        "/v1/judged/aliases/{alias}",
        promote_judged,
        body=Body.CONTROL,
        request=JudgedPromotion,
        response=JudgedPromotionObject,
    ),
)
