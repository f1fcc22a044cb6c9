"""The catalogue (specification 4.1) and the model lists of the chat interfaces."""

import hashlib
from weakref import WeakKeyDictionary

import attrs

from modelyard.http.catalogue.schemas import OWNER, CatalogueBody, ListedModel, ModelList
from modelyard.http.error_responses import ERROR
from modelyard.http.headers import Header
from modelyard.http.interface import Auth, Interface
from modelyard.http.interfaces import BASE, INFERENCE, TRAINING
from modelyard.http.message import JSON_HEADER, Response, dump, json_response
from modelyard.http.route import Route, RouteCall
from modelyard.platform.platform import Platform

PATH = "/inference/analysis/partner/models"
_CACHEABLE: Header = ("cache-control", "public, max-age=0, must-revalidate")


def show_catalogue(call: RouteCall) -> Response:
    """Return the catalogue, or 304 to a client that has it. Its bytes are cached until it changes."""
    listing = _listing(call.platform)
    headers = [("etag", listing.etag), _CACHEABLE]
    if _knows(call.headers.text(b"if-none-match") or "", listing.etag):
        return Response(304, headers, b"")
    return Response(200, [JSON_HEADER, *headers], listing.body)


@attrs.frozen
class _Listing:
    version: object
    body: bytes
    etag: str


_LISTINGS: WeakKeyDictionary[Platform, _Listing] = WeakKeyDictionary()


def _listing(platform: Platform) -> _Listing:
    version, known = platform.catalogue.version, _LISTINGS.get(platform)
    if known is None or known.version != version:
        body = dump(CatalogueBody.of(platform.catalogue.list()))
        known = _LISTINGS[platform] = _Listing(version, body, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return known


def _knows(if_none_match: str, etag: str) -> bool:
    return if_none_match.strip() == "*" or etag in (tag.strip().removeprefix("W/") for tag in if_none_match.split(","))


# ---- the chat format's own list ------------------------------------------------------------------------------------


def list_models(call: RouteCall) -> Response:
    offered = map(ListedModel.of, call.platform.catalogue.list())
    trained = map(ListedModel.of_trained, call.platform.models.list())
    return json_response(ModelList("list", (*offered, *trained)))


def show_model(call: RouteCall) -> Response:
    name = call.params["id"]
    found = call.platform.catalogue.resolve(name)
    return json_response(ListedModel(name, "model", found.entry.created, OWNER))


def _model_routes(base: str, interface: Interface) -> tuple[Route, ...]:
    return (
        Route(
            "GET",
            f"{base}/models",
            interface,
            Auth.BEARER,
            list_models,
            response=ModelList,
            summary="List the models that the caller may use.",
            error_format=ERROR,
        ),
        Route(
            "GET",
            f"{base}/models/{{id...}}",
            interface,
            Auth.BEARER,
            show_model,
            response=ListedModel,
            summary="Show one model that the caller may use.",
            error_format=ERROR,
        ),
    )


ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        PATH,
        BASE,
        Auth.PUBLIC,
        show_catalogue,
        response=CatalogueBody,
        statuses=(200, 304),
        summary="List every model of the catalogue.",
    ),
    *_model_routes("/v1", TRAINING),
    *_model_routes("/inference/v1", INFERENCE),
)
