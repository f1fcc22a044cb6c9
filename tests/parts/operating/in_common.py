"""What this part brings to the tests of all parts."""

from typing import Any


def record(yard: Any, *_: Any) -> None:
    yard.send("GET", "/v1/usage", by="entity,model", month="2026-03")
