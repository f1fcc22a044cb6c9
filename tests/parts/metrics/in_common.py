"""What this part brings to the tests of all parts."""

from typing import Any

import attrs

from modelyard import Platform

TABLES = {"slow_answers": "9f775af06f7b5f52"}


def fill(platform: Platform) -> None:
    platform.metrics.count()
    platform.chat.complete(model="echo", messages="slow")
    assert platform.metrics.slowest(1)


def record(yard: Any, platform: Platform) -> None:
    platform.metrics.count()
    platform.chat.complete(model="echo", messages="slow")
    yard.client = attrs.evolve(yard.client, key=platform.keys.create("ops", host=True).secret)
    yard.send("GET", "/v1/admin/slowest", limit=1)
