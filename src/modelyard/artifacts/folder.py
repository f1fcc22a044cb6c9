"""Artifacts as files of one folder: a name stands for complete and synced bytes, or for nothing. The folder is opened
once; every file is reached through that descriptor, by a random name and never through a symbolic link. Bytes go to
`<name>.part`, which its writer keeps locked, and get their name when they are on the disk. Several processes may share
the folder: a part that is not locked was left by a writer that died, and the next process that opens the folder removes
it."""

import errno
import hashlib
import io
import itertools
import os
import re
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, BinaryIO, cast

from modelyard.artifacts.naming import NAME, PROOF, check_digest, missing, new_name
from modelyard.disk import HAS_LOCKS, NO_ROOM, lock, sync, sync_folder
from modelyard.errors import ArtifactMissing, ArtifactsUnavailable, StorageFull, StoreError
from modelyard.protocols import ArtifactStore, DirectUpload, Randomness, StoredArtifact

_PART = re.compile(r"[0-9a-f]{32}\.part")
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_NO_CHILD = getattr(os, "O_CLOEXEC", 0)
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | _NO_LINK | _NO_CHILD
_CHUNK = 2**20
_FUTURE = 1e9
"""Seconds: a part may seem to be written after now, on a clock that was set back."""


class FolderArtifacts:
    """Keeps artifacts as files that only their owner may read. A missing folder is created."""

    def __init__(self, path: str | os.PathLike[str], randomness: Randomness = os.urandom) -> None:
        self._randomness, self._count = randomness, itertools.count()
        if not HAS_LOCKS:
            raise StoreError("artifacts in a folder need Linux or macOS: on Windows use WSL, or your own `artifacts`")
        with _faults():
            _make_folder(os.path.abspath(path))
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | _NO_CHILD)
        weakref.finalize(self, os.close, self._folder)
        self.remove_unfinished(-_FUTURE)

    # ---- writing

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        """Write the bytes to a part file, sync it, then give it its name. Raises `StorageFull`, and what `chunks`
        raises; then nothing remains of them."""
        name, file = self._begin()
        try:
            size, digest = _fill(file, chunks)
            self._finish(name, file)
        except BaseException:
            self._unlink(f"{name}.part")
            self._unlink(name)
            raise
        finally:
            os.close(file)
        return StoredArtifact(name, size, digest)

    def scratch(self) -> BinaryIO:
        """Open a temporary file of the folder's disk that has no name, so that it ends with its last descriptor."""
        name, file = self._begin()
        self._unlink(f"{name}.part")
        return cast(BinaryIO, _File(file, "r+b"))

    def begin(self, size: int) -> None:
        """Return None: a folder has no addresses."""

    def finish(self, upload: DirectUpload, digest: str) -> StoredArtifact:
        raise missing(upload.name)

    def _begin(self) -> tuple[str, int]:
        while True:
            name = new_name(self._randomness, next(self._count))
            with suppress(FileExistsError):
                file = self._open_new(name)
                if self._is_own(file, name):
                    return name, file
                os.close(file)

    def _open_new(self, name: str) -> int:
        with _faults(FileExistsError):
            return os.open(f"{name}.part", _NEW, mode=0o600, dir_fd=self._folder)

    def _is_own(self, file: int, name: str) -> bool:
        """Lock a new part, and return whether it is still there and its name is free. Otherwise it is removed."""
        try:
            with _faults():
                if lock(file) and os.fstat(file).st_nlink and not self.has(name):
                    return True
        except StoreError:
            os.close(file)
            raise
        self._unlink(f"{name}.part")
        return False

    def _finish(self, name: str, file: int, synced: bool = True) -> None:
        with _faults():
            if synced:
                sync(file)
            os.rename(f"{name}.part", name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
            if synced:
                sync(self._folder)

    def has(self, name: str) -> bool:
        with suppress(FileNotFoundError), _faults(FileNotFoundError):
            os.stat(name, dir_fd=self._folder, follow_symlinks=False)
            return True
        return False

    # ---- reading and removing

    def open(self, name: str, digest: str | None = None) -> BinaryIO:
        if not NAME.fullmatch(name):
            raise missing(name)
        with _faults():
            try:
                file = os.open(name, os.O_RDONLY | _NO_LINK | _NO_CHILD, dir_fd=self._folder)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    raise missing(name) from error
                raise
        return check_digest(io.BufferedReader(_File(file, "rb")), name, digest)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. A reader that has it open can continue."""
        if NAME.fullmatch(name):
            self._unlink(name)

    def names(self) -> Iterator[str]:
        with _faults():
            own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | _NO_CHILD, dir_fd=self._folder)  # with a place of its own
            try:
                with os.scandir(own) as found:
                    yield from (one.name for one in found if NAME.fullmatch(one.name))
            finally:
                os.close(own)

    def free(self) -> int:
        """Return the bytes that this process may still use on the folder's disk. Raises `StoreError`."""
        with _faults():
            disk = os.fstatvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def check(self) -> None:
        """Write an artifact, read it back and remove it. Raises `StoreError`."""
        stored = self.put([PROOF])
        try:
            with self.open(stored.name) as file:
                if file.read() != PROOF:
                    raise StoreError("an artifact was read back altered; check the disk under the artifacts folder")
        finally:
            self.remove(stored.name)

    def backup(self, folder: str) -> None:
        """Copy what `folder` lacks; a copy is complete and synced before it has its name. Raises `StoreError`."""
        copy = FolderArtifacts(folder)
        for name in self.names():
            if not copy.has(name):
                with suppress(ArtifactMissing), self.open(name) as file:
                    copy.put_as(name, iter(partial(file.read, _CHUNK), b""))

    def put_as(self, name: str, chunks: Iterable[bytes], synced: bool = True) -> str:
        """Store bytes under a name that another store has given, and return their SHA-256 in hex. Bytes that are not
        synced may be lost when the machine fails. Raises `StorageFull`, and `FileExistsError` while another process
        does the same."""
        file = self._open_new(name)
        try:
            lock(file)
            _, digest = _fill(file, chunks)
            self._finish(name, file, synced)
        except BaseException:
            self._unlink(f"{name}.part")
            raise
        finally:
            os.close(file)
        return digest

    def _unlink(self, name: str) -> None:
        with suppress(FileNotFoundError), _faults(FileNotFoundError):
            os.unlink(name, dir_fd=self._folder)

    # ---- after a crash

    def remove_unfinished(self, seconds: float) -> int:
        """Remove the parts of writers that died. Those of living writers stay, however long they take."""
        since = time.time() - seconds
        with _faults():
            parts = [part for part in os.listdir(self._folder) if _PART.fullmatch(part)]
        return sum(self._remove_dead_part(part, since) for part in parts)

    def _remove_dead_part(self, part: str, since: float) -> bool:
        with suppress(OSError, StoreError):
            file = os.open(part, os.O_RDONLY | _NO_LINK | _NO_CHILD, dir_fd=self._folder)
            try:
                if os.fstat(file).st_mtime <= since and lock(file):
                    self._unlink(part)
                    return True
            finally:
                os.close(file)
        return False


class _File(io.FileIO):
    """A file with the errors of a store; `write` writes all bytes."""

    def readinto(self, buffer: Any) -> int:
        with _faults():
            return os.readv(self.fileno(), [buffer])

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            return self.readall()
        with _faults():
            return os.read(self.fileno(), size)

    def readall(self) -> bytes:
        return b"".join(iter(partial(self.read, _CHUNK), b""))

    def write(self, data: Any) -> int:
        _write(self.fileno(), data)
        return len(data)


def _fill(file: int, chunks: Iterable[bytes]) -> tuple[int, str]:
    size, digest = 0, hashlib.sha256()
    for chunk in chunks:
        _write(file, chunk)
        digest.update(chunk)
        size += len(chunk)
    return size, digest.hexdigest()


def _write(file: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    with _faults():
        while rest:
            rest = rest[os.write(file, rest) :]


def _make_folder(path: str) -> None:
    """Create a missing folder, and sync its name and those of its missing parents."""
    above = os.path.dirname(path)
    if not os.path.isdir(above):
        _make_folder(above)
    with suppress(FileExistsError):
        os.mkdir(path, mode=0o700)
    with suppress(PermissionError):  # a folder that this user may not read was there before
        sync_folder(above)


@contextmanager
def _faults(*known: type[OSError]) -> Iterator[None]:
    """Raise the faults of the system as those of a store, except for what the caller knows how to take."""
    try:
        yield
    except known:
        raise
    except OSError as error:
        if error.errno in NO_ROOM:
            raise StorageFull("no room for artifacts on the disk; free some, then try again") from error
        problem = f"the artifacts folder cannot be used: {error.strerror}; check the disk and its permissions"
        raise ArtifactsUnavailable(problem) from error


_: type[ArtifactStore] = FolderArtifacts
