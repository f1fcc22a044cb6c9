"""The file of a store that a failure has left without a record: it must not be taken for a store."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from modelyard.errors import StoreError
from modelyard.stores.sqlite.connection import connect
from modelyard.stores.sqlite.errors import SqliteError
from modelyard.stores.sqlite.schema import is_bare

_FILES = ("", "-wal", "-shm", "-turn", "-artifacts")


@contextmanager
def nothing_half_made(path: str | os.PathLike[str]) -> Iterator[None]:
    """Remove the file of a store that the block has made, and its empty folder of artifacts, if it raises: unless there
    is a record in it, or it is open. The block closes its store.
    """
    file = os.path.realpath(path)
    new = [suffix for suffix in _FILES if not os.path.lexists(file + suffix)]
    try:
        yield
    except Exception:
        if "" in new and os.path.exists(file):
            with suppress(SqliteError, StoreError, OSError):
                _remove_bare(file, new)
        raise


def _remove_bare(file: str, new: Sequence[str]) -> None:
    with closing(connect(file, "rw", busy_seconds=0)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # refused while another connection is open
        connection.execute("BEGIN EXCLUSIVE")
        if is_bare(connection):
            for suffix in new:
                with suppress(OSError):
                    (os.rmdir if suffix == "-artifacts" else os.unlink)(file + suffix)
