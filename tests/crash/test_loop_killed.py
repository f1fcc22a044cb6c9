"""A training loop whose worker is killed after each commit: the next one continues, and no step is made twice."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from modelyard import Platform, open_platform
from modelyard.domain.training import GRADIENT_STEP, TRAINING_ROUND
from sampled import sampled

pytestmark = [pytest.mark.crash, pytest.mark.parts]

ROUNDS = 2
TASKS = [{"prompt": f"question {number}", "expected": "the answer"} for number in range(3)]
COMMITS = 34
"""How many commits a worker makes for the loop before the one that ends it, at least."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one loop in its queue."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        options = {"rounds": ROUNDS, "samples": 2, "tasks_per_round": 2, "max_tokens": 4, "concurrency": 1}
        platform.training.loop("p/m", TASKS, "token_f1", held_out=TASKS[:1], learning_rate=1e-3, **options)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("commit", sampled(range(1, COMMITS + 1), 6))
def test_no_round_and_no_step_is_made_twice(nursery: Nursery, requested: Path, tmp_path: Path, commit: int) -> None:
    shutil.copytree(requested, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={f"commit {commit} after": "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        before = {job.id: [event.id for event in platform.training.events(job.id)] for job in platform.training.list()}
        loop = next(job.id for job in platform.training.list() if job.loop_id is None)
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", loop, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        check(platform, loop)
        for job_id, events in before.items():
            assert [event.id for event in platform.training.events(job_id)][: len(events)] == events


def check(platform: Platform, loop: str) -> None:
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
    runs = list(platform.evaluations.runs.list(project="p"))
    assert [(run.state, run.model.rpartition(":")[2]) for run in runs] == [
        ("completed", "step0"),
        ("completed", "step1"),
        ("completed", "step2"),
    ]
    named = {file["artifact"] for one in platform.models.checkpoints("p/m") for file in one.files.values()}
    assert named <= set(platform._runtime.artifacts.names())
