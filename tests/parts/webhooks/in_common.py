"""What this part brings to the tests of all parts."""

from typing import Any

import attrs

from modelyard import Platform
from modelyard.parts.webhooks.records import MessageStage

NOT_CREATING = {"/webhooks": "its answer has a secret, which is never shown again, or again it changes nothing"}

TABLES = {
    "webhook_endpoints": "7bd7c0d7651f76eb",
    "webhook_messages": "935ca5781af72d20",
    "request_alerts": "377d083ecf692475",
}


def fill(platform: Platform) -> None:
    platform.webhooks.test(platform.webhooks.add("https://hooks.example/of-theirs").endpoint.id)
    platform.webhooks.alert_of_failures(0.5)


def clear(platform: Platform) -> None:
    for one in [*platform.webhooks.list()]:
        platform.webhooks.remove(one.id)


def record(yard: Any, platform: Platform) -> None:
    yard.client = attrs.evolve(yard.client, key=platform.keys.create("acme").secret)
    made = yard.send("POST", "/v1/webhooks", {"url": "https://example.org/hook", "events": ["run.ended"]})["webhook"]
    yard.send("GET", f"/v1/webhooks/{made['id']}")
    yard.send("GET", "/v1/webhooks", limit=1)
    yard.send("POST", f"/v1/webhooks/{made['id']}/rotate")
    message = yard.send("POST", f"/v1/webhooks/{made['id']}/test")
    dead = attrs.evolve(next(iter(platform.webhooks.waiting())), stage=MessageStage.DEAD, problem="it answered 500")
    platform._runtime.store.transact(lambda tx: tx.replace(dead))
    yard.send("GET", "/v1/webhooks/dead", limit=1)
    yard.send("POST", f"/v1/webhooks/dead/{message['id']}/redeliver")
    yard.send("DELETE", f"/v1/webhooks/{made['id']}")
