"""Takes messages that are due from the outbox, posts them, and records how that ended: each at least once."""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice, takewhile

import attrs

from modelyard.errors import ModelyardError
from modelyard.lazy import log
from modelyard.parts.webhooks.exchange import LONGEST, Post, PostOutcome
from modelyard.parts.webhooks.host_key import host_key
from modelyard.parts.webhooks.records import MessageStage, WebhookEndpoint, WebhookMessage
from modelyard.parts.webhooks.signing import signed_headers
from modelyard.parts.webhooks.target import Resolve, resolve, target_of
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

AT_ONCE, AT_ONCE_OF_ONE = 8, 4
"""How many messages are posted at a time, one to each endpoint; and how many of one entity."""

GLANCE = 1.0
"""Seconds after which who waits for answers looks for what is due meanwhile."""

LEASE = timedelta(seconds=4 * LONGEST)
"""How long who posts a message has it to itself."""

FIRST_PAUSE, FACTOR, LONGEST_PAUSE = 5.0, 4.0, 6 * 3600.0
"""Seconds until the second attempt, how much longer each further pause is, and the longest."""

MAX_ATTEMPTS = 10
"""After so many attempts, in about a day and a half, a message is dead."""

TOGETHER = 500
"""How many messages to an endpoint that does not answer fail with one, so that they need not be tried one by one."""

KEPT = timedelta(days=30)
"""How long a dead message is kept, once others of its entity die."""

GONE = 410

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_BEYOND = "~"
"""What an id is followed by in a cursor that is after all of its messages, and before those of the next."""


