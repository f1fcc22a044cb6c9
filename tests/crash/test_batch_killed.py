"""A batch whose worker is killed at any moment: the next one continues, and every line is answered in its place."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from batch_files import asking, lines_of, uploaded
from modelyard import Platform, open_platform
from modelyard.parts.batches.job import AHEAD, LINES_AT_ONCE
from modelyard.parts.batches.records import BatchStatus
from sampled import sampled

pytestmark = pytest.mark.crash

LINES = 130
MOMENTS = [
    *(f"commit {number} after" for number in range(1, 6)),
    *(f"commit {number} inside" for number in range(1, 7)),
    *(f"put {number} {place}" for number in range(1, 7) for place in ("half", "after")),
    *(f"beat {number} after" for number in (1, 20, 60, 100)),
]
"""Every commit but the last, every part that is written, and some answers of which no part is written yet."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one batch in its queue, every tenth line of which is at fault."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        lines = (asking(str(number), temperature=9 if number % 10 == 9 else 1) for number in range(LINES))
        platform.compat.batches.create(uploaded(platform, lines))
    return folder


@pytest.mark.parametrize("moment", sampled(MOMENTS, 5))
def test_every_line_is_answered_in_its_place(nursery: Nursery, requested: Path, tmp_path: Path, moment: str) -> None:
    shutil.copytree(requested, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, lease=600.0, poll=0.01, acts={moment: "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        (batch,) = platform.compat.batches.list()
    successor = nursery.start(path, lease=0.2, poll=0.01)
    successor.hear_until("changed", batch.id, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        check(platform)


def check(platform: Platform) -> None:
    (batch,) = platform.compat.batches.list()
    assert (batch.status, batch.completed, batch.failed) == (BatchStatus.COMPLETED, LINES * 9 // 10, LINES // 10)
    good = [line["custom_id"] for line in lines_of(platform, batch.output_file_id)]
    bad = [line["custom_id"] for line in lines_of(platform, batch.error_file_id)]
    assert good == [str(number) for number in range(LINES) if number % 10 != 9]
    assert bad == [str(number) for number in range(LINES) if number % 10 == 9]
    assert len(good) <= len(list(platform.usage.list())) <= len(good) + AHEAD + LINES_AT_ONCE
    named = {part["artifact"] for file in platform.compat.files.list() for part in file.parts.values()}
    assert named <= set(platform._runtime.artifacts.names())
