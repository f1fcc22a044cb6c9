"""Read a backup back, and copy it to a place: a file, or a database with its artifacts, each compared afterwards.

A restore reserves its place before it reads: a name that nothing has, a database without records, and a place for
artifacts that has none. If it fails, it leaves nothing in them, but for a database that has a part of the records: that
says so, and does not open.
"""

import io
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast
from urllib.parse import urlsplit
from urllib.request import url2pathname

import attrs

from modelyard.artifacts.address import open_artifacts
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.artifacts.naming import altered, missing
from modelyard.clock import system_randomness
from modelyard.compose import open_platform, open_store
from modelyard.disk import move_new, sync_path
from modelyard.domain.schema import records_of
from modelyard.errors import ArtifactMissing, Conflict, StorageFull, StoreCorrupt
from modelyard.part import Part
from modelyard.parts import copying
from modelyard.parts.backups.reading import BackupFile
from modelyard.parts.backups.sums import Sums, digest_of, read_sums, sums_file
from modelyard.platform.artifacts import artifacts_folder
from modelyard.protocols import ArtifactStore, Store

_CHUNK = 2**20
_CLAIM = ".restore"


@attrs.frozen
class Examined:
    """A backup that was read: its records, of this version, its artifacts with their digests, and counts."""

    records: BackupFile
    artifacts: FolderArtifacts | None
    digests: Mapping[str, str]
    count: int


@contextmanager
def examined(file: Path, parts: Sequence[Part], room: Path | None = None) -> Iterator[Examined]:
    """Read everything of a backup, and compare it with its digests; the backup itself is never changed.

    The records of an earlier version are copied to the folder `room`, or else a temporary one, to be brought to this
    version. Raises `StoreCorrupt` for what is damaged, altered or missing, and `StorageFull`.
    """
    sums = read_sums(file)
    if sums is not None and digest_of(file) != sums.records:
        raise StoreCorrupt(
            f"{file} is not as it was written: its digest is another one. Take another backup, or, if you have changed"
            f" it yourself, remove {sums_file(file)}"
        )
    folder = Path(artifacts_folder(file))
    artifacts = FolderArtifacts(folder) if folder.is_dir() else None
    digests = _read_all(folder, artifacts, sums)
    with ExitStack() as held:
        records = held.enter_context(closing(BackupFile(file, parts)))
        records.verify()
        if not records.is_current():
            temporary = room or Path(held.enter_context(tempfile.TemporaryDirectory()))
            copy = _brought_to_this_version(file, temporary, parts)
            records = held.enter_context(closing(BackupFile(copy, parts)))
        known = cast(ArtifactStore, _Known(digests))
        with open_platform(store=cast(Store, records), artifacts=known, parts=parts) as platform:
            faults = platform.health.check_files()
        if faults:
            raise StoreCorrupt(
                f"{file} is no whole backup: {len(faults)} records lack their files, such as {faults[0].kind}"
                f" {faults[0].id}: {faults[0].problem}"
            )
        yield Examined(records, artifacts, digests, copying.size_of(cast(Store, records), records_of(parts)))


@attrs.frozen
class _Known:
    """Artifacts that were read before: each is what its digest says."""

    digests: Mapping[str, str]

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        found = self.digests.get(name)
        if found is None:
            raise missing(name)
        if digest not in (None, found):
            raise altered(name)
        return io.BytesIO()


def _brought_to_this_version(file: Path, folder: Path, parts: Sequence[Part]) -> Path:
    copy = folder / file.name
    free, needed = shutil.disk_usage(folder).free, file.stat().st_size
    if free < needed:
        raise StorageFull(
            f"a backup of an earlier version is copied to {folder}, which lacks {needed - free} bytes: make room, or"
            " name another folder by the environment variable TMPDIR"
        )
    shutil.copyfile(file, copy)
    open_store(copy, parts=parts).close()
    return copy


def _read_all(folder: Path, artifacts: FolderArtifacts | None, sums: Sums | None) -> Mapping[str, str]:
    """Return the digest of each artifact. Raises `StoreCorrupt` unless they are those that were written."""
    found = {} if artifacts is None else {name: digest_of(folder / name) for name in artifacts.names()}
    for name, digest in sums.artifacts.items() if sums else ():
        if found.get(name) != digest:
            raise StoreCorrupt(f"{folder / name} {'differs' if name in found else 'is missing'}: take another backup")
    return found


