"""Copies of all records from one store to another of another kind, with the numbers that they have."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import attrs

from modelyard.disk import sync_folder, sync_path
from modelyard.domain.record import Record
from modelyard.errors import StoreError
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

    def size(self, cls: type[Any]) -> int:
        """Return how many records of this class there are."""
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


class Holding(Protocol):
    """A store of ours, which may have tables of records that it was not opened with."""

    def other_tables(self) -> Sequence[str]:
        """Return the names of tables with records that are not declared."""
        ...


Scan = Callable[..., list[Any]]
"""`Scannable.scan`."""

Note = Callable[[int], object]
"""Called with how many records were copied, or compared, since the last call."""


def key_of(record: Record, kept: object) -> tuple[Any, ...]:
    """Return the key of a record."""
    return tuple(getattr(kept, name) for name in record.key)


def copy_snapshot(source: Scannable, target: Store, records: Iterable[Record], note: Note = lambda _: None) -> None:
    """Copy every record of a snapshot to a store that has none, or the first of them."""
    for record in records:
        last = _scan_of(target)(record.cls, None, 1, descending=True)
        for batch in _batches(source.scan, record, key_of(record, last[0]) if last else None):
            restore(target, batch)
            note(len(batch))
        if record.sequence:
            retire_numbers(target, record, source.last_number(record.cls))


def size_of(store: Store, records: Iterable[Record]) -> int:
    """Return how many records a store has."""
    return sum(store.read(lambda snapshot, cls=record.cls: cast(Scannable, snapshot).size(cls)) for record in records)  # type: ignore[misc]


def copy_store(source: Store, target: Store, records: Sequence[Record], note: Note) -> None:
    """Copy every record of one snapshot of a store, with its number, and compare the two.

    Until that is done nobody else opens the target, which must be empty or a copy that was interrupted: that continues
    where it ended. Raises `StoreError` if the two differ, or the source has records that are not among `records`.
    """
    _refuse_other_records(source)
    empty = not size_of(target, records)
    if not target.transact(lambda tx: cast(Any, tx).mark_unfinished(True, empty)):
        raise StoreError("the target has records already; copy to a new file, or to an empty database")
    source.read(lambda snapshot: _copy(cast(Scannable, snapshot), target, records, note))
    target.transact(lambda tx: cast(Any, tx).mark_unfinished(False, True))


def _copy(source: Scannable, target: Store, records: Sequence[Record], note: Note) -> None:
    copy_snapshot(source, target, records, note)
    for record in records:
        if _digest(source.scan, record, note) != _digest(_scan_of(target), record, note):
            raise StoreError(
                f"the copies of {record.table} differ, as after a change of the source since the copy was interrupted:"
                " remove the target, and copy again"
            )


def _refuse_other_records(source: Store) -> None:
    """Raise `StoreError` for records that a copy would leave out."""
    others = cast(Holding, source).other_tables()
    if others:
        raise StoreError(
            f"the source has records in the tables {[*others]}, which are not declared: open it with the parts that"
            " they belong to"
        )


def _scan_of(store: Store) -> Scan:
    return lambda *page, **more: store.read(lambda snapshot: cast(Scannable, snapshot).scan(*page, **more))


def _batches(scan: Scan, record: Record, after: tuple[Any, ...] | None = None) -> Iterator[list[Any]]:
    """Yield the records of a class in the order of their keys."""
    batch: list[Any]
    while batch := scan(record.cls, after, _AT_ONCE):
        yield batch
        after = key_of(record, batch[-1])


def _digest(scan: Scan, record: Record, note: Note) -> str:
    """Return a digest of all records of a class, with their numbers."""
    digest = hashlib.sha256()
    for batch in _batches(scan, record):
        for kept in batch:
            digest.update(repr(attrs.astuple(kept, recurse=False)).encode("utf-8", "backslashreplace"))
        note(len(batch))
    return digest.hexdigest()


def restore(target: Store, batch: Sequence[object]) -> None:
    """Store records of one class with the numbers that they have."""
    target.transact(lambda tx: cast(Restorable, tx).restore(batch), durable=False)


def retire_numbers(target: Store, record: Record, last: int) -> None:
    """Keep the numbers of a class up to this one from being used again."""
    target.transact(lambda tx: cast(Restorable, tx).retire_numbers(record.cls, last), durable=False)


def taken_name(path: str) -> str | None:
    """Return the name of a file that a SQLite file of this name would have: its own, or that of a log that a killed
    process has left, which SQLite would apply to it."""
    return next((name for end in ("", "-wal", "-shm", "-journal") if os.path.lexists(name := path + end)), None)


def back_up_to_file(store: Store, records: Sequence[Record], target: str) -> None:
    """Copy every record of one snapshot of `store` to a SQLite file, which has its name once it is complete.

    Raises `FileExistsError` or `StoreError`.
    """
    if taken := taken_name(target):
        raise FileExistsError(f"{taken} exists; a backup never replaces a file, and reads none of another one's log")
    _refuse_other_records(store)
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
