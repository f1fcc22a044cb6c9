"""A consistent copy of a database while others use it."""

import os
import tempfile
from contextlib import closing, suppress

from modelyard.stores.sqlite.connection import connect, sync_file, sync_folder
from modelyard.stores.sqlite.errors import store_errors


def back_up(source: str, target: str, busy_seconds: float) -> None:
    """Copy the database `source` to `target`, compact and on the disk when this returns.

    The copy has its name only once it is complete. Raises `FileExistsError`, `StoreError`.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists; a backup never replaces a file")
    folder, name = os.path.split(os.path.abspath(target))
    with store_errors():
        opened, temporary = tempfile.mkstemp(prefix=f".{name}.", dir=folder)
        os.close(opened)
        try:
            _copy(source, temporary, busy_seconds)
            os.rename(temporary, target)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
        sync_folder(folder)


def _copy(source: str, target: str, busy_seconds: float) -> None:
    with closing(connect(source, "ro", busy_seconds)) as connection:
        connection.execute("VACUUM INTO ?", (target,))
    sync_file(target)
