"""A clock that stands still, and faults on it."""

import pytest

from modelyard.parts.doubles.faults.faults import Faults
from modelyard.testing.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> Faults:
    return Faults(clock=clock)
