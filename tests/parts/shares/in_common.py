"""What this part brings to the tests of all parts."""

from typing import Any


def record(yard: Any, *_: Any) -> None:
    yard.send("PUT", "/v1/admin/shares/acme", {"weight": 3, "running": 8, "running_of": {"sft": 2}})
    yard.send("GET", "/v1/admin/shares/acme")
