"""A training process that is killed and started again ends as if nothing had happened, bit for bit.

Processes are forked from ones that have loaded torch, which takes seconds.
"""

import json
import os
import random
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from campaign import MODULES, on_networks
from checks import Base, Evidence
from nursery import Nursery
from training_child import begun
from training_kit import micro

import modelyard
from modelyard.executors.forks import Forked, ForkServer
from modelyard.testing.executor import until
from modelyard.testing.trainer import followed

CHILD = Path(__file__).with_name("training_child.py")
KILLS = 3
STEPS = 6

# ---- one job, at one step ----------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[ForkServer]:
    paths = os.pathsep.join([str(Path(modelyard.__file__).parents[1]), str(CHILD.parent)])
    offline = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    with closing(ForkServer([sys.executable, str(CHILD)], {**os.environ, **offline, "PYTHONPATH": paths})) as made:
        until(lambda: made.ready)
        yield made


@contextmanager
def forked(server: ForkServer, folder: Path) -> Iterator[Forked]:
    process = server.fork([str(micro()), str(folder)])
    assert process is not None
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin, process.stdout:
        yield process


def steps_of(process: Forked, until: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Let it go on, step by step."""
    assert process.stdin is not None
    assert process.stdout is not None
    for line in process.stdout:
        number, metrics = json.loads(line)
        yield number, metrics
        if number == until:
            return
        process.stdin.write("\n")
        process.stdin.flush()


def test_a_process_killed_at_a_step_and_started_again_ends_bit_for_bit_like_an_undisturbed_one(
    server: ForkServer, tmp_path: Path
) -> None:
    whole = followed(begun(micro(), None))
    with forked(server, tmp_path) as process:
        before = dict(steps_of(process, until=5))
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == ["state-003"]
    with forked(server, tmp_path) as process:
        after = dict(steps_of(process, until=0))
        assert process.wait() == 0
    assert list(before) == [1, 2, 3, 4, 5]
    assert list(after) == [4, 5, 6, 7, 8]
    assert {**before, **after} == {step.number: dict(step.metrics) for step in whole.steps}
    assert {path.name: path.read_bytes() for path in (tmp_path / "checkpoint").iterdir()} == whole.files


# ---- workers of one database, at any moment: the tests of tests/crash, with a network ----------------------------


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery(*MODULES["local"]) as made:
        yield made


def test_workers_killed_at_random_moments_lose_and_double_nothing(nursery: Nursery, tmp_path: Path) -> None:
    campaign = on_networks(nursery, tmp_path, random.Random(7))
    campaign.run(KILLS)
    assert campaign.wrong == []
    assert campaign.kills >= KILLS
    assert 2 * campaign.between_steps >= KILLS


def test_a_resumed_run_that_has_lost_steps_is_found_out(nursery: Nursery, tmp_path: Path) -> None:
    evidence = Evidence(tmp_path / "yard.db", STEPS, base=Base(micro()))
    evidence.ask()
    child = nursery.start(evidence.path, acts={"train 6": "die"}, save_every=2, lease=1.0)
    child.hear_until("gone")
    assert evidence.wrong_after_death(child.said) == []
    child = nursery.start(evidence.path, mutant="forgotten_state", lease=1.0)
    child.hear_until("closed")
    child.stop()
    assert [found.partition(": ")[2] for found in evidence.wrong_in_the_end()] == [
        "the checkpoint is not that of an undisturbed job",
        "the events are not those of an undisturbed job",
    ]
