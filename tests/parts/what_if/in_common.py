"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.domain.identity import Principal, Scope

TABLES = {
    "asked_traffic": "bd7fb9ac8cbddd81",
    "asked_rows": "711a671bf24e67ba",
}

KEYED = ("/v1/what-ifs",)

NOT_CREATING = {
    "/v1/what-ifs/{what_if}/cancel": "what has ended stays as it is",
    "/v1/what-ifs/estimate": "it says what asking would cost",
}


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
    platform.clock.sleep(1)
    asked = {"model": "echo", "since": "7d", "options": {"max_tokens": 20}, "budget": "0.5"}
    platform.worker().beat()
    yard.send("POST", "/v1/what-ifs/estimate", asked)
    made = yard.send("POST", "/v1/what-ifs", asked)["id"]
    platform.worker().run_until_idle()
    of = f"/v1/what-ifs/{made}"
    yard.send("GET", "/v1/what-ifs", limit=1)
    yard.send("GET", of)
    yard.send("GET", f"{of}/rows", limit=1)
    yard.send("POST", f"{of}/cancel")
    yard.send("DELETE", of)
