"""Copies of all records from one store to another of another kind, with the numbers that they have."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeVar, cast

import attrs

from modelyard.compose import is_address, open_store
from modelyard.disk import move_new, unfinished_next_to
from modelyard.domain.record import Record
from modelyard.errors import StoreError
from modelyard.part import Part
from modelyard.protocols import Snapshot, Store, Tx
from modelyard.stores.history import UNFINISHED
from modelyard.stores.table_changes import SchemaChange

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


Scan = Callable[..., list[Any]]
"""`Scannable.scan`."""

Note = Callable[[int], object]
"""Called with how many records were copied, or compared, since the last call."""


def copy_snapshot(source: Scannable, target: Store, records: Iterable[Record], note: Note = lambda _: None) -> None:
    """Copy every record of a snapshot to a store that has none, or the first of them."""
    for record in records:
        last = _scan_of(target)(record.cls, None, 1, descending=True)
        for batch in _batches(source.scan, record, record.key_of(last[0]) if last else None):
            _write(target, "restore", batch)
            note(len(batch))
        if record.sequence:
            _write(target, "retire_numbers", record.cls, source.last_number(record.cls))


def size_of(store: Store, records: Iterable[Record]) -> int:
    """Return how many records a store has."""
    return sum(store.read(lambda snapshot, cls=record.cls: cast(Scannable, snapshot).size(cls)) for record in records)  # type: ignore[misc]


def copy_store(source: Store, target: Store, records: Sequence[Record], note: Note) -> None:
    """Copy every record of one snapshot of a store, with its number, and compare the two.

    Until that is done nobody else opens the target, which must be empty or a copy that was interrupted: that continues
    where it ended. Raises `StoreError` if the two differ, or the source has records that are not among `records`.
    """
    with unfinished(target, records, again=True):
        copy_records(source, target, records, note)


def copy_records(source: Store, target: Store, records: Sequence[Record], note: Note) -> None:
    """Copy records and compare them, as `copy_store` does, to a target that is marked as `unfinished`."""
    refuse_other_records(source)
    source.read(lambda snapshot: _copy(cast(Scannable, snapshot), target, records, note))


def open_for_copy(target: str | os.PathLike[str], parts: Sequence[Part]) -> Store:
    """Open a store as the target of a copy. A new one is marked as `unfinished` before anybody can open it."""
    path, parts = os.fspath(target), [*parts, _COPY]
    if not (is_address(path, parts) or os.path.lexists(path)):
        with unfinished_next_to(path) as folder, suppress(FileExistsError):  # if it was made meanwhile, it is looked at
            made = os.path.join(folder, os.path.basename(path))
            open_store(made, parts=parts).close()
            move_new(made, path)
    return open_store(target, parts=parts)


_COPY = Part("copy", changes=lambda: (SchemaChange(UNFINISHED, ()),))


@contextmanager
def unfinished(target: Store, records: Sequence[Record], again: bool) -> Iterator[None]:
    """Mark a store that has no records, or with `again` a copy that was interrupted, until the block has ended.

    If the block raises, the mark stays on what it has stored. Raises `StoreError` for another store.
    """
    target.transact(partial(_mark, records, again))
    try:
        yield
    except BaseException:
        with suppress(StoreError):
            target.transact(partial(_unmark, records))
        raise
    target.transact(lambda tx: cast(Any, tx).mark_unfinished(False, True))


def _mark(records: Sequence[Record], again: bool, tx: Tx) -> None:
    marked = cast(Any, tx).mark_unfinished(False, False)
    if marked and not again:
        raise StoreError(
            "another copy to the target runs, or was interrupted: name another one; or, if none runs, drop it, make it"
            " again, and restore again"
        )
    if not (marked or _is_empty(records, tx)):
        raise StoreError("the target has records already: name a new file, or an empty database")
    cast(Any, tx).mark_unfinished(True, True)


def _unmark(records: Sequence[Record], tx: Tx) -> None:
    if _is_empty(records, tx):
        cast(Any, tx).mark_unfinished(False, True)


def _is_empty(records: Iterable[Record], snapshot: Snapshot) -> bool:
    return not any(cast(Scannable, snapshot).size(record.cls) for record in records)


def _copy(source: Scannable, target: Store, records: Sequence[Record], note: Note) -> None:
    copy_snapshot(source, target, records, note)
    for record in records:
        if _digest(source.scan, record, note) != _digest(_scan_of(target), record, note):
            raise StoreError(
                f"the copies of {record.table} differ, as after a change of the source since the copy was interrupted:"
                " remove the target, and copy again"
            )


def refuse_other_records(source: Store) -> None:
    """Raise `StoreError` for records that a copy would leave out."""
    others: Sequence[str] = cast(Any, source).other_tables()
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
        after = record.key_of(batch[-1])


def _digest(scan: Scan, record: Record, note: Note) -> str:
    """Return a digest of all records of a class, with their numbers."""
    digest = hashlib.sha256()
    for batch in _batches(scan, record):
        for kept in batch:
            digest.update(repr(attrs.astuple(kept, recurse=False)).encode("utf-8", "backslashreplace"))
        note(len(batch))
    return digest.hexdigest()


def _write(target: Store, method: str, *given: object) -> None:
    target.transact(lambda tx: getattr(tx, method)(*given), durable=False)


def taken_name(path: str) -> str | None:
    """Return the name of a file that a SQLite file of this name would have: its own, or that of a log that a killed
    process has left, which SQLite would apply to it."""
    return next((name for end in ("", "-wal", "-shm", "-journal") if os.path.lexists(name := path + end)), None)
