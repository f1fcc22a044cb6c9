"""A worker that is frozen is replaced; thawed, it writes nothing more and stops at its next step."""

import math
import signal
from pathlib import Path
from typing import Any

import pytest
from checks import Evidence
from nursery import Child, Nursery

pytestmark = pytest.mark.crash

STEPS = 8
LEASE, POLL = 1 / 4, 1 / 64
LONG = 3600.0
"""The lease of the worker that is frozen: once thawed, it takes nothing over."""
FROZEN_AT = "train 4"
HELD_AT = "train 4"
"""In the successor, which begins again: when it makes the step that the frozen worker is making."""


@pytest.fixture
def evidence(tmp_path: Path) -> Evidence:
    made = Evidence(tmp_path / "yard.db", STEPS)
    made.ask()
    return made


def frozen_worker(nursery: Nursery, evidence: Evidence, **request: Any) -> Child:
    child = nursery.start(evidence.path, acts={FROZEN_AT: "freeze"}, reported=True, lease=LONG, poll=POLL, **request)
    child.hear_until("frozen")
    return child


def successor(nursery: Nursery, evidence: Evidence, **request: Any) -> Child:
    child = nursery.start(evidence.path, reported=True, lease=LEASE, poll=POLL, **request)
    child.hear_until("taken")
    evidence.lost.update([*evidence.requested])
    return child


def thaw(child: Child) -> None:
    """Let it continue to the end of its attempt."""
    child.send(signal.SIGCONT)
    child.hear_until("closed")


def late_deeds(child: Child) -> list[str]:
    """What a thawed worker should not have done."""
    after = child.printed[child.printed.index(["frozen"]) + 1 :]
    wrong = [] if ["refused", "lease_lost"] in after else ["its late write was not refused"]
    wrong += [
        f"it went on to {moment}" for word, *more in after if word == "at" for moment in more if "train" in moment
    ]
    return wrong + [f"it reported {line}" for line in after if line[0] in ("event", "changed")]


def test_a_frozen_worker_is_replaced_within_the_lease_and_two_polls(nursery: Nursery, evidence: Evidence) -> None:
    """By the successor's own time: it never asks to wait for longer than that, and has waited for the lease."""
    frozen = frozen_worker(nursery, evidence)
    child = successor(nursery, evidence)
    reads = [seconds for (seconds,) in child.reported("read")]
    waits = [seconds for (seconds,) in child.reported("waits")]
    assert math.fsum(waits) <= LEASE + 2 * POLL
    assert reads[-1] - reads[0] >= LEASE
    frozen.kill()
    child.stop()


def but_for_turns(evidence: Evidence) -> dict[str, Any]:
    """What is stored, without the notes of who waits for a turn: any worker that looks at the queue may write them."""
    return {table: rows for table, rows in evidence.contents().items() if table not in ("tenants", "demands")}


def test_a_worker_thawed_after_its_job_was_done_changes_nothing(nursery: Nursery, evidence: Evidence) -> None:
    frozen = frozen_worker(nursery, evidence)
    child = successor(nursery, evidence)
    child.hear_until("closed")
    before = but_for_turns(evidence)
    thaw(frozen)
    assert late_deeds(frozen) == []
    assert but_for_turns(evidence) == before
    check_the_end(evidence, frozen, child)


def test_a_worker_thawed_while_its_successor_works_changes_nothing(nursery: Nursery, evidence: Evidence) -> None:
    frozen = frozen_worker(nursery, evidence)
    child = successor(nursery, evidence, acts={HELD_AT: "hold"})
    child.hear_until("held")
    before = evidence.events()
    thaw(frozen)
    assert late_deeds(frozen) == []
    assert evidence.events() == before
    child.send(signal.SIGUSR1)
    child.hear_until("closed")
    check_the_end(evidence, frozen, child)


def check_the_end(evidence: Evidence, *workers: Child) -> None:
    for worker in workers:
        worker.stop()
        evidence.read_log(worker.printed)
    assert evidence.wrong_in_the_end() == []


def test_a_worker_without_fence_is_found_out(nursery: Nursery, evidence: Evidence) -> None:
    frozen = frozen_worker(nursery, evidence, mutant="no_fence")
    child = successor(nursery, evidence, acts={HELD_AT: "hold"})
    child.hear_until("held")
    before = evidence.events()
    thaw(frozen)
    assert late_deeds(frozen)[:2] == ["its late write was not refused", "it went on to train 5"]
    assert evidence.events() != before
    for worker in (frozen, child):
        worker.kill()
