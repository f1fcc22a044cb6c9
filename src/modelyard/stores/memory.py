"""Records in memory, with the same guarantees as on disk except durability."""

from collections.abc import Callable, Mapping, Sequence
from heapq import nlargest, nsmallest
from threading import Lock, get_ident
from typing import Any, Never, TypeVar

from modelyard.clock import SystemClock, unix_time
from modelyard.domain.record import KEY, Record
from modelyard.errors import RecordConflict, RecordNotFound, StoreClosed, StoreError
from modelyard.protocols import Clock, Snapshot, Store, Subscription, Tx
from modelyard.stores.memory_tables import Key, Table, Tables
from modelyard.stores.subscriptions import Subscribers

T = TypeVar("T")
R = TypeVar("R")


class MemoryStore:
    """A store that lives as long as the object, for tests and for platforms without a file.

    Thread-safe, and fast enough to be called on an event loop. Records are shared, not copied: they are frozen, and
    what is mutable inside them is frozen when it is added. `clock` is where `Snapshot.time` comes from.

        store = MemoryStore(RECORDS)
        store.transact(lambda tx: tx.add(model))
    """

    blocking = False
    durability = "none"

    def __init__(self, records: Sequence[Record], clock: Clock | None = None) -> None:
        self._tables = Tables(records)
        self._clock = clock or SystemClock()
        self._lock = Lock()
        self._inside: int | None = None
        self._closed = False
        self._subscribers = Subscribers()

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step`; undo it if it raises. `durable` has no effect: there is no disk."""
        if self._inside is not None:
            self._refuse_reentry()
        with self._lock:
            if self._closed:
                raise StoreClosed("the store was closed")
            self._inside = get_ident()
            tx = _MemoryTx(self._tables, self._clock)
            try:
                value = step(tx)
            except Exception:
                tx.undo()
                raise
            except BaseException:
                tx.undo_interrupted()
                raise
            finally:
                tx._tables = _ENDED
                self._inside = None
        if tx.topics:
            self._subscribers.wake(tx.topics)
        return value

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` as `transact` does, without a thread: it takes microseconds."""
        return self.transact(step, durable)

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` while no record can change."""
        self._refuse_reentry()
        with self._lock:
            if self._closed:
                raise StoreClosed("the store was closed")
            self._inside = get_ident()
            snapshot = _MemorySnapshot(self._tables, self._clock)
            try:
                return query(snapshot)
            finally:
                snapshot.end()
                self._inside = None

    def settings_version(self) -> int:
        """Return a number that changes with every commit that changes a setting. Raises `StoreClosed`."""
        return self._tables.settings_version

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        """Have `wake` called after each commit of a step that notifies the topic, in the thread that commits. Raises
        `StoreClosed`."""
        self.check()
        return self._subscribers.subscribe(topic, wake)

    def check(self) -> Mapping[str, object]:
        """Return engine and durability. Raises `StoreClosed`."""
        return self.read(
            lambda _: {"engine": "memory", "version": None, "durability": self.durability, "warning": None}
        )

    def sync(self) -> None:
        """Do nothing: no durability was promised. Raises `StoreClosed`."""
        self.check()

    def backup(self, path: str) -> None:
        """Refuse: there is no file to copy. Raises `StoreError`."""
        self.check()
        raise StoreError(f"a memory store cannot be backed up to {path!r}; open the platform on a file instead")

    def close(self) -> None:
        self._refuse_reentry()
        with self._lock:
            self._closed = True
            self._tables = _Closed()

    def _refuse_reentry(self) -> None:
        if self._inside == get_ident() and self._lock.locked():
            raise RuntimeError("a step may not call its store")


class _Ended(Tables):
    """The tables of a transaction that has ended."""

    def __missing__(self, cls: type) -> Never:
        raise RuntimeError("the transaction has ended")


class _Closed(Tables):
    """The tables of a store that was closed."""

    def __getattribute__(self, name: str) -> Never:
        raise StoreClosed("the store was closed")


_ENDED = _Ended()