@attrs.frozen
class Deliveries:
    """How many messages were delivered, will be tried again, and are dead now."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


def deliver_due(runtime: Runtime, resolving: Resolve = resolve) -> Deliveries:
    """Post everything that is due."""
    posts = _Posts(runtime, resolving)
    try:
        posts.run()
    finally:
        posts.cut()
    return posts.total


@attrs.frozen
class _Refused:
    """A post that is not even begun."""

    outcome: PostOutcome
    ended: bool = attrs.field(default=True, init=False)

    def cut(self) -> PostOutcome:
        return self.outcome


@attrs.frozen
class _Posted:
    """A message on its way, until a moment of the monotonic clock."""

    message: WebhookMessage
    until: float
    post: Post | _Refused


class _Posts:
    """The messages on their way, by the endpoints that they go to. A slow endpoint keeps no other one waiting."""

    def __init__(self, runtime: Runtime, resolving: Resolve) -> None:
        self._runtime, self._resolving = runtime, resolving
        self._under_way: dict[str, _Posted] = {}
        self._answered = threading.Event()
        self.total = Deliveries()

    def run(self) -> None:
        """Post what is due, and what becomes due meanwhile."""
        while self._begin_more() or self._under_way:
            self._wait()
            for posted in [one for one in self._under_way.values() if self._has_ended(one)]:
                self._end(self._under_way.pop(posted.message.endpoint_id))

    def cut(self) -> None:
        for posted in self._under_way.values():
            posted.post.cut()

    def _begin_more(self) -> bool:
        busy = {endpoint_id: posted.message.entity for endpoint_id, posted in self._under_way.items()}
        if len(busy) == AT_ONCE or not self._runtime.store.read(partial(_chosen, self._runtime, busy)):
            return False
        claimed = self._runtime.store.transact(partial(_claim, self._runtime, busy))
        for message, endpoint in claimed:
            until = self._runtime.clock.monotonic() + LONGEST
            self._under_way[endpoint.id] = _Posted(message, until, self._begun(message, endpoint))
        return bool(claimed)

    def _begun(self, message: WebhookMessage, endpoint: WebhookEndpoint) -> Post | _Refused:
        if endpoint.disabled:
            return _Refused(PostOutcome(GONE, "the endpoint is disabled: it has answered 410"))
        body, now = message.body.encode(), self._runtime.clock.now()
        try:
            target = target_of(endpoint.url, endpoint.trusted)
            secrets = host_key(self._runtime).secrets(endpoint, endpoint.nonces_at(now))
        except ModelyardError as wrong:
            log.warning("webhook message %s cannot be sent: %s", message.id, wrong)
            return _Refused(PostOutcome(problem=str(wrong)))
        headers = {
            "content-type": "application/json",
            "user-agent": "modelyard-webhooks",
            **signed_headers(secrets, message.id, int(now.timestamp()), body),
        }
        post = Post(target, headers, body, endpoint.trusted, self._resolving, self._answered)
        post.begin()
        return post

    def _wait(self) -> None:
        """Wait until a post has ended, or it is time to look what else is due."""
        if not any(map(self._has_ended, self._under_way.values())):
            left = min(posted.until for posted in self._under_way.values()) - self._runtime.clock.monotonic()
            self._runtime.clock.wait(self._answered, min(left, GLANCE))
        self._answered.clear()

    def _has_ended(self, posted: _Posted) -> bool:
        return posted.post.ended or posted.until <= self._runtime.clock.monotonic()

    def _end(self, posted: _Posted) -> None:
        outcome = posted.post.cut()
        if not outcome.delivered:
            log.info("webhook message %s was not delivered: %s", posted.message.id, _problem(outcome))
        share = 0.5 + int.from_bytes(self._runtime.randomness(2)) / 0x1FFFE
        settle = partial(_settle, self._runtime, posted.message, outcome, share)
        stage = self._runtime.store.transact(settle)
        self.total = Deliveries(
            self.total.delivered + (stage is None),
            self.total.failed + (stage is MessageStage.WAITING),
            self.total.dead + (stage is MessageStage.DEAD),
        )


# ---- what is due -----------------------------------------------------------------------------------------------------


def _chosen(runtime: Runtime, busy: Mapping[str, str], snapshot: Snapshot) -> Sequence[WebhookMessage]:
    """Return messages to endpoints that are not `busy`, one to each; those first that have been due the longest."""
    now, of_entity = runtime.clock.now(), Counter(busy.values())
    chosen = []
    for message in sorted(_due(snapshot, now), key=lambda one: one.due_at):
        if message.endpoint_id not in busy and of_entity[message.entity] < AT_ONCE_OF_ONE:
            of_entity[message.entity] += 1
            chosen.append(message)
    return chosen[: AT_ONCE - len(busy)]


def _due(snapshot: Snapshot, now: datetime) -> Iterator[WebhookMessage]:
    """Yield the first message of each endpoint that has one that is due: by one index probe each, however many wait."""
    waiting = partial(snapshot.page, WebhookMessage, limit=1)
    if not any(first.due_at <= now for first in waiting("due", MessageStage.WAITING)):
        return
    after: tuple[object, ...] | None = None
    while page := waiting("due_by_endpoint", MessageStage.WAITING, after=after):
        first = page[0]
        if first.due_at <= now:
            yield first
        after = (first.endpoint_id + _BEYOND, first.due_at, first.seq)


def _claim(runtime: Runtime, busy: Mapping[str, str], tx: Tx) -> Sequence[tuple[WebhookMessage, WebhookEndpoint]]:
    """Take messages. Others leave them alone for the lease."""
    claimed, due_at = [], runtime.clock.now() + LEASE
    for message in _chosen(runtime, busy, tx):
        taken = attrs.evolve(message, attempts=message.attempts + 1, due_at=due_at)
        tx.replace(taken)
        claimed.append((taken, tx.get(WebhookEndpoint, message.endpoint_id)))
    return claimed


# ---- how a post has ended --------------------------------------------------------------------------------------------


def _settle(
    runtime: Runtime, message: WebhookMessage, outcome: PostOutcome, share: float, tx: Tx
) -> MessageStage | None:
    """Record how a post has ended, unless it failed and another has taken the message since."""
    found = get_or_none(tx, WebhookMessage, message.id)
    if outcome.delivered:
        if found is not None:
            tx.remove(WebhookMessage, message.id)
        return None
    if found is None or (found.attempts, found.stage) != (message.attempts, MessageStage.WAITING):
        return MessageStage.WAITING
    if outcome.status == GONE:
        tx.replace(attrs.evolve(tx.get(WebhookEndpoint, message.endpoint_id), disabled=True))
    now = runtime.clock.now()
    others = _others_due(tx, message, now) if not outcome.status else []
    for other in others:
        _fail(tx, attrs.evolve(other, attempts=other.attempts + 1), outcome, share, now)
    return _fail(tx, found, outcome, share, now)


def _others_due(tx: Tx, message: WebhookMessage, now: datetime) -> Sequence[WebhookMessage]:
    after = (message.endpoint_id, _LONG_AGO, 0)
    waiting = iter_index(tx, WebhookMessage, "due_by_endpoint", MessageStage.WAITING, after=after)
    due = takewhile(lambda one: one.endpoint_id == message.endpoint_id and one.due_at <= now, waiting)
    return [one for one in islice(due, TOGETHER) if one.id != message.id]


def _fail(tx: Tx, message: WebhookMessage, outcome: PostOutcome, share: float, now: datetime) -> MessageStage:
    """Let a message wait for its next attempt, longer each time; after the last it is dead."""
    is_last = outcome.status == GONE or message.attempts >= MAX_ATTEMPTS
    stage = MessageStage.DEAD if is_last else MessageStage.WAITING
    pause = min(FIRST_PAUSE * FACTOR ** (message.attempts - 1), LONGEST_PAUSE) * share
    due_at = now + timedelta(seconds=pause)
    tx.replace(attrs.evolve(message, stage=stage, due_at=due_at, problem=_problem(outcome)))
    if is_last:
        _forget_old(tx, message.entity, now)
    return stage


def _forget_old(tx: Tx, entity: str, now: datetime) -> None:
    """Remove some dead messages that are old, so that they do not become more and more."""
    for old in tx.page(WebhookMessage, "by_entity_stage", entity, MessageStage.DEAD, limit=AT_ONCE):
        if old.created_at <= now - KEPT:
            tx.remove(WebhookMessage, old.id)


def _problem(outcome: PostOutcome) -> str:
    return outcome.problem or f"it answered {outcome.status}"
