"""A platform on each store, whose model counts what it is asked."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from modelyard import Platform, open_platform
from modelyard.domain.schema import records_of
from modelyard.parts.standard import STANDARD
from modelyard.stores.memory import MemoryStore
from modelyard.stores.sqlite import SqliteStore
from modelyard.testing.clock import ManualClock
from modelyard.testing.run_twice_store import RunTwiceStore
from steered_runs import Counting, Dying


@pytest.fixture
def backend() -> Counting:
    return Counting()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["memory", "sqlite", "run twice"])
def platform(
    request: pytest.FixtureRequest, tmp_path: Path, backend: Counting, clock: ManualClock
) -> Iterator[Platform]:
    """A platform on each of our stores, and on one that runs every step twice."""
    records = records_of(STANDARD)
    on_disk = request.param == "sqlite"
    store: Any = SqliteStore(tmp_path / "yard.db", records, durability="process") if on_disk else MemoryStore(records)
    with open_platform(
        store=RunTwiceStore(store) if request.param == "run twice" else store, clock=clock, backend=backend
    ) as opened:
        yield opened
    store.close()


@pytest.fixture
def dying(backend: Counting, clock: ManualClock) -> Iterator[tuple[Dying, Platform]]:
    """A store that can die, and a platform on it."""
    store = Dying(MemoryStore(records_of(STANDARD)))
    with open_platform(store=store, clock=clock, backend=backend) as opened:
        yield store, opened