# ---- places --------------------------------------------------------------------------------------------------------


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """Reserve a name that no file has; yield a folder next to it for what is not finished. Raises `Conflict`."""
    folder = target.absolute().with_name(f".{target.name}{_CLAIM}")
    _refuse_taken(target)
    with _claimed(folder.mkdir, folder, target, folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


@contextmanager
def empty_place(address: str, parts: Sequence[Part]) -> Iterator[ArtifactStore]:
    """Open a place for artifacts that has none, for this restore alone; if the block raises, it has none again.

    Raises `Conflict`, `InvalidInput`, `StoreError`.
    """
    path = url2pathname(urlsplit(address).path) if address.lower().startswith("file://") else address
    was_there = os.path.isdir(path)
    place = open_artifacts(address, system_randomness(), parts)
    is_folder = isinstance(place, FolderArtifacts)
    with _own_folder(Path(path), was_there) if is_folder else ExitStack():
        if any(True for _ in place.names()) or (is_folder and os.listdir(path) != [_CLAIM]):
            raise Conflict(
                f"{address} has files; a restore needs a place of its own: name an empty one, or remove what a restore"
                " that was ended has left there"
            )
        yield place


@contextmanager
def _own_folder(folder: Path, was_there: bool) -> Iterator[None]:
    claim = folder / _CLAIM
    with _claimed(partial(claim.touch, exist_ok=False), claim, folder, folder):
        try:
            yield
        except BaseException:
            claim.unlink()
            if not was_there:
                folder.rmdir()
            raise
        claim.unlink()


@contextmanager
def _claimed(claim: Any, mark: Path, target: Path, left: Path) -> Iterator[None]:
    """Claim a target by a mark. Raises `Conflict`, which names what a restore that was ended has `left`."""
    try:
        claim()
    except FileExistsError as taken:
        raise Conflict(
            f"{mark} exists: another restore to {target} runs, or was ended; if none runs, remove {left} with all that"
            " it has, and restore again"
        ) from taken
    yield


def _refuse_taken(target: Path) -> None:
    if taken := copying.taken_name(str(target)):
        raise Conflict(f"{taken} exists; nothing is ever replaced: move it away first")


# ---- copying -------------------------------------------------------------------------------------------------------


def to_file(backup: Examined, target: Path, room: Path, artifacts: ArtifactStore) -> None:
    """Copy a backup to a `new_file`, and its artifacts; compare both. Raises `Conflict`, `StoreError`."""
    copy = room / target.name
    with _copied(backup, artifacts):
        if Path(backup.records.path).parent != room.resolve():
            shutil.copyfile(backup.records.path, copy)
            if digest_of(copy) != digest_of(Path(backup.records.path)):
                raise StoreCorrupt(f"what was written to {copy} was read back altered; check the disk")
        else:
            os.rename(backup.records.path, copy)
        copy.chmod(0o600)
        sync_path(str(copy))
        try:
            move_new(str(copy), str(target))
        except FileExistsError as made:
            raise Conflict(f"{target} was made meanwhile; nothing is ever replaced: move it away first") from made


def to_database(backup: Examined, target: Store, artifacts: ArtifactStore, parts: Sequence[Part]) -> None:
    """Copy a backup to a store that has no records, and its artifacts; compare both. Raises `StoreError`."""
    declared = records_of(parts)
    with copying.unfinished(target, declared, again=False), _copied(backup, artifacts):
        copying.copy_records(cast(Store, backup.records), target, declared, lambda count: None)


@contextmanager
def _copied(backup: Examined, target: ArtifactStore) -> Iterator[None]:
    """Copy artifacts with the names that they have, and read them back; remove them if the block raises.

    Raises `StoreCorrupt`, `StorageFull`.
    """
    copied = list[str]()
    try:
        for name, digest in backup.digests.items():
            assert backup.artifacts is not None
            copied.append(name)
            with backup.artifacts.open(name) as file:
                cast(Any, target).put_as(name, iter(partial(file.read, _CHUNK), b""))
            try:
                target.open(name, digest).close()
            except ArtifactMissing as fault:
                raise StoreCorrupt(f"what was written was read back altered: {fault}") from fault
        yield
    except BaseException:
        for name in copied:
            target.remove(name)
        raise
