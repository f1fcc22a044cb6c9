"""A short campaign of random kills; the long one is run by hand (CONTRIBUTING.md)."""

import random
from pathlib import Path

import pytest
from campaign import on_tabular_models
from nursery import Nursery

pytestmark = pytest.mark.crash

KILLS = 8


def test_workers_killed_at_random_moments_lose_and_double_nothing(nursery: Nursery, tmp_path: Path) -> None:
    campaign = on_tabular_models(nursery, tmp_path, random.Random(7))
    campaign.run(KILLS)
    assert campaign.wrong == []
    assert campaign.kills >= KILLS
    assert 2 * campaign.between_steps >= KILLS
    print(campaign.report())
