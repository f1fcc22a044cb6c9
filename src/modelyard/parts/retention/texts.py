"""Let go of texts that are old: what people wrote and models answered, of each class that says so (`Record.texts`)."""

from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial
from typing import Any, cast

import attrs

from modelyard.domain.record import KEPT, Record
from modelyard.parts.retention.retained import AT_ONCE, time_before
from modelyard.platform.owned import artifacts_of, remove_owned
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx
from modelyard.stores.copying import Scannable


@attrs.frozen
class RemovedTexts:
    """How many records were removed, and how many artifacts with them."""

    records: int
    files: int


def keep_texts(runtime: Runtime, days: float, entity: str | None, project: str | None) -> RemovedTexts:
    """Remove the texts that are more than so many days old, of everybody, or of one entity, or of projects of one name.

    Records go in small steps, each of which may be repeated after a crash, and then the files that only they named.
    What still runs, such as a response in the background, stays. Raises `InvalidInput`, and `StoreError` if the store
    has records of a part that is not open.
    """
    until = time_before(runtime, days)
    runtime.require_every_part()
    records = files = 0
    for record in runtime.records:
        if record.texts in (None, KEPT):
            continue
        for page in _pages(runtime, record):
            old = [one for one in page if _may_go(record, one, until) and _is_of(one, entity, project)]
            gone = runtime.store.transact(partial(_remove, runtime.records, record, old)) if old else []
            for name in artifacts_of(*gone):
                runtime.artifacts.remove(name)
                files += 1
            records += len(gone)
    runtime.store.sync()
    return RemovedTexts(records, files)


def _pages(runtime: Runtime, record: Record) -> Iterator[list[Any]]:
    """Yield all records of a class in the order of their keys, while they are removed."""
    after: tuple[Any, ...] | None = None
    while page := runtime.store.read(partial(_page, record, after)):
        yield page
        after = record.key_of(page[-1])


def _page(record: Record, after: tuple[Any, ...] | None, snapshot: Snapshot) -> list[Any]:
    return cast(Scannable, snapshot).scan(record.cls, after, AT_ONCE)


def _may_go(record: Record, one: Any, until: datetime) -> bool:
    assert record.texts is not None
    return bool(getattr(one, record.texts) < until and getattr(one, "ended", True))


def _is_of(one: Any, entity: str | None, project: str | None) -> bool:
    return all(
        wanted in (None, getattr(one, name, None)) for name, wanted in (("entity", entity), ("project", project))
    )


def _remove(declared: Sequence[Record], record: Record, old: Sequence[Any], tx: Tx) -> list[Any]:
    """Remove the records that are still there. Returns them as they are now."""
    gone = list[Any]()
    for one in old:
        found: Any = get_or_none(tx, record.cls, *record.key_of(one))
        if found is not None:
            remove_owned(tx, declared, found)
            tx.remove(record.cls, *record.key_of(found))
            gone.append(found)
    return gone
