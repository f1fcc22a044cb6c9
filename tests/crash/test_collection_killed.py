"""A collection whose worker is killed at any moment: the next one continues, and the dataset is the same."""

import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from nursery import Nursery

from modelyard import Platform, open_platform
from modelyard.parts.traffic.job import JUDGED_AT_ONCE
from modelyard.parts.traffic.judging import CONCURRENCY
from sampled import sampled

pytestmark = pytest.mark.crash

ANSWERS = 130
JUDGE = {"type": "llm_judge", "model": "echo", "prompt": "{output}", "scale": "number"}
CHOSEN: dict[str, Any] = {"score": JUDGE, "at_least": 3, "holdout": 0.3}
MOMENTS = [
    *(f"commit {number} {place}" for number in range(1, 7) for place in ("inside", "after")),
    *("commit 7 inside", "commit 7 after", "commit 8 inside", "commit 8 after", "commit 9 inside"),
    *(f"put {number} {place}" for number in range(1, 6) for place in ("half", "after")),
    *(f"beat {number} after" for number in (1, 30, 70)),
]
"""Every commit but the last: the claim, the start, three parts, two datasets and the training; and every file."""


@attrs.frozen
class Requested:
    """A folder with a store that has a collection in its queue, and what an undisturbed one makes."""

    folder: Path
    digests: tuple[str, str]
    left_out: dict[str, int]


def made(platform: Platform, name: str) -> tuple[str, str]:
    found = [platform.compat.uploads.find(one, project="default") for one in (name, f"{name}-held-out")]
    return tuple(one.digest if one else "" for one in found)  # type: ignore[return-value]


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Requested:
    """A folder with a store that has one collection in its queue, with a training on what it makes."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        platform.models.create("bot", project="default", base_model="tabular-mini")
        for number in range(ANSWERS):
            words = [{"role": "system", "content": str(number % 100)}, {"role": "user", "content": str(number % 10)}]
            platform.chat.complete(model="echo", messages=words, store=True)
        whole = platform.traffic.collect("undisturbed", **CHOSEN)
        platform.traffic.submit("answers", train="default/bot", **CHOSEN)
        return Requested(folder, made(platform, "undisturbed"), dict(whole.left_out))


@pytest.mark.parametrize("moment", sampled(MOMENTS, 5))
def test_the_dataset_is_the_same(nursery: Nursery, requested: Requested, tmp_path: Path, moment: str) -> None:
    shutil.copytree(requested.folder, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, lease=600.0, poll=0.01, acts={moment: "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        (collection,) = platform.traffic.list()
        before = len([*platform.usage.list()])
    successor = nursery.start(path, lease=0.2, poll=0.01)
    successor.hear_until("changed", collection.id, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        check(platform, requested)
        assert before <= len([*platform.usage.list()]) <= 3 * ANSWERS + JUDGED_AT_ONCE + CONCURRENCY


def check(platform: Platform, requested: Requested) -> None:
    (collection,) = platform.traffic.list()
    assert made(platform, "answers") == requested.digests
    assert dict(collection.left_out) == requested.left_out
    (training,) = platform.training.list()
    assert training.id == collection.training_job_id
    assert collection.train is not None
    assert platform.compat.uploads.find("answers:v1", project="default") is None, "there is one version"
