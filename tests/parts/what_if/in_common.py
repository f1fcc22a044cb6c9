"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope

TABLES = {
    "asked_traffic": "0",
    "asked_rows": "0",
}

KEYED = ("/v1/what-ifs",)

NOT_CREATING = {"/v1/what-ifs/{what_if}/cancel": "what has ended stays as it is"}


def fill(platform: Platform) -> None:
    platform.chat.complete(model="echo", messages="hello", store=True)
    platform.clock.sleep(0.001)
    platform.traffic.what_if(model="echo")


def clear(platform: Platform) -> None:
    for one in [*platform.traffic.what_if.list()]:
        platform.traffic.what_if.delete(one.id)


def record(yard: Any, platform: Platform) -> None:
    acme = platform.acting_as(Principal("ann", "acme", Scope("acme")))
    acme.chat.complete(model="echo", messages="Where is my parcel?", store=True)
