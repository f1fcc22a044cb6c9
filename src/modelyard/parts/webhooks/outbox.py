"""Puts messages into the outbox, in the transaction in which something happens."""

from typing import Any

from modelyard.parts.webhooks.events import body_of, type_of
from modelyard.parts.webhooks.records import WebhookEndpoint, WebhookMessage
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MAX_ENDPOINTS = 20
"""How many endpoints an entity may have."""


def on_event(runtime: Runtime, tx: Tx, event: Any) -> None:
    """Add a message for each endpoint that wants the event."""
    named = type_of(event)
    if named is None:
        return
    for endpoint in wanting(tx, event.entity, named):
        tx.add(message_to(runtime, endpoint, named, body_of(event, runtime.clock.now())))


def wanting(snapshot: Snapshot, entity: str, type: str) -> list[WebhookEndpoint]:
    """Return the endpoints of an entity that want events of a type."""
    found = snapshot.page(WebhookEndpoint, "by_entity", entity, limit=MAX_ENDPOINTS)
    return [endpoint for endpoint in found if endpoint.wants(type)]


def message_to(runtime: Runtime, endpoint: WebhookEndpoint, type: str, body: str) -> WebhookMessage:
    """Return a message that is due now."""
    now = runtime.clock.now()
    return WebhookMessage(runtime.ids(), endpoint.id, endpoint.entity, type, body, now, now)
