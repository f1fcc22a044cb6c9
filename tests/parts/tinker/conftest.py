"""A run in a platform in memory, and a small yard."""

from collections.abc import Iterator

import pytest

from driven_runs import Driven, opened
from yard_fixtures import build, platform, undisturbed, yard, yard_on_disk  # noqa: F401 - fixtures


@pytest.fixture
def driven() -> Iterator[Driven]:
    with opened() as opened_platform:
        made = Driven(opened_platform)
        made.begin()
        yield made
