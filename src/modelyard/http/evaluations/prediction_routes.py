"""The routes of predictions and scores (specification 4.5)."""

import attrs

from modelyard.domain.evaluation.references import MODEL_KINDS
from modelyard.http.evaluations.prediction_schemas import (
    PredictionCreate,
    PredictionCreated,
    PredictionFinish,
    PredictionObject,
    ScoreCreate,
    ScoreCreated,
    ScoreObject,
    parse_part_query,
)
from modelyard.http.evaluations.route import (
    TEXTS,
    WINDOW,
    body_with_references,
    evaluation_route,
    lines_response,
    namespace_of,
    optional_body,
    problems_in_request,
)
from modelyard.http.evaluations.run_schemas import NumDeleted, Success, parse_ids
from modelyard.http.message import Response, json_response
from modelyard.http.route import Body, Parameter, Route, RouteCall

PREDICTIONS, SCORES = "/predictions", "/scores"


# ---- predictions


def create_prediction(call: RouteCall) -> Response:
    """Store the output of a model, in a running run or without one."""
    namespace = namespace_of(call)
    body = body_with_references(PredictionCreate, call, model=MODEL_KINDS)
    with problems_in_request():
        prediction = call.platform.evaluations.predictions.create(
            body.model, body.inputs, body.output, run_id=body.evaluation_run_id or None, spans=body.spans, **namespace
        )
    return json_response(PredictionCreated(prediction.id))


def read_prediction(call: RouteCall) -> Response:
    """Show a prediction."""
    found = call.platform.evaluations.predictions.get(call.params["prediction_id"], **namespace_of(call))
    return json_response(PredictionObject.of(found))


def list_predictions(call: RouteCall) -> Response:
    """List predictions, one JSON object a line."""
    namespace = namespace_of(call)
    query = parse_part_query(call.query)
    return lines_response(
        call.platform.evaluations.predictions.list(**namespace, **attrs.asdict(query)), PredictionObject.of
    )


def finish_prediction(call: RouteCall) -> Response:
    """Finish a prediction; again with an equal output, or without one, changes nothing."""
    namespace = namespace_of(call)
    body = optional_body(PredictionFinish, call)
    call.platform.evaluations.predictions.finish(call.params["prediction_id"], body.output, **namespace)
    return json_response(Success(True))


def delete_predictions(call: RouteCall) -> Response:
    """Delete predictions with their scores; those that do not exist are not counted."""
    namespace = namespace_of(call)
    ids = parse_ids(call.query, "prediction_ids")
    return json_response(NumDeleted(call.platform.evaluations.predictions.delete(ids, **namespace)))


# ---- scores


def create_score(call: RouteCall) -> Response:
    """Store the score of a prediction."""
    namespace = namespace_of(call)
    body = body_with_references(ScoreCreate, call, scorer=MODEL_KINDS)
    with problems_in_request():
        score = call.platform.evaluations.scores.create(
            body.prediction_id, body.scorer, body.value, run_id=body.evaluation_run_id or None, **namespace
        )
    return json_response(ScoreCreated(score.id))


def read_score(call: RouteCall) -> Response:
    """Show a score."""
    return json_response(
        ScoreObject.of(call.platform.evaluations.scores.get(call.params["score_id"], **namespace_of(call)))
    )


def list_scores(call: RouteCall) -> Response:
    """List scores, one JSON object a line."""
    namespace = namespace_of(call)
    query = parse_part_query(call.query)
    return lines_response(call.platform.evaluations.scores.list(**namespace, **attrs.asdict(query)), ScoreObject.of)


def delete_scores(call: RouteCall) -> Response:
    """Delete scores; those that do not exist are not counted."""
    namespace = namespace_of(call)
    ids = parse_ids(call.query, "score_ids")
    return json_response(NumDeleted(call.platform.evaluations.scores.delete(ids, **namespace)))


_LISTING = (Parameter("evaluation_run_id", description="Only those of this run."), *WINDOW)


def _which(name: str) -> tuple[Parameter, ...]:
    return (Parameter(name, TEXTS, "Which to delete.", required=True),)


ROUTES: tuple[Route, ...] = (
    evaluation_route(
        "POST", PREDICTIONS, create_prediction, body=Body.CHAT, request=PredictionCreate, response=PredictionCreated
    ),
    evaluation_route(
        "GET",
        PREDICTIONS,
        list_predictions,
        query=_LISTING,
        response=PredictionObject,
        media="application/jsonl",
    ),
    evaluation_route("DELETE", PREDICTIONS, delete_predictions, query=_which("prediction_ids"), response=NumDeleted),
    evaluation_route("GET", PREDICTIONS + "/{prediction_id}", read_prediction, response=PredictionObject),
    evaluation_route(
        "POST",
        PREDICTIONS + "/{prediction_id}/finish",
        finish_prediction,
        body=Body.CONTROL,
        request=PredictionFinish,
        response=Success,
    ),
    evaluation_route("POST", SCORES, create_score, body=Body.CHAT, request=ScoreCreate, response=ScoreCreated),
    evaluation_route("GET", SCORES, list_scores, query=_LISTING, response=ScoreObject, media="application/jsonl"),
    evaluation_route("DELETE", SCORES, delete_scores, query=_which("score_ids"), response=NumDeleted),
    evaluation_route("GET", SCORES + "/{score_id}", read_score, response=ScoreObject),
)
