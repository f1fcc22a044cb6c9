"""A platform on a clock that is moved by hand, and a receiver on loopback."""

import hashlib
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from modelyard import Platform, open_platform
from modelyard.parts.webhooks.host_key import VARIABLE
from modelyard.parts.webhooks.service import NewWebhook
from modelyard.protocols import Randomness
from modelyard.testing import ManualClock
from webhook_receiver import Receiver, receiving


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as one:
        yield one


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def drawn() -> Randomness:
    """Return what draws other bytes each time, but zeros for a pause: it is half of the longest then."""
    numbers = count(1)
    return lambda size: bytes(size) if size == 2 else hashlib.shake_128(str(next(numbers)).encode()).digest(size)


@pytest.fixture(params=["memory", "file", pytest.param("postgres", marks=pytest.mark.servers)])
def platform(
    request: pytest.FixtureRequest, clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Platform]:
    path: str | Path | None = None
    if request.param == "postgres":
        if VARIABLE not in os.environ:
            monkeypatch.setenv(VARIABLE, "a key of the host, as long as it must be")
        path = request.getfixturevalue("yard_address")
    elif request.param == "file":
        path = request.getfixturevalue("yard_file")
    with open_platform(
        path, artifacts=tmp_path / "artifacts", clock=clock, durability="process", randomness=drawn()
    ) as platform:
        yield platform


@pytest.fixture
def hook(platform: Platform, receiver: Receiver) -> NewWebhook:
    return platform.webhooks.add(receiver.url, trusted=True)
