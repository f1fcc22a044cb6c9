"""The routes of fine-tuning as the chat format's own clients ask for it, and the deletion of what they tune."""

from functools import partial

from modelyard.formats.converter import structure_exactly
from modelyard.http.auth import attribution
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.listing import NEWEST_FIRST, PAGING, listed_page, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.fine_tuning.interface import FINE_TUNING
from modelyard.parts.fine_tuning.schemas import (
    FineTuningCheckpointPage,
    FineTuningCreate,
    FineTuningEventPage,
    FineTuningJobObject,
    FineTuningJobPage,
    TunedModelDeleted,
    checkpoint_object,
    job_object,
    requested,
)

BASES = ("/v1", "/inference/v1")


def create_fine_tuning_job(call: RouteCall) -> Response:
    """Create a fine-tuning job: a training job on an uploaded file."""
    key, place = idempotency_key(call), attribution(call.headers, call.principal)
    body = structure_exactly(FineTuningCreate, call.body, "body")
    with problems_at("body"):
        job = call.platform.compat.fine_tuning.create(
            requested(body),
            entity=place.entity,
            project=place.project or None,
            idempotency_key=key,
            require_worker=True,
        )
    return json_response(job_object(job))


def list_fine_tuning_jobs(call: RouteCall) -> Response:
    """List fine-tuning jobs, the newest first: every training job but those of a loop's rounds."""
    place = attribution(call.headers, call.principal)
    metadata = {
        name.removeprefix("metadata[").removesuffix("]"): values[-1]
        for name, values in call.query.items()
        if name.startswith("metadata[") and name.endswith("]")
    }
    listing = partial(
        call.platform.compat.fine_tuning.list, metadata=metadata, entity=place.entity, project=place.project or None
    )
    return json_response(FineTuningJobPage.of(requested_page(call, lambda order: listing(order=order), "desc")))


def show_fine_tuning_job(call: RouteCall) -> Response:
    """Show a fine-tuning job."""
    return json_response(job_object(call.platform.compat.fine_tuning.get(call.params["fine_tuning_job_id"])))


def list_fine_tuning_events(call: RouteCall) -> Response:
    """List the events of a fine-tuning job, the newest first."""
    events = partial(call.platform.compat.fine_tuning.events, call.params["fine_tuning_job_id"])
    return json_response(FineTuningEventPage.of(requested_page(call, lambda order: events(order=order), "desc")))


def list_fine_tuning_checkpoints(call: RouteCall) -> Response:
    """List the checkpoints that a fine-tuning job has made, the newest first."""
    job_id = call.params["fine_tuning_job_id"]
    name = call.platform.compat.fine_tuning.model_name(job_id)
    page = listed_page(call, call.platform.compat.fine_tuning.checkpoints(job_id))
    shown = page.map(lambda checkpoint: checkpoint_object(checkpoint, job_id, name))
    return json_response(FineTuningCheckpointPage.of(shown))


def cancel_fine_tuning_job(call: RouteCall) -> Response:
    """Cancel a fine-tuning job: at once while it waits, at its next step while it runs."""
    return json_response(job_object(call.platform.compat.fine_tuning.cancel(call.params["fine_tuning_job_id"])))


def pause_fine_tuning_job(call: RouteCall) -> Response:
    """Pause a fine-tuning job: at once while it waits, at its next step while it runs. Idempotent."""
    return json_response(job_object(call.platform.compat.fine_tuning.pause(call.params["fine_tuning_job_id"])))


def resume_fine_tuning_job(call: RouteCall) -> Response:
    """Continue a fine-tuning job from its last saved state: a paused one, or a new job for one that a budget ended."""
    ended = call.platform.compat.fine_tuning.get(call.params["fine_tuning_job_id"])
    call.platform.jobs.require_worker()
    return json_response(job_object(call.platform.compat.fine_tuning.resume(ended.id)))


def delete_model(call: RouteCall) -> Response:
    """Delete a trained model by its name, or with a step that checkpoint of it."""
    call.platform.compat.fine_tuning.delete_model(call.params["id"])
    return json_response(TunedModelDeleted(call.params["id"], "model", True))


_route = partial(documented_route, FINE_TUNING, Auth.BEARER)
_METADATA = Parameter("metadata[key]", description="Only those with this value of the metadata's `key`.")
_ID = {"fine_tuning_job_id": "id"}


def _routes(base: str) -> tuple[Route, ...]:
    jobs = f"{base}/fine_tuning/jobs"
    job = f"{jobs}/{{fine_tuning_job_id}}"
    one = partial(_route, response=FineTuningJobObject)
    return (
        one(
            "POST",
            jobs,
            create_fine_tuning_job,
            body=Body.CONTROL,
            request=FineTuningCreate,
            headers=(IDEMPOTENCY_KEY,),
            links=_ID,
        ),
        _route("GET", jobs, list_fine_tuning_jobs, query=(*NEWEST_FIRST, _METADATA), response=FineTuningJobPage),
        one("GET", job, show_fine_tuning_job, links=_ID),
        _route("GET", f"{job}/events", list_fine_tuning_events, query=NEWEST_FIRST, response=FineTuningEventPage),
        _route(
            "GET",
            f"{job}/checkpoints",
            list_fine_tuning_checkpoints,
            query=PAGING[:2],
            response=FineTuningCheckpointPage,
        ),
        one("POST", f"{job}/cancel", cancel_fine_tuning_job),
        one("POST", f"{job}/pause", pause_fine_tuning_job),
        one("POST", f"{job}/resume", resume_fine_tuning_job, links=_ID),
        _route("DELETE", f"{base}/models/{{id...}}", delete_model, response=TunedModelDeleted),
    )


ROUTES: tuple[Route, ...] = tuple(route for base in BASES for route in _routes(base))