class _MemorySnapshot:
    """The read operations of a transaction."""

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables, self._clock = tables, clock

    @property
    def time(self) -> float:
        return unix_time(self._clock.now())

    def end(self) -> None:
        self._tables = _ENDED

    def get(self, cls: type[R], *key: object) -> R:
        table = self._tables[cls]
        record: R | None = table.rows.get(table.key.accept(key))
        if record is None:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        return record

    def find(self, cls: type[R], unique: str, *values: object) -> R | None:
        table = self._tables[cls]
        key = table.key.accept(values) if unique == KEY else table.unique[unique].find(values)
        return None if key is None else table.rows.get(key)

    def page(
        self,
        cls: type[R],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[R]:
        table = self._tables[cls]
        if limit < 0:
            raise ValueError(f"the limit {limit} is negative")
        rows = table.rows
        return [rows[key] for key in table.listing(index).keys(where, after, limit, descending)]

    def scan(self, cls: type[R], after: tuple[object, ...] | None, limit: int, descending: bool = False) -> list[R]:
        rows = self._tables[cls].rows
        keys = rows if after is None else [key for key in rows if (key < after if descending else key > after)]
        return [rows[key] for key in (nlargest if descending else nsmallest)(limit, keys)]

    def select(
        self,
        cls: type[Any],
        columns: Sequence[str],
        index: str,
        *where: object,
        after: tuple[object, ...] | None = None,
        limit: int = 100,
        descending: bool = False,
    ) -> list[tuple[Any, ...]]:
        page = self.page(cls, index, *where, after=after, limit=limit, descending=descending)
        return list(map(self._tables[cls].reader(columns), page))

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        return self._tables[cls].listing(index).size(where)


class _MemoryTx(_MemorySnapshot):
    """The write operations of a transaction, and their undoing."""

    topics: tuple[str, ...] = ()

    def __init__(self, tables: Tables, clock: Clock) -> None:
        self._tables, self._clock = tables, clock
        self._before: list[tuple[Table, Key, Any]] = []

    def add(self, record: object) -> None:
        table = self._tables[type(record)]
        record = table.numbered(record) if table.sequence else table.shared(record)
        key = table.key.raw(record)
        if key in table.rows:
            raise RecordConflict(f"{type(record).__name__} {key} exists")
        if table.unique:
            table.refuse_taken(record, key)
        self._before.append((table, key, None))
        if table.settings is not None:
            self._tables.settings_version += 1
        table.add(key, record)
        if table.total_of is not None:
            self._add_up(table.total_of(record))

    def add_all(self, records: Sequence[object]) -> None:
        changes = len(self._before)
        try:
            for record in records:
                self.add(record)
        except Exception:
            self.undo(changes)
            raise

    def replace(self, record: object) -> None:
        table = self._tables[type(record)]
        key = table.key.raw(record)
        old = table.rows.get(key)
        record = table.shared(record) if old is None else table.succeeding(old, record)
        if old is None:
            raise RecordNotFound(f"no {type(record).__name__} {key}")
        if table.keeps_place(old, record):
            self._before.append((table, key, old))
            table.rows[key] = record
            return
        if table.unique:
            table.refuse_taken(record, key)
        self._put(table, key, old, record)

    def remove(self, cls: type[Any], *key: object) -> None:
        table = self._tables[cls]
        found = table.key.accept(key)
        old = table.rows.get(found)
        if old is None:
            raise RecordNotFound(f"no {cls.__name__} {key}")
        self._put(table, found, old, None)

    def take(self, cls: type[R], index: str, *where: object) -> R | None:
        return next(iter(self.page(cls, index, *where, limit=1)), None)

    def notify(self, topic: str) -> None:
        self.topics = (*self.topics, topic)

    def undo(self, since: int = 0) -> None:
        """Restore the records that were changed, or those that were since so many changes."""
        for table, key, record in reversed(self._before[since:]):
            table.put(key, table.rows.get(key), record)
        del self._before[since:]

    def undo_interrupted(self) -> None:
        """Restore the records, and rebuild the views: an interrupt may have come between the two."""
        for table, key, record in reversed(self._before):
            table.place(key, record)
        for table in {id(table): table for table, _, _ in self._before}.values():
            table.rebuild()

    def _add_up(self, added: Any) -> None:
        """Add to a total, or keep the first of it."""
        table = self._tables[type(added)]
        key = table.key.raw(added)
        old = table.rows.get(key)
        if old is None:
            self._put(table, key, None, added)
        else:
            self._before.append((table, key, old))
            table.rows[key] = old + added

    def _put(self, table: Table, key: Key, old: object | None, new: object | None) -> None:
        self._before.append((table, key, old))
        if table.settings is not None and table.changes_settings(old, new):
            self._tables.settings_version += 1
        table.put(key, old, new)


_conforms: type[Store] = MemoryStore
