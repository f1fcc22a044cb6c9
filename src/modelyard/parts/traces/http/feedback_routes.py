"""The routes of feedback on calls and objects."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from attrs import asdict

from modelyard.errors import InvalidInput
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Route, RouteCall
from modelyard.parts.traces.call_query import ALWAYS, sort_key
from modelyard.parts.traces.http.documents import DocumentField, condition_of, feedback_document, time_text
from modelyard.parts.traces.http.feedback_schemas import (
    FeedbackAnswer,
    FeedbackBatch,
    FeedbackBatchAnswer,
    FeedbackCreate,
    FeedbackCreated,
    FeedbackPurgeRequest,
    FeedbackQueryRequest,
    FeedbackReplace,
)
from modelyard.parts.traces.http.requests import (
    PlaceArguments,
    body_of,
    control_body,
    control_route,
    data_route,
    place_of,
)
from modelyard.parts.traces.http.schemas import Empty
from modelyard.parts.traces.records import Feedback

_OWN = ("project_id", "weave_ref", "feedback_type", "payload", "id", "creator", "feedback_id")


def _given(call: RouteCall, body: FeedbackCreate, place: PlaceArguments) -> Feedback:
    links = {name: value for name, value in asdict(body).items() if name not in _OWN and value is not None}
    new_id, now = body.id or call.platform.compat.traces.calls.new_id(), call.platform.clock.now()
    at = place["entity"], place["project"], new_id, body.weave_ref, body.feedback_type, now
    return Feedback(*at, body.payload or {}, body.creator, links)


def _created(said: Feedback) -> FeedbackCreated:
    user = said.links.get("wb_user_id", "")
    return FeedbackCreated(said.id, time_text(said.created_at) or "", user, said.payload)


def create_feedback(call: RouteCall) -> Response:
    """Store feedback. With an `id`, sent again, it is the same."""
    body = body_of(FeedbackCreate, call)
    place = place_of(call, body.project_id)
    with problems_at("body"):
        return json_response(
            _created(call.platform.compat.traces.feedback.record([_given(call, body, place)], **place)[0])
        )


def create_feedback_batch(call: RouteCall) -> Response:
    """Store feedback on several things of one project: all, or none."""
    batch = body_of(FeedbackBatch, call).batch
    if not batch:
        return json_response(FeedbackBatchAnswer(()))
    if len({body.project_id for body in batch}) > 1:
        raise InvalidInput.at("body", "batch", msg="must be about one project")
    place = place_of(call, batch[0].project_id)
    with problems_at("body", "batch"):
        stored = call.platform.compat.traces.feedback.record([_given(call, body, place) for body in batch], **place)
    return json_response(FeedbackBatchAnswer(tuple(map(_created, stored))))


def replace_feedback(call: RouteCall) -> Response:
    """Store feedback in the place of another, which is deleted."""
    body = body_of(FeedbackReplace, call)
    place, feedback = place_of(call, body.project_id), call.platform.compat.traces.feedback
    with problems_at("body"):
        stored = feedback.record([_given(call, body, place)], **place)[0]
    if body.feedback_id != stored.id:
        feedback.delete([body.feedback_id], **place)
    return json_response(_created(stored))


def query_feedback(call: RouteCall) -> Response:
    """Find feedback."""
    body = control_body(FeedbackQueryRequest, call)
    found: Iterable[dict[str, Any]] = map(feedback_document, _found(call, body.project_id, body.query))
    for sort in reversed(body.sort_by or ()):
        found = sorted(found, key=partial(_value_of, sort.field), reverse=sort.direction == "desc")
    part, total, begin = list[dict[str, Any]](), 0, body.offset or 0
    for total, one in enumerate(found, 1):
        if total > begin and (body.limit is None or len(part) < body.limit):
            part.append({name: one.get(name) for name in body.fields} if body.fields else one)
    return json_response(FeedbackAnswer(tuple(part), total))


def _value_of(field: str, document: dict[str, object]) -> tuple[int, Any]:
    return sort_key(DocumentField(field).of(document))


def purge_feedback(call: RouteCall) -> Response:
    """Delete the feedback that a query finds."""
    body = control_body(FeedbackPurgeRequest, call)
    found = [said.id for said in _found(call, body.project_id, body.query)]
    call.platform.compat.traces.feedback.delete(found, **place_of(call, body.project_id))
    return json_response(Empty())


def _found(call: RouteCall, project_id: str, query: object) -> Iterable[Feedback]:
    place = place_of(call, project_id)
    condition, _ = condition_of(query)  # type: ignore[arg-type]
    ref = _ref_of(query)
    for said in call.platform.compat.traces.feedback.list(ref=ref, **place):
        document: Any = feedback_document(said)
        if condition is ALWAYS or condition.of(document) is True:
            yield said


def _ref_of(query: object) -> str | None:
    """Return the reference that all the feedback of a query is on, if it says so: there is an index of those."""
    match query:
        case {"$expr": {"$eq": [{"$getField": "weave_ref"}, {"$literal": str(ref)}]}}:
            return ref
        case _:
            return None


ROUTES: tuple[Route, ...] = (
    data_route("/feedback/create", create_feedback, FeedbackCreate, FeedbackCreated),
    data_route("/feedback/batch/create", create_feedback_batch, FeedbackBatch, FeedbackBatchAnswer),
    data_route("/feedback/replace", replace_feedback, FeedbackReplace, FeedbackCreated),
    control_route("/feedback/query", query_feedback, FeedbackQueryRequest, FeedbackAnswer),
    control_route("/feedback/purge", purge_feedback, FeedbackPurgeRequest, Empty),
)
