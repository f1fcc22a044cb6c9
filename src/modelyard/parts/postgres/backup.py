"""A backup of a database: a SQLite file with the records of one snapshot."""

import os
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import cast

from modelyard.disk import move_new, sync_path, unfinished_next_to
from modelyard.domain.record import Record
from modelyard.parts import copying
from modelyard.protocols import Snapshot, Store
from modelyard.stores.sqlite.store import SqliteStore


def back_up_to_file(store: Store, records: Sequence[Record], target: str) -> None:
    """Copy every record of one snapshot of `store` to a SQLite file, which has its name once it is complete.

    Raises `FileExistsError` or `StoreError`.
    """
    if taken := copying.taken_name(target):
        raise FileExistsError(f"{taken} exists; a backup never replaces a file, and reads none of another one's log")
    copying.refuse_other_records(store)
    with unfinished_next_to(target) as folder:
        path = Path(folder, os.path.basename(target))

        def query(snapshot: Snapshot) -> None:
            with suppress(FileNotFoundError):
                path.unlink()  # a query may run again from the start
            with closing(SqliteStore(path, records, "process")) as copy:
                copying.copy_snapshot(cast(copying.Scannable, snapshot), copy, records)

        store.read(query)
        sync_path(str(path))
        move_new(str(path), target)
