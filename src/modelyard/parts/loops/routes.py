"""The route that creates a loop."""

from collections.abc import Sequence
from typing import cast

from modelyard.http.body_schemas import resources_of
from modelyard.http.idempotency import idempotency_key
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall
from modelyard.http.training.routes import config_of, job_route
from modelyard.http.training.schemas import job_object, options_of, structured, unsupported
from modelyard.parts.loops.config import LoopOptions, method_of
from modelyard.parts.loops.schemas import LoopCreate, LoopOptionsBody


def create_training_loop(call: RouteCall) -> Response:
    """Create a training loop: a job that samples, judges, trains and validates, round after round."""
    config = call.body.get("config") if isinstance(call.body, dict) else None
    kind = method_of(config.get("teacher") if isinstance(config, dict) else None)
    key, own = idempotency_key(call), config_of(call, kind, call.body)
    problems = unsupported(call.body, "config", LoopOptionsBody, own)
    body = structured(LoopCreate, call.body, problems)
    with problems_at("body", "config", model="model_id", tasks="tasks", held_out="held_out", reward="reward"):
        call.platform.jobs.require_worker()
        job = call.platform.training.loop(
            body.model_id.lower(),
            body.tasks,
            body.reward,
            held_out=body.held_out,
            idempotency_key=key,
            needs=None if body.needs is None else resources_of(body.needs),
            **cast("LoopOptions", options_of(body.config, call.body.get("config"), own)),
        )
    return json_response(job_object(job.refresh()))


ROUTES: Sequence[Route] = (
    job_route("/v1/preview/training-loops", create_training_loop, body=Body.CONTROL, request=LoopCreate),
)
