"""The routes of batches: `/batches` of the chat format's own clients, on both of their bases."""

from functools import partial

from modelyard.formats.converter import structure_exactly
from modelyard.http.auth import attribution
from modelyard.http.idempotency import IDEMPOTENCY_KEY, idempotency_key
from modelyard.http.interface import Auth
from modelyard.http.listing import NEWEST_FIRST, requested_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Route, RouteCall, documented_route
from modelyard.parts.batches.interface import BATCHES
from modelyard.parts.batches.schemas import BatchCreate, BatchObject, BatchPage, batch_object

BASES = ("/v1", "/inference/v1")


def create_batch(call: RouteCall) -> Response:
    """Start a batch: a job that answers every line of a file of requests."""
    key, place = idempotency_key(call), attribution(call.headers, call.principal)
    body = structure_exactly(BatchCreate, call.body, "body")
    with problems_at("body"):
        batch = call.platform.compat.batches.create(
            body.input_file_id,
            endpoint=body.endpoint,
            metadata=body.metadata or {},
            output_expires_after=None if body.output_expires_after is None else body.output_expires_after.delta(),
            entity=place.entity,
            project=place.project or None,
            idempotency_key=key,
            require_worker=True,
        )
    return json_response(batch_object(batch))


def list_batches(call: RouteCall) -> Response:
    """List batches, the newest first."""
    place = attribution(call.headers, call.principal)
    listing = partial(call.platform.compat.batches.list, entity=place.entity, project=place.project or None)
    return json_response(BatchPage.of(requested_page(call, lambda order: listing(order=order), "desc")))


def show_batch(call: RouteCall) -> Response:
    """Show a batch."""
    return json_response(batch_object(call.platform.compat.batches.get(call.params["batch_id"])))


def cancel_batch(call: RouteCall) -> Response:
    """Cancel a batch; what it has answered stays in its output file."""
    return json_response(batch_object(call.platform.compat.batches.cancel(call.params["batch_id"])))


_route = partial(documented_route, BATCHES, Auth.BEARER, response=BatchObject)
_ID = {"batch_id": "id"}


def _routes(base: str) -> tuple[Route, ...]:
    batches = f"{base}/batches"
    return (
        _route(
            "POST", batches, create_batch, body=Body.CONTROL, request=BatchCreate, headers=(IDEMPOTENCY_KEY,), links=_ID
        ),
        documented_route(BATCHES, Auth.BEARER, "GET", batches, list_batches, query=NEWEST_FIRST, response=BatchPage),
        _route("GET", f"{batches}/{{batch_id}}", show_batch, links=_ID),
        _route("POST", f"{batches}/{{batch_id}}/cancel", cancel_batch),
    )


ROUTES: tuple[Route, ...] = tuple(route for base in BASES for route in _routes(base))
