"""How the memory store keeps one kind of record: rows by key, unique keys, and sorted entries for each index."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from modelyard.domain.frozen_fast import maker
from modelyard.domain.record import Record
from modelyard.errors import RecordConflict
from modelyard.stores.columns import Column, Projection, columns_of, viewed_columns

Key = tuple[Any, ...]

_UNLISTED = 256
"""Added records that may wait to be listed: listing many at once takes less time."""

Position = tuple[Any, ...]
Entry = tuple[Position, Any]
"""A position, which no other entry has, and what is there."""

_position: Callable[[Entry], Position] = itemgetter(0)

_LONGEST = 1024
"""Entries of a chunk: moving the rest of one takes less time than finding the place in it."""


def _last_position(chunk: list[Entry]) -> Position:
    return chunk[-1][0]


class SortedEntries:
    """Entries by their positions, in chunks: adding and removing one takes the same time among few and among millions.

    No chunk is empty, and each one follows the one before.
    """

    __slots__ = ("_chunks", "_last", "_size")

    def __init__(self, entry: Entry) -> None:
        self._last = [entry]
        self._chunks = [self._last]
        self._size = 1

    def __len__(self) -> int:
        return self._size

    def add(self, entry: Entry) -> None:
        """Add an entry. Most arrive in the order of their positions, so that appending is enough."""
        self._size += 1
        last = self._last
        if last[-1] < entry:
            if len(last) < _LONGEST:
                last.append(entry)
            else:
                self._last = [entry]
                self._chunks.append(self._last)
            return
        at = self._chunk_at(entry[0])
        chunk = self._chunks[at]
        insort(chunk, entry, key=_position)
        if len(chunk) > _LONGEST:
            self._chunks[at : at + 1] = [chunk[: _LONGEST // 2], chunk[_LONGEST // 2 :]]
            self._last = self._chunks[-1]

    def remove(self, position: Position) -> None:
        """Remove the entry at a position. The last one of all stays, for the owner to drop with this object."""
        self._size -= 1
        if not self._size:
            return
        at = self._chunk_at(position)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, position, key=_position)]
        if not chunk:
            del self._chunks[at]
            self._last = self._chunks[-1]

    def after(self, cursor: Position | None, limit: int) -> list[Any]:
        """Return what is at up to `limit` positions after the cursor, or from the first one on."""
        chunks = self._chunks
        found: list[Any] = []
        at = 0 if cursor is None else bisect_right(chunks, cursor, key=_last_position)
        while at < len(chunks) and len(found) < limit:
            chunk = chunks[at]
            start = 0 if cursor is None or found else bisect_right(chunk, cursor, key=_position)
            found += [there for _, there in chunk[start : start + limit - len(found)]]
            at += 1
        return found

    def before(self, cursor: Position | None, limit: int) -> list[Any]:
        """Return what is at up to `limit` positions before the cursor, or from the last one on, the greatest first."""
        chunks = self._chunks
        found: list[Any] = []
        at = len(chunks) - 1
        if cursor is not None:
            at = min(at, bisect_left(chunks, cursor, key=_last_position))
        while at >= 0 and len(found) < limit:
            chunk = chunks[at]
            end = len(chunk) if cursor is None or found else bisect_left(chunk, cursor, key=_position)
            found += [there for _, there in reversed(chunk[max(0, end - limit + len(found)) : end])]
            at -= 1
        return found

    def _chunk_at(self, position: Position) -> int:
        return bisect_left(self._chunks, position, key=_last_position)


class _Unique:
    """Keys by the values of a unique key. Records with None among these values are exempt from uniqueness."""

    def __init__(self, values: Projection) -> None:
        self._values = values
        self._keys: dict[Key, Key] = {}

    def taken(self, record: object, key: Key) -> bool:
        """Return whether a record with another key has these values."""
        return self._keys.get(self._values.of(record), key) != key

    def find(self, values: Key) -> Key | None:
        """Return the key of the record with these values."""
        return self._keys.get(self._values.accept(values))

    def move(self, key: Key, old: object | None, new: object | None) -> None:
        before = None if old is None else self._values.of(old)
        after = None if new is None else self._values.of(new)
        if before == after:
            return
        if before is not None and None not in before:
            del self._keys[before]
        if after is not None and None not in after:
            self._keys[after] = key

    def clear(self) -> None:
        self._keys.clear()


class _Listing:
    """The sorted entries of an index, grouped by the values of its prefix.

    An entry is a record's position and its key.
    """

    def __init__(self, where: Sequence[Column], order: Sequence[Column]) -> None:
        self._values = Projection([*where, *order]).raw
        self._width = len(where)
        self._where = Projection(where)
        ranks = [column.rank() for column in order]
        self._order, self._ranked = Projection(order, ranks, nones=True), any(ranks)
        self._kept = Projection(order, [column.kind.keep for column in order])
        self._groups: dict[Key, SortedEntries] = {}

    def size(self, where: Key) -> int:
        """Return how many entries have this prefix."""
        return len(self._groups.get(self._where.accept(where), ()))

    def keys(self, where: Key, after: Key | None, limit: int, descending: bool) -> list[Key]:
        """Return up to `limit` keys after the cursor `after`."""
        group = self._groups.get(self._where.accept(where))
        cursor = None if after is None else self._order.accept(self._kept.accept(after))
        if group is None:
            return []
        return group.before(cursor, limit) if descending else group.after(cursor, limit)

    def move(self, key: Key, old: object | None, new: object | None) -> None:
        values = None if new is None else self._values(new)
        if old is not None:
            before = self._values(old)
            if before == values:
                return
            self._drop(before)
        if values is None:
            return
        where, position = values[: self._width], values[self._width :]
        entry = self._order.converted(position) if self._ranked else position, key
        group = self._groups.get(where)
        if group is None:
            self._groups[where] = SortedEntries(entry)
        else:
            group.add(entry)

    def clear(self) -> None:
        self._groups.clear()

    def _drop(self, values: Key) -> None:
        where, position = values[: self._width], self._order.converted(values[self._width :])
        group = self._groups[where]
        group.remove(position)
        if not group:
            del self._groups[where]


class _Reading:
    """How records of one class are read and kept: the same in all stores of a process."""

    def __init__(self, record: Record) -> None:
        self.columns = columns = columns_of(record)
        self._make = record.cls
        kept = [(column, column.kind.keep) for column in columns.values()]
        self._kept = Projection(*zip(*kept, strict=True))
        self.shared: Callable[[Any], Any] = self._kept.unchanged(self._converted)
        if record.sequence:
            self.copied = Projection(*zip(*kept[:-1], strict=True)).copying(maker(record.cls))
        self.settings: Callable[[object], Key] | None = self.reader(record.settings) if record.settings else None
        self.key: Projection = Projection([columns[name] for name in record.key])
        self.unique = {name: Projection([columns[c] for c in names]) for name, names in record.unique.items()}
        noticed = sorted({*viewed_columns(record), *record.settings})
        self.noticed = self.reader(noticed) if noticed else None

    def reader(self, names: Sequence[str]) -> Callable[[object], Key]:
        return Projection([self.columns[name] for name in names]).raw

    def _converted(self, record: Any) -> Any:
        values = self._kept.raw(record)
        kept = self._kept.accept(values)
        return record if kept is values else self._make(*kept)


_reading = cache(_Reading)


class Table:
    """The records of one class by key, and every view of them."""

    def __init__(self, record: Record) -> None:
        reading = _reading(record)
        self._columns = reading.columns
        self._cls = record.cls
        self.total_of: Callable[[Any], Any] | None = record.totals[1] if record.totals else None
        self.shared: Callable[[Any], Any] = reading.shared
        """Returns the record in a form that may be shared: itself, unless something in it is mutable.

        It raises `TypeError` or `ValueError` for what cannot be stored.
        """
        self.sequence: str | None = record.sequence
        if record.sequence:
            self._copied = reading.copied
        self._last = 0
        self.settings: Callable[[object], Key] | None = reading.settings
        self.key: Projection = reading.key
        self.reader: Callable[[Sequence[str]], Callable[[object], Key]] = reading.reader
        """Returns a function that reads these columns of a record. Raises `KeyError`."""
        self.rows: dict[Key, Any] = {}
        self.unique: dict[str, _Unique] = {name: _Unique(values) for name, values in reading.unique.items()}
        self._record = record
        self._listings: dict[str, _Listing] = {}
        self._added: dict[Key, Any] = {}
        self._noticed = reading.noticed

    def numbered(self, record: Any) -> Any:
        """Return the record as `shared` does, with the next number in the order of appearance."""
        self._last += 1
        return self._copied(record, self._last)

    def succeeding(self, old: Any, record: Any) -> Any:
        """Return the record as `shared` does, with the number of the one that it replaces."""
        name = self.sequence
        if name is None or getattr(record, name) == (number := getattr(old, name)):
            return self.shared(record)
        return self._copied(record, number)

    def refuse_taken(self, record: object, key: Key) -> None:
        """Raise `RecordConflict` if another record has one of its unique keys."""
        for name, unique in self.unique.items():
            if unique.taken(record, key):
                raise RecordConflict(f"{self._cls.__name__}.{name} of {key} is taken")

    def listing(self, index: str) -> _Listing:
        """Return an index, which holds every record. Raises `KeyError`."""
        self._catch_up()
        found = self._listings.get(index)
        if found is None:
            found = self._listings[index] = self._listed(index)
        return found

    def _listed(self, index: str) -> _Listing:
        """Make an index that is asked for the first time: most never are."""
        where, order = self._record.indexes[index].where, self._record.order_of(index)
        found = _Listing([self._columns[c] for c in where], [self._columns[c] for c in order])
        for key, record in self.rows.items():
            found.move(key, None, record)
        return found

    def add(self, key: Key, new: object) -> None:
        """Add a record with a key that is new. It is listed later."""
        self.rows[key] = new
        for unique in self.unique.values():
            unique.move(key, None, new)
        if self._listings:
            self._added[key] = new
            if len(self._added) > _UNLISTED:
                self._catch_up()

    def put(self, key: Key, old: object | None, new: object | None) -> None:
        """Replace `old` by `new` as the record with this key; None means no record."""
        if old is None and new is not None:
            self.add(key, new)
            return
        self.place(key, new)
        for unique in self.unique.values():
            unique.move(key, old, new)
        if self._added.pop(key, None) is None:
            for listing in self._listings.values():
                listing.move(key, old, new)
        elif new is not None:
            self._added[key] = new

    def _catch_up(self) -> None:
        """List the records that were added since the last time."""
        if not self._added:
            return
        try:
            for listing in self._listings.values():
                for key, new in self._added.items():
                    listing.move(key, None, new)
            self._added = {}
        except BaseException:
            self.rebuild()
            raise

    def place(self, key: Key, new: object | None) -> None:
        """Set the record with this key without updating the views."""
        if new is None:
            self.rows.pop(key, None)
        else:
            self.rows[key] = new

    def keeps_place(self, old: object, new: object) -> bool:
        """Return whether `new` is found and listed as `old` is, and changes no setting."""
        return self._noticed is None or self._noticed(old) == self._noticed(new)

    def changes_settings(self, old: object | None, new: object | None) -> bool:
        """Return whether putting `new` in the place of `old` changes one of the record's `settings`."""
        if self.settings is None:
            return False
        return old is None or new is None or self.settings(old) != self.settings(new)

    def rebuild(self) -> None:
        """Build every view again from the records."""
        self._added = {}
        views: list[_Unique | _Listing] = [*self.unique.values(), *self._listings.values()]
        for view in views:
            view.clear()
            for key, record in self.rows.items():
                view.move(key, None, record)


class Tables(dict[type, Table]):
    """Tables by the class of their records, each made on first use: most platforms use a few."""

    def __init__(self, records: Iterable[Record] = (), settings_version: int = 0) -> None:
        super().__init__()
        self._records = records
        self.settings_version = settings_version

    def __missing__(self, cls: type) -> Table:
        for record in self._records:
            if record.cls is cls:
                table = self[cls] = Table(record)
                return table
        raise TypeError(f"{cls.__name__} is not a declared record")
