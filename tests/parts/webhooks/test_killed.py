"""A process that is killed between the commit of an event and its post: another one posts it."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.parts.webhooks import delivery
from modelyard.parts.webhooks.delivery import Deliveries
from modelyard.testing import ManualClock
from webhook_receiver import Receiver

pytestmark = pytest.mark.crash

KILLED = """
import os, signal, sys
from modelyard import open_platform
from modelyard.parts.webhooks import delivery
from modelyard.testing import ManualClock

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

path, url, moment = sys.argv[1:]
platform = open_platform(path, clock=ManualClock())
platform.webhooks.add(url, trusted=True, events=["run.ended"])
platform.evaluations.run("quiz", "echo", [{"prompt": "yes", "expected": "yes"}], project="p")
match moment:
    case "after the commit":
        die()
    case "when it is claimed":
        delivery.Post.begin = die
    case "when it was delivered":
        delivery._settle = die
platform.webhooks.deliver()
"""


@pytest.mark.parametrize(
    ("moment", "leased", "times"),
    [("after the commit", False, 1), ("when it is claimed", True, 1), ("when it was delivered", True, 2)],
)
def test_what_a_killed_process_has_committed_is_posted(
    moment: str, leased: bool, times: int, tmp_path: Path, receiver: Receiver
) -> None:
    path = tmp_path / "yard.db"
    done = subprocess.run([sys.executable, "-c", KILLED, path, receiver.url, moment], check=False)
    assert done.returncode == -signal.SIGKILL
    clock = ManualClock()
    with open_platform(path, clock=clock) as platform:
        if leased:
            assert platform.webhooks.deliver() == Deliveries(), "who took it may be alive still"
            clock.advance(delivery.LEASE.total_seconds())
        assert platform.webhooks.deliver() == Deliveries(delivered=1)
        assert [*platform.webhooks.waiting()] == []
    assert len(receiver.received) == times
    assert len({one.headers["webhook-id"] for one in receiver.received}) == 1
