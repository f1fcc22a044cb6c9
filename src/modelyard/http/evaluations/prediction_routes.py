"""The routes of predictions and scores (specification 4.5)."""

from modelyard.domain.evaluation.references import MODEL_KINDS
from modelyard.http.evaluations.prediction_schemas import (
    PredictionCreate,
    PredictionCreated,
    PredictionFinish,
    PredictionObject,
    ScoreCreate,
    ScoreCreated,
    ScoreObject,
    part_filters,
    show_prediction,
    show_score,
)
from modelyard.http.evaluations.route import (
    TEXTS,
    Success,
    body_with_references,
    evaluation_route,
    namespace_of,
    optional_body,
    problems_in_request,
    stored_routes,
)
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Parameter, Route, RouteCall

PREDICTIONS, SCORES = "/predictions", "/scores"


def create_prediction(call: RouteCall) -> Response:
    """Store the output of a model, in a running run or without one."""
    namespace = namespace_of(call)
    body = body_with_references(PredictionCreate, call, model=MODEL_KINDS)
    with problems_in_request():
        prediction = call.platform.evaluations.predictions.create(
            body.model, body.inputs, body.output, run_id=body.evaluation_run_id or None, spans=body.spans, **namespace
        )
    return json_response(PredictionCreated(prediction.id))


def finish_prediction(call: RouteCall) -> Response:
    """Finish a prediction; again with an equal output, or without one, changes nothing."""
    namespace = namespace_of(call)
    body = optional_body(PredictionFinish, call)
    call.platform.evaluations.predictions.finish(call.params["prediction_id"], body.output, **namespace)
    return json_response(Success(True))


def create_score(call: RouteCall) -> Response:
    """Store the score of a prediction."""
    namespace = namespace_of(call)
    body = body_with_references(ScoreCreate, call, scorer=MODEL_KINDS)
    with problems_in_request():
        score = call.platform.evaluations.scores.create(
            body.prediction_id, body.scorer, body.value, run_id=body.evaluation_run_id or None, **namespace
        )
    return json_response(ScoreCreated(score.id))


_FILTERS = (Parameter("evaluation_run_id", description="Only those of this run."),)

ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST", PREDICTIONS, create_prediction, body=Body.CHAT, request=PredictionCreate, response=PredictionCreated
    ),
    *stored_routes(
        PREDICTIONS,
        "prediction_id",
        "prediction",
        Parameter("prediction_ids", TEXTS, "Which to delete.", required=True),
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
    evaluation_route("POST", SCORES, create_score, body=Body.CHAT, request=ScoreCreate, response=ScoreCreated),
    *stored_routes(
        SCORES,
        "score_id",
        "score",
        Parameter("score_ids", TEXTS, "Which to delete.", required=True),
        lambda evaluations: evaluations.scores,
        ScoreObject,
        show_score,
        _FILTERS,
        part_filters,
    ),
)
