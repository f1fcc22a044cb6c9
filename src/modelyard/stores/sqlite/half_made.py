"""The file of a store that a failure has left without a record: it must not be taken for a store."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

from modelyard.errors import ModelyardError, StoreError
from modelyard.stores.sqlite.connection import connect
from modelyard.stores.sqlite.errors import SqliteError
from modelyard.stores.sqlite.schema import is_bare

_FILES = ("", "-wal", "-shm", "-turn")


@contextmanager
def nothing_half_made(path: str | os.PathLike[str]) -> Iterator[None]:
    """Remove the file of a store that the block has made, if it raises: unless there is a record in it, or it is open.

    The block closes its store.
    """
    file = os.path.realpath(path)
    is_new = not os.path.exists(file)
    try:
        yield
    except (ModelyardError, OSError):
        if is_new and os.path.exists(file):
            with suppress(SqliteError, StoreError, OSError):
                _remove_bare(file)
        raise


def _remove_bare(file: str) -> None:
    with closing(connect(file, "rw", busy_seconds=0)) as connection:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")  # refused while another connection is open
        connection.execute("BEGIN EXCLUSIVE")
        if is_bare(connection):
            for suffix in _FILES:
                with suppress(FileNotFoundError):
                    os.unlink(file + suffix)
