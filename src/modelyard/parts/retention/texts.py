"""Let go of texts that are old: what people wrote and models answered, of each class that says so (`Record.texts`)."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from itertools import chain
from typing import Any

import attrs

from modelyard.domain.record import Record
from modelyard.parts.retention.in_use import InUse
from modelyard.parts.retention.retained import AT_ONCE, time_before
from modelyard.platform.owned import artifacts_of, remove_owned
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx

Key = tuple[Any, ...]


@attrs.frozen
class RemovedTexts:
    """How many records were removed, and how many artifacts with them."""

    records: int
    files: int


def keep_texts(runtime: Runtime, days: float, entity: str | None, project: str | None) -> RemovedTexts:
    """Remove the texts that are more than so many days old, of everybody, or of one entity, or of projects of one name.

    Records go in small steps, each of which may be repeated after a crash, and then the files that only they named.
    What still runs, such as a response in the background, stays, and so does what it reads. Raises `InvalidInput`, and
    `StoreError` if the store has records of a part that is not open.
    """
    until = time_before(runtime, days)
    runtime.require_every_part()
    given = (("entity", entity), ("project", project))
    wanted = {name: value for name, value in given if value is not None}
    in_use, records, files = InUse(runtime), 0, 0
    for record in runtime.records:
        for keys in _old(runtime, record, until, wanted):
            gone = runtime.store.transact(partial(_remove, runtime.records, record, keys, in_use))
            for name in chain(*gone):
                runtime.artifacts.remove(name)
                files += 1
            records += len(gone)
    runtime.store.sync()
    return RemovedTexts(records, files)


def _old(runtime: Runtime, record: Record, until: datetime, wanted: Mapping[str, str]) -> Iterator[list[Key]]:
    """Yield the keys of the old records of a class, the oldest first, while they are removed."""
    if record.age_index is None or not wanted.keys() <= {field.name for field in attrs.fields(record.cls)}:
        return
    order = record.order_of(record.age_index)
    names, after = tuple(dict.fromkeys((*order, *record.key, *wanted))), None
    while True:
        page = runtime.store.read(partial(_page, record, names, after))
        rows = [dict(zip(names, values, strict=True)) for values in page]
        old = [row for row in rows if row[order[0]] < until]
        yield [tuple(row[name] for name in record.key) for row in old if wanted.items() <= row.items()]
        if len(old) < AT_ONCE:
            return
        after = tuple(old[-1][name] for name in order)


def _page(record: Record, names: Sequence[str], after: Any, snapshot: Snapshot) -> list[tuple[Any, ...]]:
    assert record.age_index is not None
    return snapshot.select(record.cls, names, record.age_index, after=after, limit=AT_ONCE)


def _remove(declared: Sequence[Record], record: Record, keys: Sequence[Key], in_use: InUse, tx: Tx) -> list[list[str]]:
    """Remove the records that are still there, have ended and are not in use. Returns the artifacts of each."""
    in_use.follow(tx)
    gone = list[list[str]]()
    for key in keys:
        found: Any = None if (record.cls, key[0]) in in_use else get_or_none(tx, record.cls, *key)
        if found is not None and getattr(found, "ended", True):
            remove_owned(tx, declared, found)
            tx.remove(record.cls, *key)
            gone.append([*artifacts_of(found)])
    return gone
