"""A store that fails a step which leaves its declared domains."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from modelyard.domain.record import Record, by_class
from modelyard.protocols import Domain, DomainStep, Store, Tx
from modelyard.testing.run_twice_store import RunTwiceStore

T = TypeVar("T")

_EVERYTHING = 10**6


class LeftDomain(AssertionError):
    """A step touched a record that is in none of its domains."""


class DomainStore(RunTwiceStore):
    """Passes everything to `store`, but a `DomainStep` and leaves them raises `LeftDomain`.

    Run a service on it to find such steps: a store that runs steps of different domains at once would let them race.
    What a step looks for and does not find is not noticed.

        platform_store = DomainStore(MemoryStore(RECORDS), RECORDS)
    """

    def __init__(self, store: Store, records: Iterable[Record]) -> None:
        super().__init__(store)
        self._records = by_class([*records])

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` once, and check what it touches."""
        return self._store.transact(self._checked(step), durable)

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` once for a task, and check what it touches."""
        return await self._store.atransact(self._checked(step), durable)

    def _checked(self, step: Callable[[Tx], T]) -> Callable[[Tx], T]:
        if not isinstance(step, DomainStep):
            return step

        def checked(tx: Tx) -> T:
            watched = _WatchedTx(tx, self._records, step.domains)
            try:
                result: T = step.step(watched)
                return result
            finally:
                if watched.left is not None:
                    raise watched.left  # also where the step swallows it

        return checked


class _WatchedTx:
    def __init__(self, tx: Tx, records: Mapping[type, Record], domains: Collection[Domain]) -> None:
        self._tx, self._records, self._domains = tx, records, {*domains}
        self.left: LeftDomain | None = None

    @property
    def time(self) -> float:
        return self._tx.time

    def get(self, cls: type[Any], *key: object) -> Any:
        return self._read(self._tx.get(cls, *key))

    def find(self, cls: type[Any], unique: str, *values: object) -> Any:
        return self._read(self._tx.find(cls, unique, *values))

    def page(self, cls: type[Any], index: str, *where: object, **window: Any) -> list[Any]:
        return [self._read(record) for record in self._tx.page(cls, index, *where, **window)]

    def select(
        self, cls: type[Any], columns: Sequence[str], index: str, *where: object, **window: Any
    ) -> list[tuple[Any, ...]]:
        self.page(cls, index, *where, **window)
        return self._tx.select(cls, columns, index, *where, **window)

    def count(self, cls: type[Any], index: str, *where: object) -> int:
        return len(self.page(cls, index, *where, limit=_EVERYTHING))

    def add(self, record: object) -> None:
        self._write(record)
        self._tx.add(record)
        totals = self._records[type(record)].totals
        if totals is not None:
            self._write(totals[1](record))

    def add_all(self, records: Sequence[object]) -> None:
        for record in records:
            self._write(record)
        self._tx.add_all(records)

    def replace(self, record: object) -> None:
        self._write(record)
        self._tx.replace(record)

    def remove(self, cls: type[Any], *key: object) -> None:
        self._write(self._tx.get(cls, *key))
        self._tx.remove(cls, *key)

    def take(self, cls: type[Any], index: str, *where: object) -> Any:
        taken = self._tx.take(cls, index, *where)
        domain = None if taken is None else self._domain(taken)
        if domain is not None:
            self._domains.add(domain)
        return taken

    def notify(self, topic: str) -> None:
        self._tx.notify(topic)

    def _read(self, record: Any) -> Any:
        if record is not None and self._domain(record) not in (None, *self._domains):
            self._leave("read", record)
        return record

    def _write(self, record: object) -> None:
        if self._domain(record) not in self._domains:
            self._leave("wrote", record)

    def _domain(self, record: object) -> Domain | None:
        declared = self._records[type(record)].domain
        return None if declared is None else (declared[0], str(getattr(record, declared[1])))

    def _leave(self, verb: str, record: object) -> None:
        self.left = LeftDomain(f"a step within {sorted(self._domains)} {verb} a {type(record).__name__}: {record!r}")
        raise self.left


_conforms: type[Store] = DomainStore
_watches: type[Tx] = _WatchedTx
