"""A program that is killed at any commit of its episodes: each answer is booked and kept together, or not at all, and
the group is trained by one job.
"""

import json
import shutil
import subprocess
from pathlib import Path

import attrs
import pytest
from episode_process import TURNS

from modelyard import Platform, open_platform
from sampled import sampled
from warm_python import WarmPython

pytestmark = pytest.mark.crash

COMMITS = 4
"""The rewards of two episodes, the end of their keys, and the claim with the job."""
BEATS = 2 * TURNS
"""The turns of two episodes, which need not be durable."""
STEPS = [
    *(f"commit {number}" for number in range(1, COMMITS + 1)),
    *(f"beat {number}" for number in range(1, BEATS + 1)),
]
MOMENTS = [f"{step} {at}" for step in STEPS for at in ("inside", "after")]


@attrs.frozen
class Made:
    """A folder with a store, and a group of episodes in it with their keys."""

    folder: Path
    group: str
    keys: str
    python: str


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, warm_python: WarmPython) -> Made:
    folder = tmp_path_factory.mktemp("made")
    with open_platform(folder / "yard.db") as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        group = platform.episodes.group("refunds", model="desk/support", size=2)
        return Made(folder, group.id, ",".join(one.key for one in group), warm_python.executable)


def started(made: Made, path: Path, moment: str = "") -> "subprocess.Popen[bytes]":
    command = [made.python, str(Path(__file__).with_name("episode_process.py")), str(path), made.group, made.keys]
    return subprocess.Popen([*command, *([moment] if moment else [])], stdout=subprocess.PIPE)


def ended(process: "subprocess.Popen[bytes]") -> tuple[int, list[list[object]]]:
    """The exit status of a program, and what it told."""
    printed, _ = process.communicate()
    return process.returncode, [json.loads(line)[1:] for line in printed.splitlines()]


def check(platform: Platform, made: Made) -> int:
    """Return how many turns there are: all that is booked, once, and nothing else."""
    turns = [turn for episode in platform.episodes.get(made.group) for turn in episode.turns()]
    assert sorted(turn.id for turn in turns) == sorted(entry.id for entry in platform.usage.list())
    return len(turns)


def test_every_moment_is_known(made: Made, tmp_path: Path) -> None:
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    status, printed = ended(started(made, tmp_path / "yard.db", f"beat {BEATS + 1} inside"))
    assert status == 0
    told = {str(line[1]) for line in printed if line[0] == "at" and str(line[1]).startswith("commit")}
    assert told == {moment for moment in MOMENTS if moment.startswith("commit")}


@pytest.mark.parametrize("moment", sampled(MOMENTS, 3))
def test_a_killed_program_leaves_each_turn_booked_and_kept_and_its_group_is_trained_once(
    made: Made, tmp_path: Path, moment: str
) -> None:
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    status, printed = ended(started(made, path, moment))
    assert status == -9
    with open_platform(path) as platform:
        answered = len([line for line in printed if line[0] == "answered"])
        assert answered <= check(platform, made) <= answered + 1
    status, printed = ended(started(made, path))
    assert status == 0
    (queued,) = [line[1] for line in printed if line[0] == "queued"]
    with open_platform(path) as platform:
        check(platform, made)
        (job,) = platform.training.list()
        assert job.id == queued == platform.episodes.get(made.group).refresh().job_id
        group = platform.episodes.get(made.group)
        assert [one.refresh().reward for one in group] == [0, 1]
        for episode in group:
            assert sum(not turn.untrained for turn in episode.turns()) >= TURNS
        checkpoint = platform.training.job(job.id).result()
        assert checkpoint.metrics["importance_ratio"] == pytest.approx(1)


def test_two_programs_of_one_episode_ask_at_the_same_time(made: Made, tmp_path: Path) -> None:
    """Each in a process of its own: every turn follows one that is its own history, and one job trains the group."""
    shutil.copytree(made.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    processes = [started(made, path) for _ in range(3)]
    outcomes = [ended(process) for process in processes]
    assert any(status == 0 for status, _ in outcomes)
    with open_platform(path) as platform:
        (job,) = platform.training.list()
        group = platform.episodes.get(made.group)
        assert group.refresh().job_id == job.id
        check(platform, made)
        for episode in group:
            for turn in episode.turns():
                assert (turn.parent is None) == (len(turn.messages) == 1)
                if turn.parent is not None:
                    assert turn.messages[: len(turn.parent.said)] == turn.parent.said
                    begins = turn.prompt_ids[: len(turn.parent.all_ids)] == turn.parent.all_ids
                    assert turn.continues == begins  # what was sampled may be other tokens than its text has
