"""The administration of API keys, for the host's own keys."""

from datetime import timedelta
from functools import partial

from modelyard.formats.converter import structure_exactly
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.keys.schemas import KeyCreate, KeyCreated, KeyObject, KeyPage, key_object
from modelyard.http.listing import PAGING, listed_page
from modelyard.http.message import Response, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route

KEYS = "/v1/admin/keys"
KEY = f"{KEYS}/{{key_id}}"

_OF_ENTITY = Parameter("entity", description="Only those of this entity.")


def create_key(call: RouteCall) -> Response:
    """Make a key, and show its secret, this once."""
    call.require_host()
    body = structure_exactly(KeyCreate, call.body, "body")
    with problems_at("body"):
        new = call.platform.keys.create(
            body.entity,
            body.projects,
            name=body.name,
            expires_in=None if body.expires_in_days is None else timedelta(days=body.expires_in_days),
            requests_per_minute=body.requests_per_minute,
            concurrent_requests=body.concurrent_requests,
            host=body.host,
            prefix=body.prefix,
        )
    return json_response(KeyCreated.of(new))


def list_keys(call: RouteCall) -> Response:
    """List keys without their secrets, the oldest first."""
    call.require_host()
    with problems_at("query"):
        return json_response(KeyPage.of(listed_page(call, call.platform.keys.list(entity=call.one("entity")))))


def show_key(call: RouteCall) -> Response:
    """Show a key without its secret."""
    call.require_host()
    return json_response(key_object(call.platform.keys.get(call.params["key_id"])))


def revoke_key(call: RouteCall) -> Response:
    """Revoke a key for ever. Idempotent."""
    call.require_host()
    return json_response(key_object(call.platform.keys.revoke(call.params["key_id"])))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (
    _route("POST", KEYS, create_key, body=Body.CONTROL, request=KeyCreate, response=KeyCreated),
    _route("GET", KEYS, list_keys, query=(_OF_ENTITY, *PAGING[:2]), response=KeyPage),
    _route("GET", KEY, show_key, response=KeyObject, links={"key_id": "id"}),
    _route("POST", f"{KEY}/revoke", revoke_key, response=KeyObject),
)
