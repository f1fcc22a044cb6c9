"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform
from modelyard.parts.routers.prices import PriceRule

TABLES = {"router_listings": "7795cd416aa3fce2"}


def fill(platform: Platform) -> None:
    platform.routers.set("echo", [PriceRule(from_prompt_tokens=100, prompt="0.1")], capacity={"requests_per_minute": 5})


def clear(platform: Platform) -> None:
    platform.routers.remove("echo")


def record(yard: Any, platform: Platform) -> None:
    night = PriceRule(utc_start="22:00", utc_end="06:00", completion="0.000001")
    platform.routers.set("echo", [PriceRule(from_prompt_tokens=200_001, prompt="0.000004"), night])
    yard.send("GET", "/inference/router/models")
    platform.routers.remove("echo")
