"""An improvement whose worker is killed after each commit: each of its jobs and runs is made once."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from modelyard import Platform, open_platform
from prompt_tasks import length
from sampled import sampled

pytestmark = [pytest.mark.crash, pytest.mark.parts]

TASKS = [{"prompt": f"question {number}", "expected": "the answer"} for number in range(6)]
COMMITS = 36
"""How many commits a worker makes until the improvement has ended, at least."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one improvement in its queue."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        platform.variants.publish("p/v", model="tabular-mini", system="Begin.")
        few = {"calls": 8, "minibatch": 2, "max_tokens": 4, "reflection_max_tokens": 4, "concurrency": 1}
        roads = [
            platform.improve.prompt(reflection="tabular-mini", **few),
            platform.improve.sft(learning_rate=1e-3),
        ]
        platform.improve("p/v", TASKS, length, roads=roads, seed=1, name="i", max_tokens=4)
    return folder


@pytest.mark.parametrize("commit", sampled(range(1, COMMITS + 1), 6))
def test_no_job_and_no_run_is_made_twice(nursery: Nursery, requested: Path, tmp_path: Path, commit: int) -> None:
    shutil.copytree(requested, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={f"commit {commit} after": "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        job = platform.improve.get("p/i").id
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", job, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        check(platform)


def check(platform: Platform) -> None:
    assert sorted(job.kind for job in platform.jobs.list()) == ["evaluate", "evaluate", "improve", "prompt", "sft"]
    found = platform.improve.get("p/i").result()
    assert [one.road for one in found.roads] == ["prompt", "sft"]
    assert platform.variants.get("p/v").last_number == found.roads[1].version
    assert [one.step for one in platform.models.checkpoints("p/i-2-sft")] == [0, 1]
