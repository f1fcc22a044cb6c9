"""A disk that is nearly full: new work is refused first, and what runs gets to its end."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from modelyard import open_platform
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.errors import StorageFull
from modelyard.http.endpoint import Endpoint
from modelyard.http.message import Request
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Settings

SPARE = 1000
CHAT = [{"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "goodbye"}]}]
GROUP = [{"trajectories": [{"reward": 1.0, "messages_and_choices": []}]}]
ROWS = [{"prompt": "hello", "expected": "hello"}]


class Disk(MemoryArtifacts):
    """Memory of so many bytes, as it says."""

    room = SPARE

    def free(self) -> int:  # type: ignore[override] - memory that is a disk
        return self.room


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def platform(disk: Disk) -> Iterator[Platform]:
    with open_platform(artifacts=disk, settings=Settings(spare_room=SPARE)) as opened:
        opened.models.create("m", project="red", base_model="tabular-mini")
        yield opened


BEGINNINGS: dict[str, Callable[[Platform], object]] = {
    "an SFT job": lambda platform: platform.training.sft("red/m", CHAT),
    "an RL job": lambda platform: platform.training.rl("red/m", GROUP),
    "a dataset": lambda platform: platform.training.upload("greetings", CHAT, project="red"),
    "an evaluation": lambda platform: platform.evaluations.run("greetings", "echo", ROWS, project="red"),
    "an evaluation for a worker": lambda platform: platform.evaluations.submit(
        "greetings", "echo", ROWS, project="red"
    ),
}


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_new_work_is_refused_before_the_disk_is_full_and_nothing_of_it_is_kept(
    platform: Platform, disk: Disk, begin: Callable[[Platform], object]
) -> None:
    disk.room = SPARE - 1
    with pytest.raises(StorageFull, match="free some"):
        begin(platform)
    assert list(disk.names()) == []
    assert not platform.training.list(project="red").page().items


@pytest.mark.parametrize("begin", BEGINNINGS.values(), ids=BEGINNINGS)
def test_room_that_just_suffices_does(platform: Platform, begin: Callable[[Platform], object]) -> None:
    begin(platform)


def test_a_rescoring_is_new_work(platform: Platform, disk: Disk) -> None:
    result = platform.evaluations.run("greetings", "echo", ROWS, project="red")
    disk.room = 0
    with pytest.raises(StorageFull):
        platform.evaluations.rescore(result.run.id, ["exact_match"])


def test_a_job_that_was_taken_in_keeps_its_checkpoint_in_the_spare_room(platform: Platform, disk: Disk) -> None:
    job = platform.training.sft("red/m", CHAT)
    disk.room = 0
    assert job.result().step == 1


def test_a_body_of_data_is_refused_unread(platform: Platform, disk: Disk) -> None:
    disk.room = 0
    key = platform.keys.create()

    def body() -> Iterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    headers = [("authorization", f"Bearer {key.secret}"), ("content-type", "application/json")]
    path = f"/v1/preview/models/{platform.models.get('red/m').id}/log"
    answer = Endpoint(platform).handle(Request("POST", path, "", headers, body()))
    assert answer.status == 507


def test_the_system_check_says_that_room_is_short(platform: Platform, disk: Disk) -> None:
    assert platform.health.system_check().artifacts.success
    disk.room = SPARE - 1
    check = platform.health.system_check().artifacts
    assert not check.success
    assert "free some" in (check.error or "")


def test_a_disk_says_how_much_is_free(tmp_path: Path) -> None:
    """What a file on it takes is free no longer; others write meanwhile, so this is all that can be said of numbers."""
    with open_platform(tmp_path / "yard.db", settings=Settings(spare_room=2**70)) as platform:
        with pytest.raises(StorageFull, match=r"only \d+ MiB are free"):
            platform.training.upload("greetings", CHAT, project="red")
