"""Every method of an object store, with a fault at each thing that it asks of the service or of the cache's disk."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError, PermissionDeniedError
from obstore.store import MemoryStore, S3Store

from artifact_calls import CALLS
from failing_calls import FailingSystem, Faults
from modelyard import disk
from modelyard.artifacts import folder as folder_module
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable, StoreError
from modelyard.parts.objects import cache, direct, store
from modelyard.parts.objects.store import ObjectArtifacts
from modelyard.protocols import ArtifactStore
from store_calls import methods_of, outcome_of

PanicException = type("PanicException", (BaseException,), {})
"""What the language of obstore raises, by its name."""

ASKS = frozenset({"delete", "get", "get_range", "head", "list", "open_writer"})

GIVEN = frozenset({"get", "list", "open_writer"})


class FailingObstore(ModuleType):
    """The module `obstore`, and what it gives out."""

    def __init__(self, faults: Faults) -> None:
        super().__init__("obstore")
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(obstore, name)
        return self._failing(found) if name in ASKS else found

    def _failing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asking(*given: Any, **more: Any) -> Any:
            self._faults.ask()
            found = call(*given, **more)
            return Given(found, self._faults) if call.__name__ in GIVEN else found

        return asking


class Given:
    """A writer, an answer or a listing: each further request that it makes may fail, too."""

    def __init__(self, inner: Any, faults: Faults) -> None:
        self._inner, self._faults = inner, faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._faults.wrap(found) if name in ("write", "close") else found

    def __getitem__(self, name: Any) -> Any:
        return self._inner[name]

    def __iter__(self) -> Any:
        return map(self._faults.wrap(lambda one: one), self._inner)

    def stream(self, **options: Any) -> Any:
        return map(self._faults.wrap(lambda one: one), self._inner.stream(**options))


def test_no_method_is_left_out() -> None:
    assert methods_of(ArtifactStore) == {*CALLS}


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(
    "fault",
    [
        GenericError("error sending request: Connect"),
        PermissionDeniedError("403 Forbidden"),
        ConnectionResetError("reset"),
        TimeoutError("timed out"),
        PanicException("bad endpoint"),
    ],
    ids=lambda fault: type(fault).__name__,
)
def test_a_fault_of_the_service_is_told_by_a_documented_error(
    tmp_path: Path, fault: BaseException, lasting: bool
) -> None:
    artifacts = ObjectArtifacts(MemoryStore(), tmp_path / "cache", whole=2)
    asked = set()
    for name, call in [(name, call) for name, calls in CALLS.items() for call in calls]:
        for at in itertools.count(1):
            for left in artifacts.names():
                artifacts.remove(left)
            kept = artifacts.put([b"kept"])
            faults = Faults(lambda: fault, at, lasting)
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(store, "obstore", FailingObstore(faults))
                patched.setattr(direct, "obstore", FailingObstore(faults))
                error = outcome_of(lambda call=call, kept=kept: call(artifacts, kept, tmp_path))
            allowed = ArtifactMissing if name == "finish" else ArtifactsUnavailable
            assert error is None or isinstance(error, allowed), f"{name}, question {at}: {error!r}"
            if faults.asked < at:
                break
            asked.add(name)
    assert asked == {"put", "open", "remove", "names", "check", "backup"}
    artifacts.check()


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize("code", ["EIO", "ENOSPC", "EACCES", "EROFS", "EMFILE"])
def test_a_fault_of_the_disk_of_the_cache_is_told_by_a_documented_error(
    tmp_path: Path, code: str, lasting: bool
) -> None:
    artifacts, number = ObjectArtifacts(MemoryStore(), tmp_path / "cache"), getattr(errno, code)
    for name, call in [(name, call) for name, calls in CALLS.items() for call in calls]:
        for at in itertools.count(1):
            for left in artifacts.names():
                artifacts.remove(left)
            kept = artifacts.put([b"kept"])
            faults = Faults(lambda: OSError(number, os.strerror(number)), at, lasting)
            with pytest.MonkeyPatch.context() as patched:
                for module in (folder_module, disk, cache):
                    patched.setattr(module, "os", FailingSystem(faults))
                error = outcome_of(lambda call=call, kept=kept: call(artifacts, kept, tmp_path))
            allowed = ArtifactMissing if name == "finish" else StoreError
            assert error is None or isinstance(error, allowed), f"{name}, question {at}: {error!r}"
            if faults.asked < at:
                break


@pytest.mark.parametrize("name", [name for name in CALLS if name not in ("scratch", "free")])
def test_a_service_that_nobody_reaches_is_told_by_a_documented_error(tmp_path: Path, name: str) -> None:
    nowhere = S3Store(
        "bucket",
        endpoint="http://127.0.0.1:1",
        region="us-east-1",
        access_key_id="a",
        secret_access_key="b",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )
    artifacts = ObjectArtifacts(nowhere, tmp_path / "cache")
    kept = ObjectArtifacts(MemoryStore(), tmp_path / "other").put([b"kept"])
    for call in CALLS[name]:
        error = outcome_of(lambda call=call: call(artifacts, kept, tmp_path))
        assert isinstance(error, ArtifactsUnavailable), error
        assert "127.0.0.1" not in str(error)
