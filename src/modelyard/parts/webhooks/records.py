"""Addresses that events are posted to, and the messages that wait for them."""

from datetime import datetime
from enum import StrEnum

import attrs

from modelyard.domain.record import Index, Record, sequence_field


class WebhookEvent(StrEnum):
    """The types of events."""

    JOB_ENDED = "job.ended"
    RUN_ENDED = "run.ended"
    ALIAS_MOVED = "alias.moved"
    BUDGET_WARNED = "budget.warned"


TEST = "webhook.test"
"""The type of the message that tries an endpoint."""


@attrs.frozen
class WebhookEndpoint:
    """An address of an entity, and the types of events that are posted there; none means all.

    A `trusted` one may be in the host's own network and without TLS. `secret` signs; until `previous_until`, so does
    `previous_secret`. A `disabled` one has refused for ever, with status 410.
    """

    id: str
    entity: str
    url: str
    events: tuple[str, ...]
    secret: str = attrs.field(repr=False)
    created_at: datetime
    trusted: bool = False
    previous_secret: str = attrs.field(default="", repr=False)
    previous_until: datetime | None = None
    disabled: bool = False
    seq: int = sequence_field()

    def secrets_at(self, now: datetime) -> tuple[str, ...]:
        """Return the secrets that sign at a time."""
        rotating = self.previous_until is not None and now < self.previous_until
        return (self.secret, self.previous_secret) if rotating else (self.secret,)

    def wants(self, type: str) -> bool:
        """Return whether events of a type are posted there."""
        return not self.disabled and (not self.events or type in self.events or type == TEST)


class MessageStage(StrEnum):
    """Where a message is. One that was delivered is gone."""

    WAITING = "waiting"
    DEAD = "dead"


@attrs.frozen
class WebhookMessage:
    """A message in the outbox: its `body` is posted as it is, at `due_at` or later.

    Who delivers it moves `due_at` first, so that no other does meanwhile. `attempts` counts posts, `problem` is why the
    last failed.
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
        WebhookMessage,
        "webhook_messages",
        ("id",),
        indexes={
            "by_stage": Index(("stage",)),
            "by_entity": Index(("entity",)),
            "by_entity_stage": Index(("entity", "stage")),
            "by_endpoint": Index(("endpoint_id",)),
            "due": Index(("stage",), ("due_at",)),
        },
        sequence="seq",
        domain=("entity", "entity"),
        erased_with={WebhookEndpoint: "by_endpoint"},
    ),
)
