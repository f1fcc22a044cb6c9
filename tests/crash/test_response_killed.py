"""A response in the background whose worker is killed after each commit: it is answered, and booked, once."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from modelyard import open_platform

pytestmark = pytest.mark.crash

MOMENTS = (
    *("commit 1 after", "commit 2 inside", "commit 2 after", "beat 1 after", "commit 3 inside", "commit 3 after"),
    "commit 4 inside",
)
"""The commits of the worker: it claims the job, begins the response, books it with its answer, and ends the job."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a store that has one response in its queue, and the id of that."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        first = platform.compat.responses.create(model="echo", input="first")
        queued = platform.compat.responses.create(
            model="echo", input="then this", previous_response_id=first.id, background=True
        )
    return folder, queued.id


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_response_is_answered_and_booked_once(
    nursery: Nursery, requested: tuple[Path, str], tmp_path: Path, moment: str
) -> None:
    folder, response_id = requested
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={moment: "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        job = platform.compat.responses.get(response_id).job_id
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", job, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        response = platform.compat.responses.get(response_id)
        assert (response.status, response.text) == ("completed", "then this")
        ledger = [entry.id for entry in platform.usage.list()]
        assert len(ledger) == 2
        assert response.completion_id == ledger[-1]
        assert [message.text for message in platform.compat.responses.messages(response_id)] == [
            *("first", "first", "then this", "then this")
        ]
