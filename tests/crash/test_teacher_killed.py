"""A loop with a teacher whose worker is killed after each commit: what the teacher has said is paid for once."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from modelyard import Platform, open_platform
from sampled import sampled

pytestmark = [pytest.mark.crash, pytest.mark.parts]

TASKS = [{"prompt": f"question {number}", "expected": "the answer"} for number in range(2)]
SAMPLES = 2
COMMITS = 16
"""How many commits a worker makes until the round is queued for training, at least."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one loop in its queue."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        for name in ("teacher", "student"):
            platform.models.create(name, project="p", base_model="tabular-mini")
        options = {"rounds": 1, "samples": SAMPLES, "max_tokens": 4, "concurrency": 1, "teacher": "p/teacher"}
        platform.training.loop("p/student", TASKS, "token_f1", learning_rate=1e-3, **options)  # type: ignore[arg-type]
    return folder


@pytest.mark.parametrize("commit", sampled(range(1, COMMITS + 1), 4))
def test_no_answer_is_scored_twice(nursery: Nursery, requested: Path, tmp_path: Path, commit: int) -> None:
    shutil.copytree(requested, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={f"commit {commit} after": "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        loop = next(job.id for job in platform.training.list() if job.loop_id is None)
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", loop, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        asked = requests(platform)
        assert asked["p/teacher"] == len(TASKS) * SAMPLES
        assert asked["p/student"] - len(TASKS) in (0, 1)  # one whose answers were booked, and not judged yet
        checkpoints = [one for name in asked for one in platform.models.checkpoints(name)]
        named = {file["artifact"] for one in checkpoints for file in one.files.values()}
        assert named <= set(platform._runtime.artifacts.names())


def requests(platform: Platform) -> dict[str, int]:
    """How often each model was asked."""
    totals = platform.usage.total(by=("model",))
    return {one.model.partition("/")[2]: one.requests for one in totals if one.requests}
