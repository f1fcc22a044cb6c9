"""The disk: when bytes are really on it, which errors say that it is full, and locks between processes."""

import errno
import glob
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

try:
    import fcntl
except ModuleNotFoundError:  # Windows
    fcntl = None  # type: ignore[assignment]

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})
HAS_LOCKS = fcntl is not None
"""Whether this system has locks of files that end with their process."""

_LOCK = ".modelyard"
_FULL_SYNC = getattr(fcntl, "F_FULLFSYNC", None)
_AT_ONCE = fcntl.LOCK_EX | fcntl.LOCK_NB if HAS_LOCKS else 0
_RELEASED = fcntl.LOCK_UN if HAS_LOCKS else 0
_flock = fcntl.flock if HAS_LOCKS else (lambda file, how: None)


def sync(file: int) -> None:
    """Wait until the bytes of an open file, or the names in an open folder, are on the disk. On macOS `fsync` leaves
    them in the memory of the drive, which a power cut empties; there is a stronger call."""
    if _FULL_SYNC is not None:
        with suppress(OSError):  # a file system without it has fsync
            fcntl.fcntl(file, _FULL_SYNC)
            return
    os.fsync(file)


def sync_path(path: str, flags: int = os.O_RDWR) -> None:
    opened = os.open(path, flags)
    try:
        sync(opened)
    finally:
        os.close(opened)


def sync_folder(path: str) -> None:
    """Sync a folder's names, on systems that can open folders."""
    if hasattr(os, "O_DIRECTORY"):
        sync_path(path, os.O_DIRECTORY)


def move_new(path: str, target: str) -> None:
    """Give a file of this disk a name that nothing has, and bring that to the disk. Raises `FileExistsError`."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        os.close(os.open(target, os.O_CREAT | os.O_EXCL, 0o600))
        os.replace(path, target)
    else:
        os.unlink(path)
    sync_folder(os.path.dirname(os.path.abspath(target)))


def lock(file: int) -> bool:
    """Lock an open file for this process; return False if another one has locked it. On a system without such locks
    this does nothing."""
    try:
        _flock(file, _AT_ONCE)
    except BlockingIOError:
        return False
    return True


def unlock(file: int) -> None:
    _flock(file, _RELEASED)


def mapped(file: int, size: int) -> mmap.mmap | None:
    """Map the first bytes of an open file to be read; a shorter file grows. None if that fails."""
    if not HAS_LOCKS:  # Windows keeps a file that is mapped from growing
        return None
    try:
        if os.fstat(file).st_size < size:
            os.ftruncate(file, size)
        return mmap.mmap(file, size, access=mmap.ACCESS_READ)
    except OSError:
        return None


@contextmanager
def unfinished_next_to(target: str) -> Iterator[str]:
    """Yield a new folder next to a file, for what is not finished; it is removed in the end. Those of processes that
    have died are removed first: each process keeps a lock in its own, which no other finds before it is locked."""
    parent, name = os.path.split(os.path.abspath(target))
    for path in glob.glob(os.path.join(glob.escape(parent), ".*.part", _LOCK)) if HAS_LOCKS else ():
        with suppress(OSError), open(path, "r+b") as left:
            if lock(left.fileno()):
                shutil.rmtree(os.path.dirname(path))
    with (
        tempfile.TemporaryDirectory(".part", f".{name}.", parent) as folder,
        open(os.path.join(folder, "new"), "wb") as held,
    ):
        if HAS_LOCKS:
            lock(held.fileno())
            os.rename(held.name, os.path.join(folder, _LOCK))
        yield folder
