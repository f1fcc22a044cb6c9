"""The routes of aliases: promoting checkpoints, and taking that back."""

from typing import Any

from modelyard.domain.paging import Page
from modelyard.domain.promotion import check_alias
from modelyard.http.message import Response, json_response
from modelyard.http.models.schemas import (
    AliasPage,
    PromotionCreate,
    PromotionObject,
    PromotionPage,
    alias_object,
    promotion_asked,
    promotion_object,
)
from modelyard.http.route import Auth, Body, Call, Handler, Interface, Route
from modelyard.http.training.request_schemas import places
from modelyard.http.training.response_schemas import page_object
from modelyard.http.training.routes import MODEL, PAGING, paging

ALIASES = f"{MODEL}/aliases"
ALIAS = f"{ALIASES}/{{alias}}"


def list_aliases(call: Call) -> Response:
    """List the aliases of a model by name."""
    aliases = call.platform.models.aliases(call.params["model_id"])
    return json_response(page_object(Page(aliases, has_more=False), alias_object))


def promote(call: Call) -> Response:
    """Let an alias point to a checkpoint, if that meets what is required; again, nothing changes."""
    body = promotion_asked(call.body)
    with places("path"):
        alias = check_alias(call.params["alias"])
    with places("body", "require"):
        require = None if body.require is None else body.require.not_worse()
        made = call.platform.models.promote(call.params["model_id"], body.step, alias, require=require)
    return json_response(promotion_object(made))


def roll_back(call: Call) -> Response:
    """Let an alias point to where it pointed before."""
    with places("path"):
        made = call.platform.models.rollback(call.params["model_id"], call.params["alias"])
    return json_response(promotion_object(made))


def remove_alias(call: Call) -> Response:
    """Let an alias point to nothing; its history stays."""
    with places("path"):
        made = call.platform.models.unalias(call.params["model_id"], call.params["alias"])
    return json_response(promotion_object(made))


def list_promotions(call: Call) -> Response:
    """List every change of an alias in order."""
    page = call.platform.models.promotions(call.params["model_id"], call.params["alias"], **paging(call))
    return json_response(page_object(page, promotion_object))


def _route(method: str, path: str, handler: Handler, **more: Any) -> Route:
    summary = (handler.__doc__ or "").partition("\n")[0]
    return Route(method, path, Interface.TRAINING, Auth.BEARER, handler, summary=summary, **more)


ROUTES: tuple[Route, ...] = (
    _route("GET", ALIASES, list_aliases, response=AliasPage),
    _route("PUT", ALIAS, promote, body=Body.CONTROL, request=PromotionCreate, response=PromotionObject),
    _route("DELETE", ALIAS, remove_alias, response=PromotionObject),
    _route("POST", f"{ALIAS}/rollback", roll_back, response=PromotionObject),
    _route("GET", f"{ALIAS}/promotions", list_promotions, query=PAGING, response=PromotionPage),
)
