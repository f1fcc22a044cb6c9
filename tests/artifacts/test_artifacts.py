"""Both artifact stores keep the contract, and the contract catches broken ones."""

import io
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

import pytest

from each import each_case
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.memory import MemoryArtifacts
from modelyard.errors import ArtifactMissing
from modelyard.protocols import DirectUpload, StoredArtifact
from modelyard.testing import ArtifactStoreContract


class TestMemoryArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self) -> MemoryArtifacts:
        return MemoryArtifacts()


class TestFolderArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self, tmp_path: Path) -> FolderArtifacts:
        return FolderArtifacts(tmp_path / "artifacts")


# ---- teeth -------------------------------------------------------------------------------------------------------


class LosesTheTail(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        return super().put([b"".join(chunks)[:50_000]])


class NamesByContent(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        stored = super().put(chunks)
        self._kept[stored.digest] = self._kept.pop(stored.name)
        return StoredArtifact(stored.digest, stored.size, stored.digest)


class KeepsHalves(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        taken: list[bytes] = []
        try:
            taken.extend(chunks)
        except EOFError:
            super().put(taken)
            raise
        return super().put(taken)


class NamesTooEarly(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        early = super().put([])
        data = b"".join(chunks)
        self.remove(early.name)
        return super().put([data])


class SharesItsFiles(MemoryArtifacts):
    def __init__(self) -> None:
        super().__init__()
        self._files: dict[str, BinaryIO] = {}

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        return self._files.setdefault(name, super().open(name, digest))


class RemoveFailsTwice(MemoryArtifacts):
    def remove(self, name: str) -> None:
        del self._kept[name]


class KeepsWhatIsRemoved(MemoryArtifacts):
    def remove(self, name: str) -> None:
        pass


class ReusesNames(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        stored = super().put(chunks)
        number = next(n for n in range(1000) if f"{n}" not in self._kept)
        self._kept[f"{number}"] = self._kept.pop(stored.name)
        return StoredArtifact(f"{number}", stored.size, stored.digest)


class OpensAnything(MemoryArtifacts):
    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        try:
            return super().open(name, digest)
        except ArtifactMissing:
            return io.BytesIO()


class CheckLeavesItsProof(MemoryArtifacts):
    def check(self) -> None:
        self.put([b"proof"])


class LiesAboutTheDigest(MemoryArtifacts):
    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        stored = super().put(chunks)
        return StoredArtifact(stored.name, stored.size, "0" * 64)


class NeverCompares(MemoryArtifacts):
    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        return super().open(name)


class FinishesAnything(MemoryArtifacts):
    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        return self.put([b""])


class RemovesWhatIsUnderWay(MemoryArtifacts):
    def remove_unfinished(self, seconds: float) -> int:
        self._kept.clear()
        return 0


BROKEN = {
    NeverCompares: lambda c, a: c.test_bytes_are_compared_with_a_digest_before_any_is_read(a),
    FinishesAnything: lambda c, a: c.test_an_upload_to_addresses_is_an_artifact_once_it_is_finished(a, "0" * 64),
    RemovesWhatIsUnderWay: lambda c, a: c.test_only_what_is_unfinished_is_removed_as_such(a),
    LosesTheTail: lambda c, a: c.test_bytes_come_back_as_they_were_put(a, [b"x" * 100_000]),
    LiesAboutTheDigest: lambda c, a: c.test_bytes_come_back_as_they_were_put(a, [b"x"]),
    NamesByContent: lambda c, a: c.test_equal_bytes_have_names_of_their_own(a),
    KeepsHalves: lambda c, a: c.test_nothing_remains_of_a_source_that_fails(a),
    NamesTooEarly: lambda c, a: c.test_half_an_artifact_has_no_name(a),
    SharesItsFiles: lambda c, a: c.test_readers_do_not_disturb_each_other(a),
    RemoveFailsTwice: lambda c, a: c.test_a_removed_name_is_missing_and_is_not_used_again(a),
    KeepsWhatIsRemoved: lambda c, a: c.test_a_removed_name_is_missing_and_is_not_used_again(a),
    ReusesNames: lambda c, a: c.test_a_removed_name_is_missing_and_is_not_used_again(a),
    OpensAnything: lambda c, a: c.test_names_of_strangers_are_missing_artifacts(a, "../x"),
    CheckLeavesItsProof: lambda c, a: c.test_a_healthy_store_passes_its_check_and_keeps_nothing_of_it(a),
}


@each_case("broken", BROKEN)
def test_the_contract_catches_a_store_that(broken: type[MemoryArtifacts]) -> None:
    law: Callable[[ArtifactStoreContract, MemoryArtifacts], None] = BROKEN[broken]
    law(ArtifactStoreContract(), MemoryArtifacts())
    with pytest.raises((AssertionError, pytest.fail.Exception, KeyError, ValueError, ArtifactMissing)):
        law(ArtifactStoreContract(), broken())


def chunks_of(*chunks: bytes) -> Iterator[bytes]:
    yield from chunks


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_randomness_that_repeats_itself_harms_nothing(kind: str, tmp_path: Path) -> None:
    artifacts = MemoryArtifacts(bytes) if kind == "memory" else FolderArtifacts(tmp_path, bytes)
    assert len({artifacts.put(chunks_of(b"x")).name for _ in range(5)}) == 5


def test_a_seeded_source_names_artifacts_alike_each_time() -> None:
    assert MemoryArtifacts(bytes).put([b"x"]).name == MemoryArtifacts(bytes).put([b"x"]).name
