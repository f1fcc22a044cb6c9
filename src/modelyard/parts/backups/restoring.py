"""Read a backup back, and copy it to a place: a file, or a database with its artifacts, each compared afterwards."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import attrs

from modelyard.artifacts.folder import FolderArtifacts
from modelyard.compose import open_platform, open_store
from modelyard.disk import sync_folder, sync_path
from modelyard.domain.schema import records_of
from modelyard.errors import ArtifactMissing, Conflict, StoreCorrupt
from modelyard.part import Part
from modelyard.parts.backups.sums import Sums, digest_of, read_sums, sums_file
from modelyard.platform.artifacts import artifacts_folder
from modelyard.platform.platform import Platform
from modelyard.protocols import ArtifactStore, Store
from modelyard.stores import copying
from modelyard.stores.sqlite import SqliteStore

_CHUNK = 2**20


class NamedArtifacts(Protocol):
    """An artifact store that can keep bytes under a name that another one has given."""

    def put_as(self, name: str, chunks: Iterator[bytes]) -> str:
        """Store the bytes, and return their SHA-256 in hex."""
        ...


@attrs.frozen
class Examined:
    """A backup that was read: a copy of its file that may be opened, its artifacts with their digests, and counts."""

    path: Path
    artifacts: FolderArtifacts | None
    digests: dict[str, str]
    records: int


@contextmanager
def examined(file: Path, parts: Sequence[Part], near: Path) -> Iterator[Examined]:
    """Read everything of a backup, and compare it with its digests; the backup itself is never opened.

    The copy of its file lies in the folder `near` until the block ends. Raises `StoreCorrupt` for what is damaged,
    altered or missing.
    """
    sums = read_sums(file)
    if sums is not None and digest_of(file) != sums.records:
        raise StoreCorrupt(
            f"{file} is not as it was written: its digest is another one. Take another backup, or, if you have changed"
            f" it yourself, remove {sums_file(file)}"
        )
    folder = Path(artifacts_folder(file))
    artifacts = FolderArtifacts(folder) if folder.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=".restore.", dir=near) as unfinished:
        path = Path(unfinished, file.name)
        shutil.copyfile(file, path)
        path.chmod(0o600)
        with closing(open_store(path, parts=parts)) as store:
            cast(SqliteStore, store).verify()
            records = copying.size_of(store, records_of(parts))
        digests = _read_all(file, artifacts, sums)
        with open_platform(path, artifacts=artifacts or Path(unfinished, "none"), parts=parts) as platform:
            _require_files(platform, f"{file} is no whole backup")
        yield Examined(path, artifacts, digests, records)


def _read_all(file: Path, artifacts: FolderArtifacts | None, sums: Sums | None) -> dict[str, str]:
    """Return the digest of each artifact. Raises `StoreCorrupt` unless they are those that were written."""
    folder = Path(artifacts_folder(file))
    found = {} if artifacts is None else {name: digest_of(folder / name) for name in artifacts.names()}
    if sums is not None:
        for name, digest in sums.artifacts.items():
            if found.get(name) != digest:
                raise StoreCorrupt(
                    f"{folder / name} {'differs' if name in found else 'is missing'}: take another backup"
                )
    return found


def _require_files(platform: Platform, what: str) -> None:
    faults = platform.health.check_files()
    if faults:
        first = faults[0]
        raise StoreCorrupt(
            f"{what}: {len(faults)} records lack their files, such as {first.kind} {first.id}: {first.problem}"
        )


def to_file(backup: Examined, target: Path, artifacts: ArtifactStore, parts: Sequence[Part]) -> None:
    """Copy a backup to a file that is not there, and its artifacts; compare both. Raises `StoreError`."""
    _copy_artifacts(backup, artifacts)
    with open_platform(backup.path, artifacts=artifacts, parts=parts) as platform:
        _require_files(platform, f"{target} was not written")
    sync_path(str(backup.path))
    os.rename(backup.path, target)
    sync_folder(str(target.absolute().parent))


def to_database(backup: Examined, target: Store, artifacts: ArtifactStore, parts: Sequence[Part]) -> None:
    """Copy a backup to a store that has no records, and its artifacts; compare both. Raises `StoreError`."""
    declared = records_of(parts)
    if copying.size_of(target, declared):
        raise Conflict("the database has records; a restore never replaces anything: name an empty database")
    _copy_artifacts(backup, artifacts)
    with closing(open_store(backup.path, parts=parts)) as source:
        copying.copy_store(source, target, declared, lambda count: None)
    with open_platform(store=target, artifacts=artifacts, parts=parts) as platform:
        _require_files(platform, "the database was written")


def _copy_artifacts(backup: Examined, target: ArtifactStore) -> None:
    """Copy artifacts with the names that they have, and read them back. Raises `StoreCorrupt`, `StorageFull`."""
    for name, digest in backup.digests.items():
        assert backup.artifacts is not None
        with backup.artifacts.open(name) as file:
            cast(NamedArtifacts, target).put_as(name, iter(partial(file.read, _CHUNK), b""))
        try:
            target.open(name, digest).close()
        except ArtifactMissing as fault:
            raise StoreCorrupt(f"what was written was read back altered: {fault}") from fault
