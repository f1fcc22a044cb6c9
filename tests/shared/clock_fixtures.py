"""A clock that stands still, and faults on it."""

from typing import TYPE_CHECKING

import pytest

from modelyard.testing.clock import ManualClock

if TYPE_CHECKING:
    from modelyard.testing import Faults


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults(clock: ManualClock) -> "Faults":
    from modelyard.testing import Faults

    return Faults(clock=clock)
