"""The deletion of an entity, for the host's own keys."""

from functools import partial
from typing import Literal

import attrs

from modelyard.errors import InvalidInput
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.message import Response, json_response
from modelyard.http.route import Parameter, Route, RouteCall, documented_route

ENTITY = "/v1/admin/entities/{entity}"

_LEDGER = Parameter(
    "ledger", description="keep, if what it used and what that cost is to stay; else delete, the default."
)


@attrs.frozen
class EntityDeleted:
    """An entity all whose data were deleted, and how many records those were."""

    entity: str
    object: Literal["entity.deleted"]
    deleted: bool
    records: int


def delete_entity(call: RouteCall) -> Response:
    """Delete all data of an entity for ever: keys, models, jobs, runs, texts, files, and its ledger. Idempotent."""
    call.require_host()
    entity, ledger = call.params["entity"], call.one("ledger") or "delete"
    if ledger not in ("keep", "delete"):
        raise InvalidInput.at("query", "ledger", msg="must be keep or delete")
    removed = call.platform.delete_entity(entity, keep_ledger=ledger == "keep")
    return json_response(EntityDeleted(entity, "entity.deleted", True, removed))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)

ROUTES: tuple[Route, ...] = (_route("DELETE", ENTITY, delete_entity, query=(_LEDGER,), response=EntityDeleted),)
