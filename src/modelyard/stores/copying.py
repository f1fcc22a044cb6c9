"""Copies of all records from one store to another of another kind, with the numbers that they have."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from modelyard.disk import sync_folder, sync_path
from modelyard.domain.record import Record
from modelyard.protocols import Snapshot, Store
from modelyard.stores import sqlite

R = TypeVar("R")

_AT_ONCE = 500
"""Records that are written by one step."""


class Scannable(Snapshot, Protocol):
    """A snapshot of a store of ours, whose records can be read in the order of their keys."""

    def scan(self, cls: type[R], after: tuple[Any, ...] | None, limit: int, descending: bool = False) -> list[R]:
        """Return up to `limit` records in the order of their keys, after the key `after`."""
        ...

    def last_number(self, cls: type[Any]) -> int:
        """Return the greatest number that a record of this class, which has a sequence, was given."""
        ...


class Restorable(Protocol):
    """A transaction of a store of ours, which can store records with the numbers that they have."""

    def restore(self, records: Sequence[object]) -> None:
        """Store records of one class; leave out those that are there already."""
        ...

    def retire_numbers(self, cls: type[Any], last: int) -> None:
        """Keep the numbers up to this one from being used again."""
        ...


Note = Callable[[Record, int], None]
"""Called with the kind of record and how many of it were copied since the last call."""


def key_of(record: Record, kept: object) -> tuple[Any, ...]:
    """Return the key of a record."""
    return tuple(getattr(kept, name) for name in record.key)


def copy_snapshot(source: Scannable, target: Store, records: Iterable[Record]) -> None:
    """Copy every record of a snapshot to a store that has none."""
    for record in records:
        after: tuple[Any, ...] | None = None
        batch: list[Any]
        while batch := source.scan(record.cls, after, _AT_ONCE):
            restore(target, batch)
            after = key_of(record, batch[-1])
        if record.sequence:
            retire_numbers(target, record, source.last_number(record.cls))


def restore(target: Store, batch: Sequence[object]) -> None:
    """Store records of one class with the numbers that they have."""
    target.transact(lambda tx: cast(Restorable, tx).restore(batch), durable=False)


def retire_numbers(target: Store, record: Record, last: int) -> None:
    """Keep the numbers of a class up to this one from being used again."""
    target.transact(lambda tx: cast(Restorable, tx).retire_numbers(record.cls, last), durable=False)


def back_up_to_file(store: Store, records: Sequence[Record], target: str) -> None:
    """Copy every record of one snapshot of `store` to a SQLite file, which has its name once it is complete.

    Raises `FileExistsError` or `StoreError`.
    """
    if os.path.lexists(target):
        raise FileExistsError(f"{target} exists; a backup never replaces a file")
    folder, name = os.path.split(os.path.abspath(target))
    with tempfile.TemporaryDirectory(prefix=f".{name}.", dir=folder) as unfinished:
        path = Path(unfinished, name)

        def query(snapshot: Snapshot) -> None:
            with suppress(FileNotFoundError):
                path.unlink()  # a query may run again from the start
            with closing(sqlite.SqliteStore(path, records, "process")) as copy:
                copy_snapshot(cast(Scannable, snapshot), copy, records)

        store.read(query)
        sync_path(str(path))
        path.rename(target)
    sync_folder(folder)
