"""The checks see every kind of harm: each is done by hand here to a database in which all is well."""

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from checks import Evidence
from nursery import Nursery

pytestmark = pytest.mark.crash

STEPS = 3


@pytest.fixture(scope="module")
def whole(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    """A database whose one job has ended."""
    made = Evidence(tmp_path_factory.mktemp("whole") / "yard.db", STEPS)
    made.ask()
    child = nursery.start(made.path)
    child.hear_until("closed")
    child.stop()
    made.read_log(child.printed)
    assert made.wrong_in_the_end() == []
    return made


@pytest.fixture
def evidence(whole: Evidence, tmp_path: Path) -> Evidence:
    """A copy to be harmed."""
    shutil.copytree(whole.path.parent, tmp_path, dirs_exist_ok=True)
    return Evidence(tmp_path / "yard.db", STEPS, dict(whole.requested), set(whole.acknowledged))


def sql(*statements: str) -> Callable[[Evidence], None]:
    def harm(evidence: Evidence) -> None:
        with closing(sqlite3.connect(evidence.path, isolation_level=None)) as connection:
            for statement in statements:
                connection.execute(statement)

    return harm


def alter_a_file(evidence: Evidence) -> None:
    (file,) = evidence.artifacts.iterdir()
    file.write_bytes(file.read_bytes() + b" ")


def leave_a_part(evidence: Evidence) -> None:
    """One whose writer lives, as far as its name tells: opening the folder does not sweep it away."""
    (evidence.artifacts / "odd.part").touch()


MISORDERED_INDEX = (
    "CREATE INDEX harm ON job_events (id)",
    "PRAGMA writable_schema = ON",
    "UPDATE sqlite_schema SET sql = 'CREATE INDEX harm ON job_events (type)' WHERE name = 'harm'",
)

HARMS = {
    "seq is not dense": sql("DELETE FROM job_events WHERE seq = 3"),
    "acknowledged, but missing": sql("DELETE FROM job_events WHERE seq >= 4"),
    "the events are [": sql("UPDATE job_events SET type = 'gradient_step', step = 9 WHERE seq = 5"),
    "but its last event is": sql("UPDATE jobs SET status = 'running'"),
    "is at step 3, but tells of 2": sql("DELETE FROM job_events WHERE seq >= 4"),
    "is altered": alter_a_file,
    "integrity: ": sql(*MISORDERED_INDEX),
    "left behind: ": leave_a_part,
    "the checkpoint is not that": sql("UPDATE checkpoints SET digest = 'x' WHERE step = 1"),
    "the events are not those": sql("UPDATE job_events SET data = '{}' WHERE seq = 4"),
    "2 attempts, with 0 lost": sql("UPDATE jobs SET attempts = 2"),
    "1 jobs made the steps [0, 2]": sql("UPDATE checkpoints SET step = 2 WHERE step = 1"),
    "failed: ": sql("UPDATE jobs SET status = 'failed'"),
}


@pytest.mark.parametrize(("reported", "harm"), HARMS.items(), ids=[name.strip(" :[") for name in HARMS])
def test_harm_is_seen(evidence: Evidence, reported: str, harm: Callable[[Evidence], None]) -> None:
    harm(evidence)
    assert any(reported in wrong for wrong in evidence.wrong_in_the_end())


def test_a_worker_that_makes_two_attempts_at_one_job_is_seen(evidence: Evidence) -> None:
    sql("UPDATE jobs SET attempts = 2, status = 'running'")(evidence)
    assert any("one worker made 2 attempts" in wrong for wrong in evidence.wrong_after_death([]))


def test_a_missing_file_is_seen(evidence: Evidence) -> None:
    (file,) = evidence.artifacts.iterdir()
    file.unlink()
    assert any("is gone" in wrong for wrong in evidence.wrong_in_the_end())
