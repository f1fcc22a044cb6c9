"""The contract of every artifact store, to run on your own implementation:

class TestMyArtifacts(ArtifactStoreContract):
    @pytest.fixture
    def artifacts(self):
        return MyArtifacts()
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import pytest

from modelyard.errors import ArtifactMissing, Conflict, StoreError
from modelyard.protocols import ArtifactStore, DirectUpload, StoredArtifact

HOSTILE_NAMES = ("", ".", "..", "../x", "/etc/hostname", "a/b", "x\0", "\ud800", "CON", "~", "0" * 4000, "0" * 32)


def read(artifacts: ArtifactStore, name: str) -> bytes:
    with artifacts.open(name) as file:
        return file.read()


def _upload(upload: DirectUpload, data: bytes) -> None:
    for number, address in enumerate(upload.addresses):
        part = data[number * upload.part_size :][: upload.part_size]
        request = Request(address, part, dict(upload.headers), method="PUT")  # noqa: S310 - the store made it
        urlopen(request, timeout=60).close()  # noqa: S310


class ArtifactStoreContract:
    """The laws of `modelyard.protocols.ArtifactStore`, for the fixture `artifacts`, an empty artifact store."""

    @pytest.mark.parametrize("chunks", [[], [b""], [b"one"], [b"t", b"", b"wo\0\xff"], [b"x" * 100_000] * 30])
    def test_bytes_come_back_as_they_were_put(self, artifacts: ArtifactStore, chunks: list[bytes]) -> None:
        data = b"".join(chunks)
        stored = artifacts.put(iter(chunks))
        assert read(artifacts, stored.name) == data
        assert (stored.size, stored.digest) == (len(data), hashlib.sha256(data).hexdigest())

    def test_equal_bytes_have_names_of_their_own(self, artifacts: ArtifactStore) -> None:
        names = [artifacts.put([b"same"]).name for _ in range(20)]
        assert len(set(names)) == 20
        assert sorted(artifacts.names()) == sorted(names)

    def test_a_removed_name_is_missing_and_is_not_used_again(self, artifacts: ArtifactStore) -> None:
        kept, gone = artifacts.put([b"kept"]).name, artifacts.put([b"gone"]).name
        artifacts.remove(gone)
        artifacts.remove(gone)
        with pytest.raises(ArtifactMissing):
            artifacts.open(gone)
        assert list(artifacts.names()) == [kept]
        assert gone not in [artifacts.put([b"more"]).name for _ in range(20)]

    def test_an_open_file_stays_readable_when_it_is_removed(self, artifacts: ArtifactStore) -> None:
        name = artifacts.put([b"still here"]).name
        with artifacts.open(name) as file:
            artifacts.remove(name)
            assert file.read() == b"still here"

    def test_files_can_be_read_from_any_place(self, artifacts: ArtifactStore) -> None:
        with artifacts.open(artifacts.put([b"line 1\nline 2\n"]).name) as file:
            assert file.seek(7) == 7
            assert file.read() == b"line 2\n"
            file.seek(0)
            assert list(file) == [b"line 1\n", b"line 2\n"]

    def test_bytes_are_compared_with_a_digest_before_any_is_read(self, artifacts: ArtifactStore) -> None:
        stored = artifacts.put([b"t", b"wo"])
        for _ in range(2):
            with artifacts.open(stored.name, stored.digest) as file:
                assert file.read() == b"two"
            with pytest.raises(ArtifactMissing):
                artifacts.open(stored.name, hashlib.sha256(b"too").hexdigest())

    def test_readers_do_not_disturb_each_other(self, artifacts: ArtifactStore) -> None:
        name = artifacts.put([b"abcd"]).name
        with artifacts.open(name) as one, artifacts.open(name) as other:
            assert one.read(2) == b"ab"
            assert other.read() == b"abcd"
            assert one.read() == b"cd"

    def test_listings_do_not_disturb_each_other(self, artifacts: ArtifactStore) -> None:
        names = {artifacts.put([b"one"]).name for _ in range(3)}
        assert [set(artifacts.names()) for _ in artifacts.names()] == [names] * 3

    def test_nothing_remains_of_a_source_that_fails(self, artifacts: ArtifactStore) -> None:
        def source() -> Iterator[bytes]:
            yield b"half"
            raise EOFError

        with pytest.raises(EOFError):
            artifacts.put(source())
        assert list(artifacts.names()) == []
        assert artifacts.remove_unfinished(0) == 0

    def test_only_what_is_unfinished_is_removed_as_such(self, artifacts: ArtifactStore) -> None:
        kept = artifacts.put([b"kept"]).name

        def source() -> Iterator[bytes]:
            yield b"under "
            artifacts.remove_unfinished(3600)
            yield b"way"

        assert read(artifacts, artifacts.put(source()).name) == b"under way"
        assert read(artifacts, kept) == b"kept"

    @pytest.mark.parametrize("digest", [hashlib.sha256(b"directly").hexdigest(), "0" * 64])
    def test_an_upload_to_addresses_is_an_artifact_once_it_is_finished(
        self, artifacts: ArtifactStore, digest: str
    ) -> None:
        """A store without addresses returns None and refuses to finish."""
        upload = artifacts.begin(8)
        if upload is None:
            with pytest.raises(ArtifactMissing):
                artifacts.finish(DirectUpload("0" * 32, "", 8, 8, ()), digest)
            return
        with pytest.raises(Conflict):
            artifacts.finish(upload, digest)
        _upload(upload, b"directly")
        assert list(artifacts.names()) == []
        for _ in range(2):
            assert artifacts.finish(upload, digest) == StoredArtifact(upload.name, 8, digest)
        assert list(artifacts.names()) == [upload.name]
        assert read(artifacts, upload.name) == b"directly"
        with pytest.raises(ArtifactMissing) if digest == "0" * 64 else nullcontext():
            artifacts.open(upload.name, digest).close()

    def test_an_upload_that_was_removed_cannot_be_finished(self, artifacts: ArtifactStore) -> None:
        upload = artifacts.begin(8)
        if upload is not None:
            assert "http" not in repr(upload)
            _upload(upload, b"directly")
            assert artifacts.remove_unfinished(3600) == 0
            assert artifacts.remove_unfinished(-3600) == 1
            with pytest.raises((ArtifactMissing, Conflict)):
                artifacts.finish(upload, "0" * 64)
            assert artifacts.remove_unfinished(-3600) == 0

    def test_half_an_artifact_has_no_name(self, artifacts: ArtifactStore) -> None:
        seen: list[list[str]] = []

        def source() -> Iterator[bytes]:
            yield b"half"
            seen.append(list(artifacts.names()))
            yield b"whole"

        name = artifacts.put(source()).name
        assert seen == [[]]
        assert list(artifacts.names()) == [name]

    @pytest.mark.parametrize("name", HOSTILE_NAMES)
    def test_names_of_strangers_are_missing_artifacts(self, artifacts: ArtifactStore, name: str) -> None:
        with pytest.raises(ArtifactMissing):
            artifacts.open(name)
        artifacts.remove(name)

    def test_many_threads_can_put_at_once(self, artifacts: ArtifactStore) -> None:
        data = [b"%d" % number * 1000 for number in range(40)]
        with ThreadPoolExecutor(8) as threads:
            stored = list(threads.map(lambda one: artifacts.put([one]), data))
        assert [read(artifacts, one.name) for one in stored] == data

    def test_a_scratch_file_can_be_written_and_read_and_leaves_nothing(self, artifacts: ArtifactStore) -> None:
        with artifacts.scratch() as file:
            for chunk in (b"one\n", b"", b"x" * 100_000):
                assert file.write(chunk) == len(chunk)
            assert file.tell() == 100_004
            assert list(artifacts.names()) == []
            file.seek(0)
            assert file.read(4) == b"one\n"
            assert file.read(100_001) == b"x" * 100_000
        assert list(artifacts.names()) == []

    def test_room_is_told_in_bytes_where_it_is_known(self, artifacts: ArtifactStore) -> None:
        free = artifacts.free()
        assert free is None or (type(free) is int and free > 0)

    def test_a_healthy_store_passes_its_check_and_keeps_nothing_of_it(self, artifacts: ArtifactStore) -> None:
        artifacts.check()
        assert list(artifacts.names()) == []

    def test_a_backup_has_every_artifact_in_a_file_of_its_name(self, artifacts: ArtifactStore) -> None:
        """A store without backups raises `StoreError`. A second backup adds what is new."""
        kept = {artifacts.put([data]).name: data for data in (b"one", b"", b"three")}
        with TemporaryDirectory() as folder, suppress(StoreError):
            for _ in range(2):
                artifacts.backup(folder)
                assert {name: Path(folder, name).read_bytes() for name in kept} == kept
                kept[artifacts.put([b"new"]).name] = b"new"
