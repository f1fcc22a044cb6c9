"""A process that dies at any commit while a run is steered: nothing is lost or kept twice, and it is done once."""

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.domain.schema import records_of
from modelyard.parts.standard import STANDARD
from modelyard.stores.memory import MemoryStore
from modelyard.testing.clock import ManualClock
from steered_runs import MORE, Counting, Dying, Killed, finish, submitted, while_it_runs, whole

STEPS: dict[str, tuple[Callable[[Any, str], object], int]] = {
    "requeue": (lambda steering, run: steering.requeue(run, [0, 1]), 12),
    "requeue many": (lambda steering, run: steering.requeue(run, range(9)), 12),
    "rows": (lambda steering, run: steering.add_rows(run, MORE), 16),
    "limits": (lambda steering, run: steering.change(run, concurrency=1), 12),
}


def killed_at(number: int, after: bool, action: str, while_running: bool) -> bool:
    """Steer a run in a process that dies at its commit of this number. Returns whether it has died."""
    clock, backend, store = ManualClock(), Counting(), Dying(MemoryStore(records_of(STANDARD)))
    do, rows = STEPS[action]
    with open_platform(store=store, clock=clock, backend=backend) as platform:
        steering = platform.evaluations.steering
        run = submitted(platform, concurrency=2)
        if while_running:
            while_it_runs(backend, clock, lambda: do(steering, run))
        else:
            finish(platform)
            do(steering, run)
            backend.on_asked = lambda _: clock.advance(1)
        store.left, store.after = number, after
        with suppress(Killed):
            finish(platform)
        died, store.dead, store.left = store.dead, False, -1
        worker = platform.worker()
        for _ in range(4 if died else 0):  # the lease of the dead one ends
            worker.run_until_idle()
            clock.advance(100)
        if not steering.audit(run):  # it had died before it was asked
            return died
        whole(platform, run, rows)
        assert [one.pending for one in steering.audit(run)] == [False]
        earlier = [(one.index, one.trial) for one in steering.earlier(run)]
        assert action == "requeue many" or earlier == ([(0, 0), (1, 0)] if action == "requeue" else [])
        again = {text for text, times in backend.asked.items() if times > 1}
        if not died and action != "requeue many":
            assert again == ({"say 0", "say 1"} if action == "requeue" else set())
        platform.remove_orphans(0)
        assert platform.health.check_files() == []
    return died


@pytest.mark.parametrize("while_running", [True, False], ids=["while it runs", "after its end"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("action", STEPS)
def test_a_kill_at_any_commit_loses_nothing(action: str, after: bool, while_running: bool) -> None:
    if action == "limits" and not while_running:
        pytest.skip("a run that has completed has no limits any more")
    died = 0
    for number in count(1):
        if not killed_at(number, after, action, while_running):
            break
        died += 1
    assert died > 5
