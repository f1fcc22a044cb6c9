"""What goes with a record: the records and the artifacts that its declaration names; and with an entity, its texts."""

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar

from modelyard.domain.canonical import digest
from modelyard.domain.identity import DeletedEntity
from modelyard.domain.record import KEY, Record, declaration_of
from modelyard.errors import Unauthenticated
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Tx

T = TypeVar("T")
_mark_id = lru_cache(1024)(digest)
REQUEST_BEGAN: ContextVar[float] = ContextVar("when the HTTP request began that is handled", default=float("inf"))


def artifacts_of(*records: Any) -> Iterator[str]:
    """Yield the names of the artifacts that belong to these records alone."""
    for record in records:
        named = declaration_of(type(record)).artifacts
        if named is not None:
            yield from named(record)


def remove_owned(tx: Tx, declared: Sequence[Record], owner: Any) -> None:
    """Remove the records that are erased with this one, and those that are erased with them."""
    for record in declared:
        lookup = record.erased_with.get(type(owner))
        if lookup is None:
            continue
        for owned in _found(tx, record, lookup, owner.id):
            remove_owned(tx, declared, owned)
            tx.remove(record.cls, *record.key_of(owned))


def _found(tx: Tx, record: Record, lookup: str, id: str) -> Iterator[Any]:
    """Yield the records of a page that shrinks as its records are removed."""
    if lookup == KEY:
        found = tx.find(record.cls, KEY, id)
        yield from () if found is None else (found,)
        return
    page: list[Any]
    while page := tx.page(record.cls, lookup, id):
        yield from page


def mark_deleted(tx: Tx, entity: str, now: datetime) -> None:
    known = tx.find(DeletedEntity, KEY, _mark_id(entity))
    (tx.add if known is None else tx.replace)(DeletedEntity(_mark_id(entity), now))


def unless_deleted(runtime: Runtime, entity: str, began: float, keep: Callable[[Tx], T]) -> Callable[[Tx], T]:
    """Return the step `keep` of a request that began at this monotonic time, or at `REQUEST_BEGAN`, for texts. It
    raises `Unauthenticated` if all data of the entity were deleted since."""
    since, name, clock = min(began, REQUEST_BEGAN.get()), _mark_id(entity), runtime.clock

    def step(tx: Tx) -> T:
        mark = tx.find(DeletedEntity, KEY, name)
        if mark is not None and clock.now() - timedelta(seconds=clock.monotonic() - since) < mark.deleted_at:
            raise Unauthenticated("the entity of this request was deleted")
        return keep(tx)

    return step


def store_texts(runtime: Runtime, entity: str, keep: Callable[[Tx], T], began: float | None = None) -> T:
    """Run the step `keep` of a request that began at this monotonic time, or now. Raises as `unless_deleted`."""
    since = runtime.clock.monotonic() if began is None else began
    return runtime.store.transact(unless_deleted(runtime, entity, since, keep))
