"""A run that a client drives, whose worker is killed in or after its commits and files: its weights are the same."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from driven_runs import Driven, course
from modelyard import open_platform
from modelyard.parts.tinker.records import FutureStatus
from modelyard.platform.runtime import Settings
from sampled import sampled

pytestmark = pytest.mark.crash

TEXTS = [f"text {number % 3}" for number in range(21)]
"""One more than the steps after which a state is saved."""

ENDS = (2, 3, 41, 42, 43, 44, 46)
MOMENTS = (
    *(f"commit {number} {when}" for number in ENDS for when in ("inside", "after")),
    "commit 47 inside",
    *(f"put {number} {when}" for number in (1, 2, 4) for when in ("half", "after")),
)
"""Around the first commands, the saved state, the weights that are saved under a name, and the end of the run."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, list[str]]:
    """A folder with a store that has a run in its queue, the id of that, and the ids of its futures."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        driven = Driven(platform)
        run = driven.begin()
        futures = [*course(driven, TEXTS), platform.compat.training_runs.unload(run)]
    return folder, run, futures


def ended(nursery: Nursery, path: Path, run: str, futures: list[str]) -> str:
    """Have a worker end the run. Returns the digest of its weights."""
    with open_platform(path) as platform:
        job = platform.compat.training_runs.get(run).job_id
    successor = nursery.start(path, lease=0.2, poll=0.01)
    successor.hear_until("changed", job, "succeeded")
    successor.stop()
    with open_platform(path, settings=Settings(lease=0.01)) as platform:
        answers = [platform.compat.training_runs.future(one).status for one in futures]
        assert answers == [FutureStatus.DONE] * len(futures)
        assert platform.compat.training_runs.get(run).steps == len(TEXTS)
        assert len(list(platform.compat.training_runs.weights.of_run(run))) == 1
        report = platform.remove_orphans(grace=0.0)
        assert report.missing == ()
        return Driven(platform, run=run).digest("end")


@pytest.fixture(scope="module")
def undisturbed(
    nursery: Nursery, requested: tuple[Path, str, list[str]], tmp_path_factory: pytest.TempPathFactory
) -> str:
    folder, run, futures = requested
    copy = tmp_path_factory.mktemp("undisturbed")
    shutil.copytree(folder, copy, dirs_exist_ok=True)
    return ended(nursery, copy / "yard.db", run, futures)


@pytest.mark.parametrize("moment", sampled(MOMENTS, 3))
def test_the_weights_are_those_of_an_undisturbed_run(
    nursery: Nursery,
    requested: tuple[Path, str, list[str]],
    undisturbed: str,
    tmp_path: Path,
    moment: str,
) -> None:
    folder, run, futures = requested
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, lease=600.0, poll=0.01, acts={moment: "die"})
    child.hear_until("gone")
    assert child.status == -9
    assert ended(nursery, path, run, futures) == undisturbed
