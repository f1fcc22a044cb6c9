"""A clock that stands still, and faults on it."""

import pytest

from modelyard.testing.clock import ManualClock
from modelyard.testing.faults.faults import Faults


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> Faults:
    return Faults(clock=clock)
