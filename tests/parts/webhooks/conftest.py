"""A platform on a clock that is moved by hand, and a receiver on loopback."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard import Platform, open_platform
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.testing import ManualClock
from webhook_receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "file"])
def platform(request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path) -> Iterator[Platform]:
    path = tmp_path / "yard.db" if request.param == "file" else None
    with open_platform(path, clock=clock, durability="process", randomness=bytes) as platform:
        yield platform


@pytest.fixture
def hook(platform: Platform, receiver: Receiver) -> NewWebhook:
    return platform.webhooks.add(receiver.url, trusted=True)
