"""Tells entities that their requests fail, or are refused by a rate limit: once in a window of time, whatever happens.

Each process counts its own failures, and adds them each second to what the store has of the window. The alert is put
into the outbox in the transaction that finds it due, so that several processes tell once.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from typing import Any

import attrs

from modelyard.domain.record import KEY
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import BudgetExceeded, InvalidInput, RateLimited, StoreError
from modelyard.lazy import log
from modelyard.parts.webhooks.events import body
from modelyard.parts.webhooks.outbox import message_to, wanting
from modelyard.parts.webhooks.records import RequestAlerts, WebhookEvent
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

WINDOW = timedelta(minutes=5)
MOST_AT_LEAST = 1_000_000

Failures = Counter[tuple[str, str]]
"""How many requests of an entity failed, by key and code."""


def look(runtime: Runtime) -> None:
    """Add the failures of this process to those of their window, and tell who is to be told."""
    taken: defaultdict[str, Failures] = defaultdict(Counter)
    for (entity, key_id, code), count in runtime.cache.take_failures().items():
        taken[entity][key_id, code] += count
    for entity, failures in taken.items():
        try:
            runtime.store.transact(partial(_add, runtime, entity, failures))
        except StoreError as fault:
            log.warning("requests of %s that failed are counted for its alerts later: %s", entity, fault)
            for (key_id, code), count in failures.items():
                runtime.cache.note_failure(entity, key_id, code, count)


def _add(runtime: Runtime, entity: str, failures: Failures, tx: Tx) -> None:
    if not any(wanting(tx, entity, told) for told in (WebhookEvent.RATE_LIMIT_HIT, WebhookEvent.REQUESTS_FAILED)):
        return
    now = runtime.clock.now()
    kept = tx.find(RequestAlerts, KEY, entity)
    alerts = _in_window(kept or RequestAlerts(entity), now)
    limited: Counter[str] = Counter()
    for (key_id, code), count in failures.items():
        if code == RateLimited.code:
            limited[key_id] += count
    failed = sum(count for (_, code), count in failures.items() if code not in (RateLimited.code, BudgetExceeded.code))
    alerts = attrs.evolve(alerts, failed=alerts.failed + failed, limited=alerts.limited + limited.total())
    if limited:
        key_id, _ = limited.most_common(1)[0]
        alerts = _told(runtime, tx, alerts, WebhookEvent.RATE_LIMIT_HIT, {"key_id": key_id, "refused": alerts.limited})
    if failed and (answered := _too_many(tx, alerts)) is not None:
        codes = Counter({code: count for (_, code), count in failures.items()})
        data = {
            "failed": alerts.failed,
            "answered": answered,
            "share": alerts.share,
            "code": codes.most_common(1)[0][0],
        }
        alerts = _told(runtime, tx, alerts, WebhookEvent.REQUESTS_FAILED, data)
    (tx.add if kept is None else tx.replace)(alerts)


def _in_window(alerts: RequestAlerts, now: datetime) -> RequestAlerts:
    """Return the counts of the window of a time: none yet if it has just begun. A clock that is behind changes none."""
    since = datetime.fromtimestamp(now.timestamp() // WINDOW.total_seconds() * WINDOW.total_seconds(), UTC)
    return alerts if since <= alerts.since else attrs.evolve(alerts, since=since, failed=0, limited=0, told=())


def _too_many(snapshot: Snapshot, alerts: RequestAlerts) -> int | None:
    """Return how many requests were answered if too many failed, else None. No more of the ledger is read than decides
    it."""
    if alerts.failed < alerts.at_least:
        return None
    most = ceil(alerts.failed / alerts.share - alerts.failed) + 1
    rows = snapshot.select(
        LedgerEntry, ("trained_tokens",), "by_time", alerts.entity, after=(alerts.since, 0), limit=most
    )
    answered = sum(not tokens for (tokens,) in rows)
    return answered if alerts.failed >= alerts.share * (alerts.failed + answered) else None


def _told(
    runtime: Runtime, tx: Tx, alerts: RequestAlerts, type: WebhookEvent, data: Mapping[str, Any]
) -> RequestAlerts:
    if type in alerts.told:
        return alerts
    now = runtime.clock.now()
    shown = {"entity": alerts.entity, **data, "since": alerts.since, "seconds": int(WINDOW.total_seconds())}
    for endpoint in wanting(tx, alerts.entity, type):
        tx.add(message_to(runtime, endpoint, type, body(type, now, shown)))
    return attrs.evolve(alerts, told=(*alerts.told, str(type)))


def set_rule(runtime: Runtime, entity: str, share: float, at_least: int) -> RequestAlerts:
    """Replace the rule of an entity. Raises `InvalidInput`."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InvalidInput.at("share", msg="must be a part of the requests, above 0 and at most 1, such as 0.1")
    if type(at_least) is not int or not 1 <= at_least <= MOST_AT_LEAST:
        raise InvalidInput.at("at_least", msg=f"must be a whole number from 1 to {MOST_AT_LEAST}")

    def step(tx: Tx) -> RequestAlerts:
        kept = tx.find(RequestAlerts, KEY, entity)
        changed = attrs.evolve(kept or RequestAlerts(entity), share=float(share), at_least=at_least)
        (tx.add if kept is None else tx.replace)(changed)
        return changed

    return runtime.store.transact(step)
