"""Workers that train a network come to harm as those of tests/crash do, with the same checks of what they leave.

They are forked from a process that has loaded torch.
"""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from campaign import MODULES, on_networks
from checks import Base, Evidence
from nursery import Nursery
from training_kit import micro

from modelyard.domain.training import GRADIENT_STEP
from warm_python import WarmPython

KILLS = 3
STEPS = 16


@pytest.fixture(scope="module")
def nursery(warm_python: WarmPython) -> Iterator[Nursery]:
    with Nursery(*MODULES["local"], python=warm_python.executable) as made:
        yield made


def test_jobs_killed_at_random_moments_lose_and_double_nothing_and_end_bit_for_bit_like_undisturbed_ones(
    nursery: Nursery, tmp_path: Path
) -> None:
    campaign = on_networks(nursery, tmp_path, random.Random(7), STEPS)
    campaign.run(KILLS)
    assert campaign.wrong == []
    assert campaign.kills >= KILLS
    assert 2 * campaign.between_steps >= KILLS


@pytest.mark.parametrize("method", ["rl", "dpo"])
@pytest.mark.parametrize("mutant", ["", "forgotten_state"])
def test_a_job_killed_between_two_saved_states_continues_from_the_first_and_is_caught_otherwise(
    nursery: Nursery, tmp_path: Path, mutant: str, method: str
) -> None:
    evidence = Evidence(tmp_path / "yard.db", STEPS, base=Base(micro(), (method,)))
    evidence.ask()
    child = nursery.start(evidence.path, acts={"train 6": "die"}, save_every=2, lease=1.0)
    child.hear_until("gone")
    assert evidence.wrong_after_death(child.printed) == []
    child = nursery.start(evidence.path, mutant=mutant, save_every=2, lease=1.0)
    child.hear_until("closed")
    child.stop()
    assert [seq - 1 for _, type, seq in child.reported("event") if type == GRADIENT_STEP] == [*range(3, STEPS + 1)]
    assert [found.partition(": ")[2] for found in evidence.wrong_in_the_end()] == (
        ["the checkpoint is not that of an undisturbed job", "the events are not those of an undisturbed job"]
        if mutant
        else []
    )
