"""What goes with a record: the records and the artifacts that its declaration names."""

from collections.abc import Iterator, Sequence
from typing import Any

from modelyard.domain.record import KEY, Record, declaration_of
from modelyard.protocols import Tx


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
