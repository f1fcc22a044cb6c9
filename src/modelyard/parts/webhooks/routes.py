"""Webhooks over HTTP, for every key that has the whole of an entity."""

from datetime import datetime
from functools import partial

import attrs

from modelyard.formats.constraints import NAME, Length
from modelyard.formats.converter import structure
from modelyard.http.interface import Auth
from modelyard.http.interfaces import OPERATIONS
from modelyard.http.listing import PAGING, listed_page, page_class
from modelyard.http.message import Response, answering, json_response, problems_at
from modelyard.http.route import Body, Parameter, Route, RouteCall, documented_route
from modelyard.parts.webhooks.records import MessageStage
from modelyard.parts.webhooks.service import NewWebhook, Webhooks
from modelyard.parts.webhooks.target import MAX_URL

WEBHOOKS = "/v1/webhooks"
WEBHOOK = f"{WEBHOOKS}/{{webhook_id}}"
DEAD = f"{WEBHOOKS}/dead"

_LISTED = (Parameter("entity", description="Only those of this entity."), *PAGING[:2])


@attrs.frozen
class WebhookCreate:
    """The body that adds an endpoint: `events` are types, none means all. Only the host may have a `trusted` one."""

    url: str = attrs.field(validator=Length(1, MAX_URL))
    events: tuple[str, ...] = attrs.field(default=(), validator=Length(0, 20))
    entity: str | None = attrs.field(default=None, validator=attrs.validators.optional(NAME))
    trusted: bool = False


@attrs.frozen
class WebhookObject:
    """An endpoint without its secret."""

    id: str
    entity: str
    url: str
    events: tuple[str, ...]
    trusted: bool
    disabled: bool
    created_at: datetime
    previous_until: datetime | None


@attrs.frozen
class WebhookWithSecret:
    """An endpoint and its secret, which is shown only now."""

    webhook: WebhookObject
    secret: str = attrs.field(repr=False)


@attrs.frozen
class WebhookMessageObject:
    """A message. Its `problem` is why its last attempt failed."""

    id: str
    webhook_id: str
    entity: str
    type: str
    stage: MessageStage
    attempts: int
    problem: str
    created_at: datetime


webhook_object = answering(WebhookObject)
message_object = answering(WebhookMessageObject, webhook_id="endpoint_id")
WebhookPage = page_class("WebhookPage", WebhookObject, webhook_object, "A page of endpoints.")
WebhookMessagePage = page_class("WebhookMessagePage", WebhookMessageObject, message_object, "A page of messages.")


def _of(call: RouteCall) -> Webhooks:
    return call.platform.part(Webhooks)


def _with_secret(made: NewWebhook) -> Response:
    return json_response(WebhookWithSecret(webhook_object(made.endpoint), made.secret))


def add_webhook(call: RouteCall) -> Response:
    """Post events to a URL from now on, and show the secret, this once."""
    body = structure(WebhookCreate, call.body, "body")
    with problems_at("body"):
        made = _of(call).add(body.url, events=body.events, trusted=body.trusted, entity=body.entity)
    return _with_secret(made)


def list_webhooks(call: RouteCall) -> Response:
    """List endpoints without their secrets, the oldest first."""
    with problems_at("query"):
        return json_response(WebhookPage.of(listed_page(call, _of(call).list(entity=call.one("entity")))))


def show_webhook(call: RouteCall) -> Response:
    """Show an endpoint without its secret."""
    return json_response(webhook_object(_of(call).get(call.params["webhook_id"])))


def remove_webhook(call: RouteCall) -> Response:
    """Remove an endpoint, with the messages that wait for it."""
    return json_response(webhook_object(_of(call).remove(call.params["webhook_id"])))


def rotate_webhook(call: RouteCall) -> Response:
    """Make a new secret, and show it, this once. For a day messages are signed by the old one too."""
    return _with_secret(_of(call).rotate(call.params["webhook_id"]))


def test_webhook(call: RouteCall) -> Response:
    """Post a test message to an endpoint. One that was disabled is enabled."""
    return json_response(message_object(_of(call).test(call.params["webhook_id"])))


def list_dead_messages(call: RouteCall) -> Response:
    """List the messages that could not be delivered, the oldest first."""
    with problems_at("query"):
        return json_response(WebhookMessagePage.of(listed_page(call, _of(call).dead(entity=call.one("entity")))))


def redeliver_message(call: RouteCall) -> Response:
    """Try a message again, under the same id."""
    return json_response(message_object(_of(call).redeliver(call.params["message_id"])))


_route = partial(documented_route, OPERATIONS, Auth.BEARER)
_post = partial(_route, "POST")

ROUTES: tuple[Route, ...] = (
    _route("GET", WEBHOOKS, list_webhooks, query=_LISTED, response=WebhookPage),
    _post(
        WEBHOOKS,
        add_webhook,
        body=Body.CONTROL,
        request=WebhookCreate,
        response=WebhookWithSecret,
    ),
    _route("GET", DEAD, list_dead_messages, query=_LISTED, response=WebhookMessagePage),
    _post(f"{DEAD}/{{message_id}}/redeliver", redeliver_message, response=WebhookMessageObject),
    _route("GET", WEBHOOK, show_webhook, response=WebhookObject),
    _route("DELETE", WEBHOOK, remove_webhook, response=WebhookObject),
    _post(f"{WEBHOOK}/rotate", rotate_webhook, response=WebhookWithSecret),
    _post(f"{WEBHOOK}/test", test_webhook, response=WebhookMessageObject),
)
