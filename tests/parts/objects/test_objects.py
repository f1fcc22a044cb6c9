"""The artifacts of an object store, in one that is in memory and in one that is a folder: neither needs a server."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import LocalStore, MemoryStore

from each import each_case
from modelyard import Example, Message, Role, open_platform
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable
from modelyard.parts.objects.direct import part_size
from modelyard.parts.objects.ranges import READ_AHEAD
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.protocols import ArtifactStore
from modelyard.testing import ArtifactStoreContract


class TestObjectsInMemory(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> ObjectArtifacts:
        return ObjectArtifacts(MemoryStore(), tmp_path / "cache")


class TestLargeObjectsInMemory(ArtifactStoreContract):
    """In parts, and read in ranges."""

    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> ObjectArtifacts:
        return ObjectArtifacts(MemoryStore(), tmp_path / "cache", part=70_000, whole=50_000)


class TestObjectsWithoutRoomForCopies(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> ObjectArtifacts:
        return ObjectArtifacts(MemoryStore(), tmp_path / "cache", room=3)

    def test_an_open_file_stays_readable_when_it_is_removed(self, artifacts: ArtifactStore) -> None:
        """What is fetched in ranges is gone, and is not taken for the end of the file."""
        name = artifacts.put([b"still here"]).name
        with artifacts.open(name) as file:
            artifacts.remove(name)
            with pytest.raises(ArtifactMissing):
                file.read()


class TestObjectsInAFolder(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> ObjectArtifacts:
        (tmp_path / "objects").mkdir()
        return ObjectArtifacts(LocalStore(tmp_path / "objects"), tmp_path / "cache")


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def opened(bucket: MemoryStore, tmp_path: Path) -> Callable[..., ObjectArtifacts]:
    """Another process with the same bucket and the same folder of copies."""
    return lambda **options: ObjectArtifacts(bucket, tmp_path / "cache", **options)


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all ranges that are fetched from here on."""
    lengths: list[int] = []
    real = obstore.get_range

    def get_range(*arguments: Any, start: int, length: int) -> Any:
        lengths.append(length)
        return real(*arguments, start=start, length=length)

    monkeypatch.setattr(obstore, "get_range", get_range)
    return lengths


def test_of_a_large_artifact_only_what_is_read_is_fetched(
    opened: Callable[..., ObjectArtifacts], fetched: list[int], tmp_path: Path
) -> None:
    artifacts = opened(whole=2**20)
    data = os.urandom(2**20) * 24
    name = artifacts.put([data]).name
    with artifacts.open(name) as file:
        assert file.seek(-10, os.SEEK_END) == len(data) - 10
        assert file.read() == data[-10:]
        file.seek(2**20)
        assert file.read(100) == data[:100]
        assert file.read(2**20) == data[100:][: 2**20]
    assert sum(fetched) <= 3 * READ_AHEAD
    assert list((tmp_path / "cache").iterdir()) == []
    with artifacts.open(name) as file:
        assert file.read() == data
        assert file.read() == b""
    assert max(fetched) <= READ_AHEAD


def test_a_place_before_the_start_is_refused(opened: Callable[..., ObjectArtifacts]) -> None:
    artifacts = opened(whole=1)
    with artifacts.open(artifacts.put([b"abc"]).name) as file:
        with pytest.raises(ValueError, match="before the start"):
            file.seek(-4, os.SEEK_END)
        file.seek(7)
        assert file.read() == b""


def test_a_digest_is_compared_for_what_is_too_large_for_the_room(
    opened: Callable[..., ObjectArtifacts], tmp_path: Path
) -> None:
    artifacts = opened(room=10)
    stored = artifacts.put([b"x" * 11])
    with artifacts.open(stored.name, stored.digest) as file:
        assert file.read() == b"x" * 11
    with pytest.raises(ArtifactMissing, match="altered"):
        artifacts.open(stored.name, "0" * 64)
    assert list((tmp_path / "cache").iterdir()) == []


