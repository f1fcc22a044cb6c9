"""The catalogue as model routers read it."""

from typing import Any

import attrs

from modelyard.http.interface import Auth
from modelyard.http.interfaces import BASE
from modelyard.http.message import Response, json_response
from modelyard.http.route import Route, RouteCall
from modelyard.parts.routers.service import Routers

PATH = "/inference/router/models"


@attrs.frozen
class ProviderListing:
    """Every model in the provider format 2.4, each a document of its own."""

    data: list[dict[str, Any]]


def list_router_models(call: RouteCall) -> Response:
    """List every model as model routers read it, in the provider format 2.4."""
    return json_response(call.platform.part(Routers).document())


ROUTES = (Route("GET", PATH, BASE, Auth.PUBLIC, list_router_models, response=ProviderListing),)
