"""Addresses that events are posted to, and the messages that could not be delivered: `platform.webhooks`."""

from collections.abc import Iterable
from datetime import timedelta
from functools import partial
from typing import TypeVar

import attrs

from modelyard.domain.identity import Principal, check_name, require_host
from modelyard.errors import Conflict, Forbidden, InvalidInput, NotFound
from modelyard.parts.webhooks.alerts import look, set_rule
from modelyard.parts.webhooks.delivery import Deliveries, deliver_due
from modelyard.parts.webhooks.events import body
from modelyard.parts.webhooks.host_key import NONCE_BYTES, host_key
from modelyard.parts.webhooks.outbox import MAX_ENDPOINTS, message_to
from modelyard.parts.webhooks.records import (
    TEST,
    MessageStage,
    RequestAlerts,
    WebhookEndpoint,
    WebhookEvent,
    WebhookMessage,
)
from modelyard.parts.webhooks.target import target_of
from modelyard.platform.listing import Cursor, Listing
from modelyard.platform.owned import remove_owned
from modelyard.platform.paging import cursor_at, get_or_none, index_listing, listed_entity
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

MAX_HOURS = 24 * 30

T = TypeVar("T", WebhookEndpoint, WebhookMessage)


@attrs.frozen
class NewWebhook:
    """An endpoint and its secret, which is shown only here."""

    endpoint: WebhookEndpoint
    secret: str = attrs.field(repr=False)


