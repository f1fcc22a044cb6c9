"""Addresses that events are posted to, and the messages that wait for them."""

from datetime import UTC, datetime
from enum import StrEnum

import attrs

from modelyard.domain.record import KEPT, Index, Record, sequence_field


class WebhookEvent(StrEnum):
    """The types of events that are posted."""

    JOB_ENDED = "job.ended"
    RUN_ENDED = "run.ended"
    ALIAS_MOVED = "alias.moved"
    BUDGET_WARNED = "budget.warned"
    REQUESTS_FAILED = "requests.failed"
    RATE_LIMIT_HIT = "rate_limit.hit"


TEST = "webhook.test"
"""The type of the message that tries an endpoint."""


@attrs.frozen
class WebhookEndpoint:
    """An address of an entity, and the types of events that are posted there; none means all.

    A `trusted` one may be in the host's own network and without TLS. Its secret is made of its `nonce` by the key of
    the host whose fingerprint is `key`, and is not stored. Until `previous_until`, the secret of `previous_nonce` signs
    too. A `disabled` one has refused for ever, with status 410.
    """

    id: str
    entity: str
    url: str
    events: tuple[str, ...]
    nonce: str = attrs.field(repr=False)
    key: str
    created_at: datetime
    trusted: bool = False
    previous_nonce: str = attrs.field(default="", repr=False)
    previous_until: datetime | None = None
    disabled: bool = False
    seq: int = sequence_field()

    def nonces_at(self, now: datetime) -> tuple[str, ...]:
        """Return the nonces of the secrets that sign at a time."""
        rotating = self.previous_until is not None and now < self.previous_until
        return (self.nonce, self.previous_nonce) if rotating else (self.nonce,)

    def wants(self, type: str) -> bool:
        """Return whether events of a type are posted there."""
        return not self.disabled and (not self.events or type in self.events or type == TEST)


@attrs.frozen
class RequestAlerts:
    """The rule by which an entity is told that its requests fail, and what happened in its window, which begins `since`
    then: how many requests `failed`, were refused by a rate limit (`limited`), and what it was `told` of already.

    It is told if at least `at_least` failed, and they are the part `share` of all.
    """

    entity: str
    share: float = 0.1
    at_least: int = 5
    since: datetime = datetime(1970, 1, 1, tzinfo=UTC)
    failed: int = 0
    limited: int = 0
    told: tuple[str, ...] = ()


class MessageStage(StrEnum):
    """Where a message is. One that was delivered is gone."""

    WAITING = "waiting"
    DEAD = "dead"


@attrs.frozen
class WebhookMessage:
    """A message in the outbox: its `body` is posted as it is, at `due_at` or later.

    Who delivers it moves `due_at` first, so that no other does meanwhile. `attempts` counts posts of it, and those of
    others to the same endpoint that were not answered while it was due; `problem` is why the last failed.
    """

    id: str
    endpoint_id: str
    entity: str
    type: str
    body: str
    created_at: datetime
    due_at: datetime
    stage: MessageStage = MessageStage.WAITING
    attempts: int = 0
    problem: str = ""
    seq: int = sequence_field()


RECORDS = (
    Record(
        WebhookEndpoint,
        "webhook_endpoints",
        ("id",),
        indexes={"all": Index(()), "by_entity": Index(("entity",))},
        sequence="seq",
        domain=("entity", "entity"),
    ),
    Record(
        RequestAlerts,
        "request_alerts",
        ("entity",),
        indexes={"by_entity": Index(("entity",), ("since",))},
        domain=("entity", "entity"),
    ),
    Record(
        WebhookMessage,
        "webhook_messages",
        ("id",),
        indexes={
            "by_stage": Index(("stage",)),
            "by_entity": Index(("entity",)),
            "by_entity_stage": Index(("entity", "stage")),
            "by_endpoint": Index(("endpoint_id",)),
            "due": Index(("stage",), ("due_at",)),
            "due_by_endpoint": Index(("stage",), ("endpoint_id", "due_at")),
        },
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={WebhookEndpoint: "by_endpoint"},
        texts=KEPT,
    ),
)
