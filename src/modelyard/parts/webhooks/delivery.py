"""Takes messages that are due from the outbox, posts them, and records how that ended: each at least once."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import islice, takewhile

import attrs

from modelyard.errors import InvalidInput
from modelyard.lazy import log
from modelyard.parts.webhooks.exchange import LONGEST, Post, PostOutcome
from modelyard.parts.webhooks.records import MessageStage, WebhookEndpoint, WebhookMessage
from modelyard.parts.webhooks.signing import signed_headers
from modelyard.parts.webhooks.target import Resolve, resolve, target_of
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

AT_ONCE = 8
"""How many messages are posted at a time, one to each endpoint."""

LOOKED_AT = 5000
"""How many messages that are due are looked at to find as many."""

LEASE = timedelta(seconds=4 * LONGEST)
"""How long who posts a message has it to itself."""

FIRST_PAUSE, FACTOR, LONGEST_PAUSE = 5.0, 4.0, 6 * 3600.0
"""Seconds until the second attempt, how much longer each further pause is, and the longest."""

MAX_ATTEMPTS = 10
"""After so many attempts, in about a day and a half, a message is dead."""

KEPT = timedelta(days=30)
"""How long a dead message is kept, once others of its entity die."""

GONE = 410


@attrs.frozen
class Deliveries:
    """How many messages were delivered, will be tried again, and are dead now."""

    delivered: int = 0
    failed: int = 0
    dead: int = 0


Claimed = tuple[WebhookMessage, WebhookEndpoint]


def deliver_due(runtime: Runtime, resolving: Resolve = resolve) -> Deliveries:
    """Post everything that is due."""
    total = Deliveries()
    while runtime.store.read(lambda snapshot: next(_due(runtime, snapshot), None)) is not None:
        claimed = runtime.store.transact(partial(_claim, runtime))
        if not claimed:
            break
        for stage in _post_together(runtime, claimed, resolving):
            total = Deliveries(
                total.delivered + (stage is None),
                total.failed + (stage is MessageStage.WAITING),
                total.dead + (stage is MessageStage.DEAD),
            )
    return total


def _due(runtime: Runtime, snapshot: Snapshot) -> Iterator[WebhookMessage]:
    now = runtime.clock.now()
    waiting = islice(iter_index(snapshot, WebhookMessage, "due", MessageStage.WAITING), LOOKED_AT)
    return takewhile(lambda one: one.due_at <= now, waiting)


def _claim(runtime: Runtime, tx: Tx) -> Sequence[Claimed]:
    """Take messages to different endpoints. Others leave them alone for the lease."""
    first: dict[str, WebhookMessage] = {}
    for message in _due(runtime, tx):
        first.setdefault(message.endpoint_id, message)
        if len(first) == AT_ONCE:
            break
    claimed = []
    for message in first.values():
        endpoint = tx.get(WebhookEndpoint, message.endpoint_id)
        due_at = runtime.clock.now() + LEASE
        taken = attrs.evolve(message, attempts=message.attempts + 1, due_at=due_at)
        tx.replace(taken)
        claimed.append((taken, endpoint))
    return claimed


def _post_together(runtime: Runtime, claimed: Sequence[Claimed], resolving: Resolve) -> Iterator[MessageStage | None]:
    """Post messages side by side, and yield where each is then; None for one that was delivered."""
    posts = [(message, _begun(runtime, message, endpoint, resolving)) for message, endpoint in claimed]
    until = runtime.clock.monotonic() + LONGEST
    for message, finish in posts:
        outcome = finish(until)
        if not outcome.delivered:
            log.info("webhook message %s was not delivered: %s", message.id, _problem(outcome))
        pause = _pause(runtime, message.attempts)
        yield runtime.store.transact(partial(_settle, runtime, message, outcome, pause))


def _begun(
    runtime: Runtime, message: WebhookMessage, endpoint: WebhookEndpoint, resolving: Resolve
) -> Callable[[float], PostOutcome]:
    """Begin to post a message. Returns what waits for its end."""
    if endpoint.disabled:
        return lambda _: PostOutcome(GONE, "the endpoint is disabled: it has answered 410")
    try:
        target = target_of(endpoint.url, endpoint.trusted)
    except InvalidInput as wrong:
        refused = PostOutcome(problem=str(wrong))
        return lambda _: refused
    body, now = message.body.encode(), runtime.clock.now()
    headers = {
        "content-type": "application/json",
        "user-agent": "modelyard-webhooks",
        **signed_headers(endpoint.secrets_at(now), message.id, int(now.timestamp()), body),
    }
    post = Post(target, headers, body, endpoint.trusted, resolving)
    post.begin()
    return partial(post.finish, runtime.clock)


def _settle(
    runtime: Runtime, message: WebhookMessage, outcome: PostOutcome, pause: timedelta, tx: Tx
) -> MessageStage | None:
    """Record how a post has ended, unless another has taken the message since."""
    found = get_or_none(tx, WebhookMessage, message.id)
    if found is None or (found.attempts, found.stage) != (message.attempts, MessageStage.WAITING):
        return None if outcome.delivered else MessageStage.WAITING
    if outcome.delivered:
        tx.remove(WebhookMessage, message.id)
        return None
    if outcome.status == GONE:
        endpoint = tx.get(WebhookEndpoint, message.endpoint_id)
        tx.replace(attrs.evolve(endpoint, disabled=True))
    is_last = outcome.status == GONE or message.attempts >= MAX_ATTEMPTS
    stage = MessageStage.DEAD if is_last else MessageStage.WAITING
    due_at = runtime.clock.now() + pause
    tx.replace(attrs.evolve(found, stage=stage, due_at=due_at, problem=_problem(outcome)))
    if is_last:
        _forget_old(tx, found.entity, runtime.clock.now())
    return stage


def _forget_old(tx: Tx, entity: str, now: datetime) -> None:
    """Remove some dead messages that are old, so that they do not become more and more."""
    for old in tx.page(WebhookMessage, "by_entity_stage", entity, MessageStage.DEAD, limit=AT_ONCE):
        if old.created_at <= now - KEPT:
            tx.remove(WebhookMessage, old.id)


def _problem(outcome: PostOutcome) -> str:
    return outcome.problem or f"it answered {outcome.status}"


def _pause(runtime: Runtime, attempts: int) -> timedelta:
    """Return how long to wait after so many attempts: longer each time, and between half and all of that."""
    longest = min(FIRST_PAUSE * FACTOR ** (attempts - 1), LONGEST_PAUSE)
    share = int.from_bytes(runtime.randomness(2)) / 0x1FFFE
    return timedelta(seconds=longest * (0.5 + share))
