"""Predictions and scores: what clients send and receive, and the routes (specification 4.5)."""

from collections.abc import Callable, Mapping
from datetime import datetime
from operator import attrgetter
from typing import Any

import attrs

from modelyard.domain.evaluation.objects import MODEL_KINDS
from modelyard.domain.evaluation.run import Prediction, Score, Source
from modelyard.formats.constraints import Length
from modelyard.http.body_schemas import ModelRef
from modelyard.http.evaluations.route import (
    SOME_TEXTS,
    GenaiSpanRef,
    Success,
    body_with_references,
    creation_route,
    evaluation_route,
    namespace_of,
    optional_body,
    problems_in_request,
    stored_routes,
)
from modelyard.http.message import Response, answering, json_response
from modelyard.http.query import Query
from modelyard.http.route import Body, Parameter, Route, RouteCall

_id = Length(1, 128)
JsonValue = bool | float | int | str | Mapping[str, Any] | None


# ---- requests


@attrs.frozen
class PredictionCreate:
    """The body that creates a prediction. An output that is left out is given when the prediction is finished."""

    model: ModelRef
    inputs: Mapping[str, Any]
    output: object = None
    evaluation_run_id: str | None = attrs.field(default=None, validator=Length(0, 128))
    genai_span_ref: tuple[GenaiSpanRef, ...] | None = attrs.field(default=None, validator=Length(0, 100))

    @property
    def spans(self) -> list[dict[str, str]]:
        return [attrs.asdict(span) for span in self.genai_span_ref or ()]


@attrs.frozen
class PredictionFinish:
    """The body that finishes a prediction; it may be left out."""

    output: object = None


@attrs.frozen
class ScoreCreate:
    """The body that creates a score. Its value is a bool, a number, a string, null or an object."""

    prediction_id: str = attrs.field(validator=_id)
    scorer: ModelRef
    value: JsonValue
    evaluation_run_id: str | None = attrs.field(default=None, validator=Length(0, 128))


def part_filters(query: Query) -> Mapping[str, str | None]:
    return {"run_id": query.text("evaluation_run_id")}


# ---- responses


@attrs.frozen
class PredictionCreated:
    """The answer to a creation."""

    prediction_id: str


@attrs.frozen
class ScoreCreated:
    """The answer to a creation."""

    score_id: str


@attrs.define
class PredictionObject:
    """A prediction.

    The members after `wb_user_id` are our additions: when, from where and for which row it came, its trial, its error,
    how long the call of the model took and what it used (`cost` is USD, `price` USD per unit, both as decimal text),
    which checkpoint answered, and whose output it shares.
    """

    prediction_id: str
    model: str
    inputs: Mapping[str, Any]
    output: object
    evaluation_run_id: str | None
    wb_user_id: str | None
    genai_span_ref: tuple[GenaiSpanRef, ...] | None
    started_at: datetime
    finished_at: datetime | None
    source: Source
    row_digest: str
    trial: int
    error: str | None
    latency_seconds: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: str | None
    price: Mapping[str, str]
    checkpoint_step: int | None
    copied_from: str | None


@attrs.define
class ScoreObject:
    """A score.

    The members after `wb_user_id` are our additions: its prediction, when it was created, its error, and what a judge
    used (`judge_cost` is USD, as decimal text).
    """

    score_id: str
    scorer: str
    value: JsonValue
    evaluation_run_id: str | None
    wb_user_id: str | None
    prediction_id: str
    created_at: datetime
    error: str | None
    prompt_tokens: int | None
    completion_tokens: int | None
    judge_cost: str | None


def usd(name: str) -> Callable[[Any], str | None]:
    cost = attrgetter(name)
    return lambda value: None if (amount := cost(value)) is None else f"{amount:f}"


show_prediction = answering(
    PredictionObject,
    prediction_id="id",
    output=lambda prediction: prediction.output.get("value"),
    evaluation_run_id="run_id",
    wb_user_id="user_id",
    genai_span_ref=lambda prediction: prediction.span.get("genai_span_ref"),
    latency_seconds="latency",
    cost=usd("cost"),
)

show_score = answering(
    ScoreObject,
    score_id="id",
    value=lambda score: score.value.get("value"),
    evaluation_run_id="run_id",
    wb_user_id="user_id",
    judge_cost=usd("judge_cost"),
)


# ---- routes


PREDICTIONS, SCORES = "/predictions", "/scores"


def create_prediction(call: RouteCall) -> Prediction:
    """Store the output of a model, in a running run or without one."""
    namespace = namespace_of(call)
    body = body_with_references(PredictionCreate, call, model=MODEL_KINDS)
    with problems_in_request():
        return call.platform.evaluations.predictions.create(
            body.model, body.inputs, body.output, run_id=body.evaluation_run_id or None, spans=body.spans, **namespace
        )


def finish_prediction(call: RouteCall) -> Response:
    """Finish a prediction; again with an equal output, or without one, changes nothing."""
    namespace = namespace_of(call)
    body = optional_body(PredictionFinish, call)
    call.platform.evaluations.predictions.finish(call.params["prediction_id"], body.output, **namespace)
    return json_response(Success(True))


def create_score(call: RouteCall) -> Score:
    """Store the score of a prediction."""
    namespace = namespace_of(call)
    body = body_with_references(ScoreCreate, call, scorer=MODEL_KINDS)
    with problems_in_request():
        return call.platform.evaluations.scores.create(
            body.prediction_id, body.scorer, body.value, run_id=body.evaluation_run_id or None, **namespace
        )


_FILTERS = (Parameter("evaluation_run_id", description="Only those of this run."),)

ROUTES: tuple[Route, ...] = (
    creation_route(
        PREDICTIONS,
        create_prediction,
        lambda prediction: PredictionCreated(prediction.id),
        body=Body.CHAT,
        request=PredictionCreate,
        response=PredictionCreated,
        links={"prediction_id": "prediction_id"},
    ),
    *stored_routes(
        PREDICTIONS,
        "prediction_id",
        "prediction",
        Parameter("prediction_ids", SOME_TEXTS, "Which to delete.", required=True),
        lambda evaluations: evaluations.predictions,
        PredictionObject,
        show_prediction,
        _FILTERS,
        part_filters,
    ),
    evaluation_route(
        "POST",
        PREDICTIONS + "/{prediction_id}/finish",
        finish_prediction,
        body=Body.CONTROL,
        request=PredictionFinish,
        response=Success,
    ),
    creation_route(
        SCORES,
        create_score,
        lambda score: ScoreCreated(score.id),
        body=Body.CHAT,
        request=ScoreCreate,
        response=ScoreCreated,
        links={"score_id": "score_id"},
    ),
    *stored_routes(
        SCORES,
        "score_id",
        "score",
        Parameter("score_ids", SOME_TEXTS, "Which to delete.", required=True),
        lambda evaluations: evaluations.scores,
        ScoreObject,
        show_score,
        _FILTERS,
        part_filters,
    ),
)
