"""Every method of a folder of artifacts, with a fault at each thing that it asks of the system."""

import errno
import itertools
import os
from pathlib import Path

import pytest

from artifact_calls import CALLS
from failing_calls import FailingSystem, Faults
from modelyard import disk
from modelyard.artifacts import folder as folder_module
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.errors import ArtifactMissing, StorageFull, StoreError
from modelyard.protocols import ArtifactStore
from store_calls import methods_of, outcome_of


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
            assert error is None or isinstance(error, ArtifactMissing if name == "finish" else StoreError), (
                f"{name}, question {at}: {error!r}"
            )
            if error is not None and not lasting and name != "finish":
                assert isinstance(error, StorageFull) is (number in disk.NO_ROOM), f"{name}, question {at}: {error!r}"
            if faults.asked < at:
                break
        assert faults.asked or name in ("begin", "finish")
    artifacts.check()


def test_what_is_in_memory_raises_documented_errors_alone(tmp_path: Path) -> None:
    artifacts = MemoryArtifacts()
    for name, call in [(name, call) for name, calls in CALLS.items() for call in calls]:
        kept = artifacts.put([b"kept"])
        error = outcome_of(lambda call=call, kept=kept: call(artifacts, kept, tmp_path))
        assert (type(error) if error else None) is {"finish": ArtifactMissing, "backup": StoreError}.get(name), name
