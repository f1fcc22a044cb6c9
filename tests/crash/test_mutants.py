"""Each broken platform (`mutants.py`) is found out by the checks that the other tests of this folder make."""

import signal
from pathlib import Path
from typing import Any

import pytest
from checks import Evidence
from nursery import Child, Nursery

pytestmark = pytest.mark.crash

STEPS = 6
LONG = 3600.0
"""A lease that never runs out."""


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    made = Evidence(tmp_path / "yard.db", STEPS)
    made.ask()
    return made


def wrong_after(nursery: Nursery, evidence: Evidence, moment: str, mutant: str) -> list[str]:
    """What is found to be wrong when a broken worker has killed itself at a moment."""
    child = nursery.start(evidence.path, acts={moment: "die"}, mutant=mutant, save_every=2, lease=LONG)
    child.hear_until("gone")
    assert child.status == -signal.SIGKILL
    return [found.partition(": ")[2] for found in evidence.wrong_after_death(child.printed)]


def test_an_event_that_commits_before_its_state_is_found_out(nursery: Nursery, evidence: Evidence) -> None:
    assert wrong_after(nursery, evidence, "torn 3", "event_before_state") == ["is at step 1, but tells of 2"]


def test_an_end_that_is_reported_too_early_is_caught(nursery: Nursery, evidence: Evidence) -> None:
    wrong = wrong_after(nursery, evidence, f"torn {STEPS + 2}", "event_before_state")
    assert wrong == ["is running, but its last event is ['training_ended']"]


def test_an_acknowledgement_before_the_commit_is_found_out(nursery: Nursery, evidence: Evidence) -> None:
    (wrong,) = wrong_after(nursery, evidence, "train 4", "early_acknowledgement")
    assert wrong.startswith("acknowledged, but missing")


def test_a_resumed_run_that_has_lost_steps_is_found_out(nursery: Nursery, evidence: Evidence) -> None:
    assert wrong_after(nursery, evidence, "train 6", "") == []
    child = nursery.start(evidence.path, mutant="forgotten_state")
    child.hear_until("closed")
    child.stop()
    reported = [found.partition(": ")[2] for found in evidence.wrong_in_the_end()]
    assert reported == [
        "the checkpoint is not that of an undisturbed job",
        "the events are not those of an undisturbed job",
    ]


# ---- two workers at once -----------------------------------------------------------------------------------------


def refusals_side_by_side(nursery: Nursery, evidence: Evidence, before: int = 0, **request: Any) -> set[str]:
    """Let two workers do all jobs but those done before, or as much as they do until one of them is refused; why."""
    children = [nursery.start(evidence.path, lease=LONG, poll=0.01, **request) for _ in range(2)]
    while len(_ended(children)) < len(evidence.requested) - before and not _refusals(children):
        nursery.listen()
    for child in children:
        child.kill()
        evidence.read_log(child.printed)
    return _refusals(children)


def _ended(children: list[Child]) -> set[str]:
    return {job_id for child in children for job_id, type, _ in child.reported("event") if type == "training_ended"}


def _refusals(children: list[Child]) -> set[str]:
    return {code for child in children for (code,) in child.reported("refused")}


@pytest.fixture
def many(evidence: Evidence) -> Evidence:
    for model in "abcabc":
        evidence.ask(model)
    return evidence


def test_two_workers_side_by_side_do_each_job_once(nursery: Nursery, many: Evidence) -> None:
    assert refusals_side_by_side(nursery, many) == set()
    assert many.wrong_in_the_end() == []


def test_transactions_that_begin_as_readers_are_found_out(nursery: Nursery, many: Evidence) -> None:
    refused: set[str] = set()
    done = 0
    while not refused and done < 100:  # two workers collide by chance: there are jobs until they do
        refused = refusals_side_by_side(nursery, many, done, mutant="no_immediate_transaction")
        done = len(many.requested)
        for model in "abcabc":
            many.ask(model)
    assert "store_busy" in refused
