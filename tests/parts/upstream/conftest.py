"""All ways of asking."""

from typing import Any

import pytest

from canned_answers import canned  # noqa: F401 - a fixture
from upstream_asking import ask, ask_on_loop, ask_on_uvloop


@pytest.fixture(params=[ask, ask_on_loop, ask_on_uvloop], ids=["blocking", "on a loop", "on uvloop"])
def either(request: pytest.FixtureRequest) -> Any:
    """Asks in each way: what holds for one holds for the others."""
    return request.param
