"""That the dashboard is not looked at in a browser here is said once."""

from importlib.util import find_spec

import pytest


def test_a_browser_can_be_driven() -> None:
    if find_spec("playwright") is None:
        pytest.skip("the lane `browser` of tests/clients/lanes.py looks at the dashboard in a browser")
