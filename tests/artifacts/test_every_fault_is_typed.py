"""Every method of a folder of artifacts, with a fault at each thing that it asks of the system."""

import errno
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from failing_calls import FailingSystem, Faults
from modelyard import disk
from modelyard.artifacts import folder as folder_module
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.errors import StorageFull, StoreError
from modelyard.protocols import ArtifactStore, StoredArtifact
from store_calls import methods_of, outcome_of

Call = Callable[[FolderArtifacts, StoredArtifact, Path], Any]


def _read(artifacts: FolderArtifacts, kept: StoredArtifact, digest: str | None) -> None:
    with artifacts.open(kept.name, digest) as file:
        assert file.read() == b"kept"


def _scratch(artifacts: FolderArtifacts) -> None:
    with artifacts.scratch() as file:
        file.write(b"a")
        file.seek(0)
        file.read()


def _left(artifacts: FolderArtifacts, folder: Path) -> None:
    (folder / "yard" / f"{'0' * 32}.part").write_bytes(b"left by a writer that died")
    artifacts.remove_unfinished(-1e9)


CALLS: Mapping[str, Sequence[Call]] = {
    "put": [lambda artifacts, kept, folder: artifacts.put([b"a", b"b"])],
    "open": [
        lambda artifacts, kept, folder: _read(artifacts, kept, None),
        lambda artifacts, kept, folder: _read(artifacts, kept, kept.digest),
    ],
    "scratch": [lambda artifacts, kept, folder: _scratch(artifacts)],
    "begin": [lambda artifacts, kept, folder: artifacts.begin(1)],
    "finish": [],
    "remove": [lambda artifacts, kept, folder: artifacts.remove(kept.name)],
    "remove_unfinished": [lambda artifacts, kept, folder: _left(artifacts, folder)],
    "names": [lambda artifacts, kept, folder: [*artifacts.names()]],
    "free": [lambda artifacts, kept, folder: artifacts.free()],
    "check": [lambda artifacts, kept, folder: artifacts.check()],
    "backup": [lambda artifacts, kept, folder: artifacts.backup(str(folder / os.urandom(4).hex() / "copy"))],
}


def test_no_method_is_left_out() -> None:
    assert methods_of(ArtifactStore) == {*CALLS}


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EDQUOT", "EACCES", "EROFS", "EMFILE", "ESTALE", "ETIMEDOUT"])
def test_a_fault_at_any_question_is_told_by_a_documented_error(tmp_path: Path, code: str, lasting: bool) -> None:
    artifacts, number = FolderArtifacts(tmp_path / "yard"), getattr(errno, code)
    for name, call in [(name, call) for name, calls in CALLS.items() for call in calls]:
        for at in itertools.count(1):
            for left in artifacts.names():
                artifacts.remove(left)
            kept = artifacts.put([b"kept"])
            faults = Faults(lambda: OSError(number, os.strerror(number)), at, lasting)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(folder_module, "os", FailingSystem(faults))
                patched.setattr(disk, "os", FailingSystem(faults))
                error = outcome_of(lambda call=call, kept=kept: call(artifacts, kept, tmp_path))
            assert error is None or isinstance(error, StoreError), f"{name}, question {at}: {error!r}"
            if error is not None and not lasting:
                assert isinstance(error, StorageFull) is (number in disk.NO_ROOM), f"{name}, question {at}: {error!r}"
            if faults.asked < at:
                break
        assert faults.asked or name == "begin"
    artifacts.check()
