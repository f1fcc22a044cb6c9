"""A worker that is killed at each named moment in the life of a job: the next one finishes, and nothing shows."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from checks import Base, Evidence
from nursery import Child, Nursery

pytestmark = pytest.mark.crash

STEPS = 3
SAVE_EVERY = 2

# Every call of a port that a worker makes for one job, in order. Between two of them nothing outside it changes.
LIFE = {
    "in the claim": "commit 1 inside",
    "after the claim": "commit 1 after",
    "telling of the claim": "observe 1",
    "choosing the parent": "commit 2 inside",
    "after choosing the parent": "commit 2 after",
    "before the trainer begins": "train 1",
    "recording the start": "commit 3 inside",
    "after recording the start": "commit 3 after",
    "telling of the start": "observe 2",
    "before step 1": "train 2",
    "recording step 1": "commit 4 inside",
    "after recording step 1": "commit 4 after",
    "telling of step 1": "observe 3",
    "before step 2": "train 3",
    "recording step 2": "commit 5 inside",
    "after recording step 2": "commit 5 after",
    "telling of step 2": "observe 4",
    "before saving its state": "train 4",
    "writing the state's file": "put 1 half",
    "between the state's file and its row": "put 1 after",
    "naming the state": "commit 6 inside",
    "after naming the state": "commit 6 after",
    "before step 3": "train 5",
    "recording step 3": "commit 7 inside",
    "after recording step 3": "commit 7 after",
    "telling of step 3": "observe 5",
    "before the end of training": "train 6",
    "writing the checkpoint's file": "put 2 half",
    "between the checkpoint's file and its row": "put 2 after",
    "ending the job with its checkpoint": "commit 8 inside",
    "after the end, before it is told": "commit 8 after",
    "telling of the end": "observe 6",
    "telling of the last event": "observe 7",
    "after removing the data": "remove 1",
    "after removing the state": "remove 2",
}

ENDED_BY = "commit 8 after"
"""From here on there is nothing left to do for the next worker."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A database with one job in the queue."""
    made = Evidence(tmp_path_factory.mktemp("requested") / "yard.db", STEPS)
    made.ask()
    return made


@pytest.fixture
def evidence(requested: Evidence, tmp_path: Path) -> Evidence:
    """A copy of it."""
    shutil.copytree(requested.path.parent, tmp_path, dirs_exist_ok=True)
    return Evidence(tmp_path / "yard.db", STEPS, dict(requested.requested))


SHORT, LONG = 0.05, 600.0
"""Leases in seconds: one after which a successor takes a dead worker's job, and one that no load makes run out."""


def start(nursery: Nursery, evidence: Evidence, lease: float = SHORT, **request: Any) -> Child:
    return nursery.start(evidence.path, save_every=SAVE_EVERY, lease=lease, poll=0.01, **request)


def die(nursery: Nursery, evidence: Evidence, **request: Any) -> None:
    """Let a worker kill itself, and look at what it leaves."""
    child = start(nursery, evidence, **request)
    child.hear_until("gone")
    assert child.status == -9
    assert evidence.wrong_after_death(child.printed) == []


def end(nursery: Nursery, evidence: Evidence) -> None:
    """Let another worker finish, and look at what came of it."""
    child = start(nursery, evidence)
    (job_id,) = evidence.requested
    child.hear_until("changed", job_id, "succeeded")
    child.stop()
    evidence.read_log(child.printed)
    assert evidence.wrong_in_the_end() == []


def test_these_are_all_the_moments_there_are(nursery: Nursery, evidence: Evidence) -> None:
    child = start(nursery, evidence, LONG, reported=True)
    child.hear_until("closed")
    assert [moment for (moment,) in child.reported("at")] == list(LIFE.values())
    child.stop()
    assert evidence.unnamed_files() == 0


@pytest.mark.parametrize("moment", LIFE.values(), ids=[name.replace(" ", "-") for name in LIFE])
def test_a_kill_at_any_moment_changes_nothing_in_the_end(nursery: Nursery, evidence: Evidence, moment: str) -> None:
    die(nursery, evidence, lease=LONG, acts={moment: "die"})
    moments = list(LIFE.values())
    if moments.index(moment) < moments.index(ENDED_BY):
        end(nursery, evidence)
    else:
        assert evidence.wrong_in_the_end() == []


@pytest.mark.parametrize(
    "name", ["after recording step 1", "naming the state", "after naming the state", "recording step 3"]
)
def test_a_dpo_job_is_resumed_bit_for_bit_too(nursery: Nursery, tmp_path: Path, name: str) -> None:
    evidence = Evidence(tmp_path / "yard.db", STEPS, base=Base(methods=("dpo",)))
    evidence.ask()
    die(nursery, evidence, lease=LONG, acts={LIFE[name]: "die"})
    end(nursery, evidence)


@pytest.mark.parametrize("moment", [f"commit {n} {when}" for n in (1, 2, 3) for when in ("inside", "after")])
def test_a_kill_while_taking_over_changes_nothing_in_the_end(nursery: Nursery, evidence: Evidence, moment: str) -> None:
    """The successor forgets the dead worker, takes its job away and claims it: three commits in whatever order."""
    die(nursery, evidence, acts={"train 3": "die"})
    die(nursery, evidence, acts={moment: "die"})
    end(nursery, evidence)


@pytest.mark.parametrize("moment", ["beat 8 inside", "beat 9 inside", "beat 9 after"])
def test_a_kill_in_a_heartbeat_changes_nothing_in_the_end(nursery: Nursery, evidence: Evidence, moment: str) -> None:
    """Those of the worker are even, those of its jobs odd."""
    die(nursery, evidence, acts={"train 3": "hold", moment: "die"})
    end(nursery, evidence)


LEAVING = {
    "giving the job back": "commit 5 inside",
    "after giving the job back": "commit 5 after",
    "signing off": "commit 6 inside",
    "after signing off": "commit 6 after",
}


@pytest.mark.parametrize("moment", LEAVING.values(), ids=[name.replace(" ", "-") for name in LEAVING])
def test_a_kill_while_leaving_changes_nothing_in_the_end(nursery: Nursery, evidence: Evidence, moment: str) -> None:
    die(nursery, evidence, lease=LONG, acts={"train 2": "leave", moment: "die"})
    end(nursery, evidence)
