"""The folder: whole or absent after any fault, private, shared by processes, deaf to links."""

import errno
import gc
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modelyard.artifacts import folder
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.errors import ArtifactMissing, StorageFull, StoreError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "artifacts"


def test_artifacts_outlive_the_object(path: Path) -> None:
    name = FolderArtifacts(path).put([b"kept"]).name
    with FolderArtifacts(path).open(name) as file:
        assert file.read() == b"kept"


def test_only_the_owner_may_look_in(path: Path) -> None:
    name = FolderArtifacts(path).put([b"secret"]).name
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE((path / name).stat().st_mode) == 0o600


def test_opened_once_it_stays_the_same_folder_when_it_is_moved(path: Path) -> None:
    artifacts = FolderArtifacts(path)
    moved = path.rename(path.with_name("elsewhere"))
    name = artifacts.put([b"here"]).name
    assert (moved / name).read_bytes() == b"here"


def test_a_link_in_the_place_of_an_artifact_is_not_followed(path: Path, tmp_path: Path) -> None:
    artifacts = FolderArtifacts(path)
    (tmp_path / "secret").write_text("secret")
    (path / ("a" * 32)).symlink_to(tmp_path / "secret")
    with pytest.raises(ArtifactMissing):
        artifacts.open("a" * 32)


def test_a_link_in_the_place_of_a_part_is_neither_written_through_nor_followed_by_the_sweep(
    path: Path, tmp_path: Path
) -> None:
    (tmp_path / "victim").write_text("untouched")
    name = FolderArtifacts(tmp_path / "other", bytes).put([b"x"]).name
    path.mkdir()
    (path / f"{name}.part").symlink_to(tmp_path / "victim")
    assert FolderArtifacts(path, bytes).put([b"new"]).name != name
    assert (tmp_path / "victim").read_text() == "untouched"


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_no_files(path: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int) -> None:
    artifacts = FolderArtifacts(path)

    def full(*_: object) -> int:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        patched.setattr(folder.os, call, full)
        with pytest.raises(StorageFull):
            artifacts.put([b"too much"])
    assert os.listdir(path) == []
    assert artifacts.put([b"room again"]).size == 10


def test_a_file_size_limit_counts_as_a_full_disk(path: Path) -> None:
    artifacts = FolderArtifacts(path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, before[1]))
    try:
        with pytest.raises(StorageFull):
            artifacts.put([b"x" * 10_000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(path) == []


def test_a_failing_disk_is_a_store_error_and_leaves_no_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = FolderArtifacts(path)
    syncs: list[int] = []

    def fail_at_the_folder(file: int) -> None:
        syncs.append(file)
        if len(syncs) == 2:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(folder.os, "fsync", fail_at_the_folder)
    with pytest.raises(StoreError, match="Input/output error"):
        artifacts.put([b"lost"])
    assert os.listdir(path) == []


def test_file_and_folder_are_synced_around_the_naming(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = FolderArtifacts(path)
    calls: list[str] = []
    for name in ("fsync", "rename"):
        real = getattr(os, name)
        monkeypatch.setattr(
            folder.os,
            name,
            lambda *args, _real=real, _name=name, **more: (calls.append(_name), _real(*args, **more))[1],
        )
    artifacts.put([b"x"])
    assert calls == ["fsync", "rename", "fsync"]


def test_what_a_killed_writer_left_is_swept_away_and_what_a_living_one_writes_is_not(path: Path) -> None:
    artifacts = FolderArtifacts(path)
    kill_self = (
        "import os, signal, sys\n"
        "from modelyard.artifacts.folder import FolderArtifacts\n"
        "def chunks():\n"
        "    yield b'half'\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "FolderArtifacts(sys.argv[1]).put(chunks())\n"
    )
    subprocess.run([sys.executable, "-c", kill_self, path], check=False)
    (left,) = os.listdir(path)
    assert left.endswith(".part")

    def chunks() -> Iterator[bytes]:
        yield b"first, "
        assert len(os.listdir(path)) == 2
        FolderArtifacts(path)
        (mine,) = os.listdir(path)
        assert mine != left
        yield b"second"

    name = artifacts.put(chunks()).name
    assert os.listdir(path) == [name]


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="artifacts folder"):
        FolderArtifacts(tmp_path / "file")


def test_the_descriptor_goes_with_the_object(path: Path) -> None:
    gc.freeze()  # the collection below looks at what this test leaves
    before = set(os.listdir("/proc/self/fd"))
    artifacts = FolderArtifacts(path)
    artifacts.put([b"x"])
    del artifacts
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before


def test_altered_bytes_fail_the_check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts = FolderArtifacts(path)
    real = os.write
    monkeypatch.setattr(folder.os, "write", lambda file, data: real(file, bytes(len(data))))
    with pytest.raises(StoreError, match="altered"):
        artifacts.check()
    assert os.listdir(path) == []


def test_the_names_of_new_folders_are_brought_to_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(folder, "sync_folder", synced.append)
    folder.FolderArtifacts(tmp_path / "a" / "b")
    assert synced == [str(tmp_path), str(tmp_path / "a")]


def test_a_system_without_locks_is_refused_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "HAS_LOCKS", False)
    with pytest.raises(StoreError, match="on Windows use WSL"):
        folder.FolderArtifacts(tmp_path / "a")
