"""The loop of an agent whose worker is killed after each commit: the next one continues with the groups that there are,
no step is made twice, no attempt is trained twice or booked twice, and what comes of it is what would have."""

import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from nursery import Nursery

import loop_agents
from loop_outcomes import Outcome, outcome
from modelyard import Platform, open_platform
from modelyard.domain.training import GRADIENT_STEP, TRAINING_ROUND
from modelyard.parts.loops.rollouts import LOST
from sampled import sampled

pytestmark = [pytest.mark.crash, pytest.mark.parts]

ROUNDS, SAMPLES = 2, 2
TASKS = [{"question": f"question {number}"} for number in range(2)]
COMMITS = 36
"""How many commits a worker makes for the loop before the one that ends it, at least."""
MOMENTS = [(0, commit) for commit in range(1, COMMITS + 1)] + [(1, commit) for commit in range(3, COMMITS + 1, 5)]
"""How many steps ahead is sampled, and after which commit the worker is killed."""


def request_loop(folder: Path, ahead: int) -> str:
    """Make a store that has one loop in its queue. Return the id of the loop."""
    with open_platform(folder / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        options: Any = {"rounds": ROUNDS, "samples": SAMPLES, "tasks_per_round": 1, "concurrency": 1 + ahead}
        agent: Any = {"agent": loop_agents.talks, "max_steps_off_policy": ahead, "learning_rate": 1e-3, "seed": 7}
        return platform.training.loop("p/m", TASKS, loop_agents.length, held_out=TASKS[:1], **agent, **options).id


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Path, str]]:
    folders = {ahead: tmp_path_factory.mktemp(f"ahead-{ahead}") for ahead in (0, 1)}
    return {ahead: (folder, request_loop(folder, ahead)) for ahead, folder in folders.items()}


LOST_COUNT = frozenset({"failed_rollouts"})
"""The metrics that count the attempts which were lost."""


@pytest.fixture(scope="module")
def expected(made: dict[int, tuple[Path, str]], tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what comes of the loop if nobody is killed."""
    folder, loop = made[0]
    copy = tmp_path_factory.mktemp("whole")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    with open_platform(copy / "yard.db") as platform:
        job = platform.training.job(loop)
        job.wait()
        return outcome(platform, job, LOST_COUNT)


@pytest.mark.parametrize(("ahead", "commit"), sampled(MOMENTS, 6))
def test_no_step_and_no_attempt_is_made_twice(
    nursery: Nursery, made: dict[int, tuple[Path, str]], expected: Outcome, tmp_path: Path, ahead: int, commit: int
) -> None:
    folder, loop = made[ahead]
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={f"commit {commit} after": "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        rewarded = rewards(platform)
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", loop, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        check_jobs(platform, loop)
        check_episodes(platform)
        assert rewarded.items() <= rewards(platform).items()
        if not ahead:
            assert outcome(platform, platform.training.job(loop), LOST_COUNT) == expected


def rewards(platform: Platform) -> dict[str, float]:
    every = [one for group in platform.episodes.list() for one in platform.episodes.episodes(group.id)]
    return {one.id: one.reward for one in every if one.reward is not None}


def check_jobs(platform: Platform, loop: str) -> None:
    jobs = list(platform.training.list())
    trained = [job for job in jobs if job.loop_id == loop]
    assert [job.status for job in jobs] == ["succeeded"] * (1 + ROUNDS)
    assert [job.step for job in trained] == [1, 2]
    assert [one.step for one in platform.models.checkpoints("p/m")] == [0, 1, 2]
    rounds = [event.data["checkpoint"] for event in platform.training.events(loop) if event.type == TRAINING_ROUND]
    assert rounds == [1, 2]
    for job in trained:
        steps = [event for event in platform.training.events(job.id) if event.type == GRADIENT_STEP]
        assert len(steps) == job.progress == job.total


def check_episodes(platform: Platform) -> None:
    """Every group is made once, has the attempts that it should have, and is trained by the job of its round."""
    groups = list(platform.episodes.list())
    trained = [one for one in groups if one.name.startswith("round")]
    assert sorted(one.name for one in groups) == [*(f"held-out-step-{n}" for n in range(3)), *sorted(names())]
    jobs = [one.id for one in platform.training.list() if one.loop_id]
    assert [one.job_id for one in sorted(trained, key=lambda one: one.name)] == jobs
    for group in groups:
        attempts = platform.episodes.episodes(group.id)
        places = Counter(one.place % group.size for one in attempts if one.reward is not None)
        assert places == dict.fromkeys(range(group.size), 1)
        assert {one.failure for one in attempts if one.reward is None} <= {LOST}
        assert group.closed_at is not None
    assert all(key.revoked_at is not None for key in platform.keys.list())
    turns = [turn for group in groups for one in platform.episodes.get(group.id) for turn in one.turns()]
    booked = [entry for entry in platform.usage.list() if entry.completion_tokens]
    assert sorted(turn.id for turn in turns) == sorted(entry.id for entry in booked)


def names() -> list[str]:
    return [f"round-{number + 1}-task-0" for number in range(ROUNDS)]
