"""Both ways of asking."""

from typing import Any

import pytest

from upstream_asking import ask, ask_on_loop


@pytest.fixture(params=[ask, ask_on_loop], ids=["blocking", "on a loop"])
def either(request: pytest.FixtureRequest) -> Any:
    """Asks both ways: what holds for one holds for the other."""
    return request.param
