"""A run in a platform in memory."""

from collections.abc import Iterator

import pytest

from driven_runs import Driven, opened


@pytest.fixture
def driven() -> Iterator[Driven]:
    with opened() as platform:
        made = Driven(platform)
        made.begin()
        yield made