class Webhooks:
    """The endpoints that a principal may see. Those of others look as if they did not exist.

    made = platform.webhooks.add("https://example.org/hook", events=["job.ended"])
    made.secret  # whsec_...
    """

    def __init__(self, runtime: Runtime, principal: Principal) -> None:
        self._runtime, self._principal = runtime, principal

    # ---- endpoints

    def add(
        self, url: str, *, events: Iterable[str] = (), trusted: bool = False, entity: str | None = None
    ) -> NewWebhook:
        """Post the events of an entity to a URL, those of some types (`WebhookEvent`) or all.

        Only the host may have a `trusted` one, which may be in the host's own network, and without TLS. Raises
        `InvalidInput`, `Forbidden`, and `Conflict` for more than 20, and where there is no key to make its secret of.
        """
        entity = self._principal.entity if entity is None else check_name(entity, "entity")
        self._require_whole(entity)
        if trusted:
            require_host(self._principal)
        target_of(url, trusted)
        wanted = _checked(events)
        key, nonce, now = host_key(self._runtime, make=True), self._new_nonce(), self._runtime.clock.now()
        endpoint = WebhookEndpoint(self._runtime.ids(), entity, url, wanted, nonce, key.fingerprint, now, trusted)
        self._runtime.store.transact(partial(_add, endpoint))
        return NewWebhook(endpoint, key.secret(endpoint.id, nonce))

    def get(self, webhook_id: str) -> WebhookEndpoint:
        """Return one endpoint. Raises `NotFound`."""
        return self._runtime.store.read(lambda snapshot: self._found(snapshot, WebhookEndpoint, webhook_id))

    def list(self, *, entity: str | None = None) -> Listing[WebhookEndpoint]:
        """List endpoints, the oldest first. Raises `Forbidden`."""
        entity = listed_entity(self._principal, entity, None)
        index, *where = ("all",) if entity is None else ("by_entity", entity)
        place = partial(self._place, WebhookEndpoint, index)
        return index_listing(self._runtime, WebhookEndpoint, index, *where, place=place, keep=self._sees)

    def remove(self, webhook_id: str) -> WebhookEndpoint:
        """Remove an endpoint, with its messages; with the last of an entity, its rule of alerts. Raises `NotFound`."""

        def step(tx: Tx) -> WebhookEndpoint:
            endpoint = self._found(tx, WebhookEndpoint, webhook_id)
            remove_owned(tx, self._runtime.records, endpoint)
            tx.remove(WebhookEndpoint, webhook_id)
            last = not tx.count(WebhookEndpoint, "by_entity", endpoint.entity)
            if last and get_or_none(tx, RequestAlerts, endpoint.entity) is not None:
                tx.remove(RequestAlerts, endpoint.entity)
            return endpoint

        return self._runtime.store.transact(step)

    def rotate(self, webhook_id: str, *, hours: float = 24.0) -> NewWebhook:
        """Make a new secret. For so many hours, messages have a signature by the old one too, unless that was made by
        another key of the host.

        Raises `NotFound`, `InvalidInput`, and `Conflict` if there is no key.
        """
        if not 0 <= hours <= MAX_HOURS:
            raise InvalidInput.at("hours", msg=f"must be from 0 to {MAX_HOURS}")
        self.get(webhook_id)
        key, nonce = host_key(self._runtime, make=True), self._new_nonce()
        until = self._runtime.clock.now() + timedelta(hours=hours)

        def step(tx: Tx) -> WebhookEndpoint:
            old = self._found(tx, WebhookEndpoint, webhook_id)
            same = old.key == key.fingerprint
            changed = attrs.evolve(
                old,
                nonce=nonce,
                key=key.fingerprint,
                previous_nonce=old.nonce if same else "",
                previous_until=until if same else None,
            )
            tx.replace(changed)
            return changed

        return NewWebhook(self._runtime.store.transact(step), key.secret(webhook_id, nonce))

    def _new_nonce(self) -> str:
        return self._runtime.randomness(NONCE_BYTES).hex()

    def test(self, webhook_id: str) -> WebhookMessage:
        """Post a message of the type `webhook.test`. An endpoint that was disabled is enabled. Raises `NotFound`."""

        def step(tx: Tx) -> WebhookMessage:
            endpoint = attrs.evolve(self._found(tx, WebhookEndpoint, webhook_id), disabled=False)
            tx.replace(endpoint)
            data = {"entity": endpoint.entity, "webhook_id": endpoint.id}
            message = message_to(self._runtime, endpoint, TEST, body(TEST, self._runtime.clock.now(), data))
            tx.add(message)
            return message

        return self._runtime.store.transact(step)

    def alert_of_failures(self, share: float = 0.1, *, at_least: int = 5, entity: str | None = None) -> RequestAlerts:
        """Post `requests.failed` when the part `share` of an entity's requests has failed within five minutes, and at
        least so many did; once in that time. Raises `InvalidInput`, `Forbidden`.
        """
        entity = self._principal.entity if entity is None else check_name(entity, "entity")
        self._require_whole(entity)
        return set_rule(self._runtime, entity, share, at_least)

    # ---- messages

    def waiting(self, *, entity: str | None = None) -> Listing[WebhookMessage]:
        """List the messages that wait to be delivered, or for their next attempt. Raises `Forbidden`."""
        return self._messages(MessageStage.WAITING, entity)

    def dead(self, *, entity: str | None = None) -> Listing[WebhookMessage]:
        """List the messages that could not be delivered. Raises `Forbidden`."""
        return self._messages(MessageStage.DEAD, entity)

    def redeliver(self, message_id: str) -> WebhookMessage:
        """Try a message again, under the same id: now if it waits, and as if it were new if it is dead. Raises
        `NotFound`.
        """

        def step(tx: Tx) -> WebhookMessage:
            old = self._found(tx, WebhookMessage, message_id)
            attempts = 0 if old.stage is MessageStage.DEAD else old.attempts
            now = self._runtime.clock.now()
            again = attrs.evolve(old, stage=MessageStage.WAITING, attempts=attempts, due_at=now)
            tx.replace(again)
            return again

        return self._runtime.store.transact(step)

    def deliver(self) -> Deliveries:
        """Post what is due, of every entity. Only the host may call this: served platforms and workers do it anyway."""
        require_host(self._principal)
        look(self._runtime)
        return deliver_due(self._runtime)

    # ---- what is seen

    def _messages(self, stage: MessageStage, entity: str | None) -> Listing[WebhookMessage]:
        entity = listed_entity(self._principal, entity, None)
        index, *where = ("by_stage", stage) if entity is None else ("by_entity_stage", entity, stage)
        place = partial(self._place, WebhookMessage, index)
        return index_listing(self._runtime, WebhookMessage, index, *where, place=place, keep=self._sees)

    def _require_whole(self, entity: str) -> None:
        """Raise `Forbidden` unless the caller may see all of an entity, whose events are of every project."""
        self._principal.require(entity)
        if self._principal.scope.projects is not None:
            raise Forbidden("this key has only some projects of the entity, and webhooks are for the events of all")

    def _sees(self, record: WebhookEndpoint | WebhookMessage) -> bool:
        scope = self._principal.scope
        return scope.covers(record.entity) and scope.projects is None

    def _found(self, snapshot: Snapshot, cls: type[T], id: str) -> T:
        record = get_or_none(snapshot, cls, id)
        if record is None or not self._sees(record):
            raise NotFound("Webhook" if cls is WebhookEndpoint else "Message", id)
        return record

    def _place(self, cls: type[T], index: str, id: str, snapshot: Snapshot) -> Cursor:
        return cursor_at(cls, index, self._found(snapshot, cls, id))


def _checked(events: Iterable[str]) -> tuple[str, ...]:
    wanted = tuple(dict.fromkeys(events))
    if isinstance(events, str) or not {*wanted} <= {*WebhookEvent}:
        raise InvalidInput.at("events", msg=f"must be some of {', '.join(WebhookEvent)}")
    return tuple(map(str, wanted))


def _add(endpoint: WebhookEndpoint, tx: Tx) -> None:
    if tx.count(WebhookEndpoint, "by_entity", endpoint.entity) >= MAX_ENDPOINTS:
        raise Conflict(f"the entity has {MAX_ENDPOINTS} webhooks already; remove one first")
    tx.add(endpoint)