@each_case("size", [1, 10**9, 10**11, 128 * 2**20 * 10_000, 128 * 2**20 * 10_000 + 1, 5 * 10**12])
def test_an_upload_of_any_size_has_at_most_ten_thousand_parts(size: int) -> None:
    part = part_size(size)
    assert part % 2**20 == 0
    assert -(-size // part) <= 10_000


def copies(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").iterdir()}


def test_copies_take_the_room_that_they_have_and_those_that_were_used_last_stay(
    opened: Callable[..., ObjectArtifacts], tmp_path: Path
) -> None:
    artifacts = opened(room=1000)
    names = [artifacts.put([b"x" * 200]).name for _ in range(6)]
    for age, name in enumerate(names[:5]):
        artifacts.open(name).close()
        os.utime(tmp_path / "cache" / name, (age, age))
    assert copies(tmp_path) == set(names[:5])
    artifacts.open(names[0]).close()
    artifacts.open(names[5]).close()
    assert copies(tmp_path) == {names[0], names[3], names[4], names[5]}


def test_the_copies_of_an_earlier_process_count(opened: Callable[..., ObjectArtifacts], tmp_path: Path) -> None:
    old = opened().put([b"x" * 900]).name
    opened().open(old).close()
    os.utime(tmp_path / "cache" / old, (0, 0))
    artifacts = opened(room=1000)
    new = artifacts.put([b"y" * 900]).name
    artifacts.open(new).close()
    assert copies(tmp_path) == {new}


def test_a_copy_that_was_altered_is_fetched_again(opened: Callable[..., ObjectArtifacts], tmp_path: Path) -> None:
    stored = opened().put([b"right"])
    opened().open(stored.name).close()
    (tmp_path / "cache" / stored.name).write_bytes(b"wrong")
    with opened().open(stored.name, stored.digest) as file:
        assert file.read() == b"right"


def test_bytes_that_were_altered_in_the_bucket_are_missing(
    opened: Callable[..., ObjectArtifacts], bucket: MemoryStore
) -> None:
    stored = opened().put([b"right"])
    bucket.put(stored.name, b"wrong")
    for _ in range(2):
        with pytest.raises(ArtifactMissing, match="altered"):
            opened().open(stored.name, stored.digest)


def test_what_another_process_removed_is_missing_though_there_is_a_copy(
    opened: Callable[..., ObjectArtifacts], bucket: MemoryStore, tmp_path: Path
) -> None:
    name = opened().put([b"x"]).name
    opened().open(name).close()
    bucket.delete(name)
    with pytest.raises(ArtifactMissing):
        opened().open(name)
    assert copies(tmp_path) == set()


def test_a_copy_that_another_process_is_making_is_not_waited_for(
    opened: Callable[..., ObjectArtifacts], tmp_path: Path
) -> None:
    name = opened().put([b"x"]).name
    artifacts = opened()
    (tmp_path / "cache" / f"{name}.part").touch()
    with artifacts.open(name) as file:
        assert file.read() == b"x"
    assert copies(tmp_path) == {f"{name}.part"}


def test_other_objects_of_the_bucket_are_not_artifacts(
    opened: Callable[..., ObjectArtifacts], bucket: MemoryStore
) -> None:
    for path in ("read.me", "0" * 31, f"folder/{'0' * 32}"):
        bucket.put(path, b"x")
    assert list(opened().names()) == []


def test_a_backup_copies_what_the_folder_lacks_and_nothing_into_the_cache(
    opened: Callable[..., ObjectArtifacts], tmp_path: Path
) -> None:
    artifacts = opened()
    name = artifacts.put([b"x"]).name
    artifacts.backup(str(tmp_path / "copy"))
    assert (tmp_path / "copy" / name).read_bytes() == b"x"
    assert copies(tmp_path) == set()


def test_a_platform_trains_on_artifacts_in_an_object_store(opened: Callable[..., ObjectArtifacts]) -> None:
    rows = [Example((Message(Role.USER, "ping"), Message(Role.ASSISTANT, "pong")))] * 4
    with open_platform(artifacts=opened()) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        assert platform.training.sft(model.id, rows).wait().status == "succeeded"
        platform.chat.complete(model="local/p/m", messages="ping")
        assert platform.remove_orphans(grace=0).removed == 0
        assert set(opened().names())


def test_a_copy_with_its_digest_is_opened_without_asking_the_bucket(
    opened: Callable[..., ObjectArtifacts], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = opened().put([b"weights"])
    opened().open(stored.name, stored.digest).close()
    requests: list[str] = []

    def refuse(_: Any, name: str, **__: Any) -> None:
        requests.append(name)
        raise GenericError("error sending request")

    for call in ("get", "head", "get_range"):
        monkeypatch.setattr(obstore, call, refuse)
    with opened().open(stored.name, stored.digest) as file:
        assert (file.read(), requests) == (b"weights", [])
    with opened().open(stored.name) as file:
        assert (file.read(), requests) == (b"weights", [stored.name])
    (tmp_path / "cache" / stored.name).unlink()
    with pytest.raises(ArtifactsUnavailable, match="cannot be reached"):
        opened().open(stored.name, stored.digest)
