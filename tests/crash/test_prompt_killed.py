"""A prompt job whose worker is killed after each commit: nothing that was booked is asked again."""

import shutil
from pathlib import Path

import pytest
from nursery import Nursery

from modelyard import Platform, open_platform
from prompt_tasks import length
from sampled import sampled

pytestmark = [pytest.mark.crash, pytest.mark.parts]

TASKS = [{"prompt": f"question {number}"} for number in range(3)]
COMMITS = 26
"""How many commits a worker makes until the job has ended, at least."""


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store that has one prompt job in its queue."""
    folder = tmp_path_factory.mktemp("requested")
    with open_platform(folder / "yard.db") as platform:
        request(platform)
    return folder


def request(platform: Platform) -> None:
    platform.variants.publish("p/v", model="tabular-mini", system="Begin.")
    options = {"calls": 24, "minibatch": 2, "concurrency": 1, "max_tokens": 6, "reflection_max_tokens": 8, "seed": 5}
    platform.training.prompt("p/v", TASKS, length, reflection="tabular-mini", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What an undisturbed job does."""
    with open_platform(tmp_path_factory.mktemp("whole") / "yard.db") as platform:
        request(platform)
        platform.training.prompt.get(next(iter(platform.training.list())).id).wait()
        return history(platform)


def history(platform: Platform) -> list[object]:
    job = platform.training.prompt.get(next(iter(platform.training.list())).id)
    found: list[object] = [
        (one.text, one.parent, one.before, one.after, one.score, one.calls) for one in job.proposals()
    ]
    events = [event.type for event in job.events(follow=False)]
    steps = [row.step for row in job.metrics()]
    requests = sum(one.requests for one in platform.usage.total(by=("model",)))
    return [*found, events, steps, requests, platform.variants.get("p/v").last_number]


@pytest.mark.parametrize("commit", sampled(range(1, COMMITS + 1), 6))
def test_no_call_is_asked_twice(
    nursery: Nursery, requested: Path, whole: list[object], tmp_path: Path, commit: int
) -> None:
    shutil.copytree(requested, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "yard.db"
    child = nursery.start(path, save_every=1, lease=600.0, poll=0.01, acts={f"commit {commit} after": "die"})
    child.hear_until("gone")
    assert child.status == -9
    with open_platform(path) as platform:
        job = next(iter(platform.training.list())).id
        before = [event.id for event in platform.training.events(job)]
    successor = nursery.start(path, save_every=1, lease=0.2, poll=0.01)
    successor.hear_until("changed", job, "succeeded")
    successor.stop()
    with open_platform(path) as platform:
        assert [event.id for event in platform.training.events(job)][: len(before)] == before
        assert history(platform) == whole
