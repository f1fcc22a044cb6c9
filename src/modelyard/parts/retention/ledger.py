"""Let go of old rows of the ledger, after they were written to a file; totals and budgets stay.

A store that keeps months apart drops whole months, and other rows go in small steps. Each step can be repeated after a
crash; its rows may then be in the file twice.
"""

from collections.abc import Sequence
from datetime import datetime
from functools import partial

from modelyard.domain.usage import LedgerEntry
from modelyard.parts.retention.retained import (
    AT_ONCE,
    Export,
    Path,
    exporting,
    months_before,
    pages_of,
    time_before,
)
from modelyard.platform.paging import get_or_none
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Snapshot, Tx


def keep_ledger(runtime: Runtime, days: float, export: Path) -> int:
    """Remove the rows that were booked more than so many days ago, after they were appended to `export`.

    Returns how many. Raises `InvalidInput`.
    """
    until = time_before(runtime, days)
    removed = 0
    with exporting(export) as file:
        for store, month in months_before(runtime, LedgerEntry, until):
            for page in pages_of(store, LedgerEntry, month, ("id",)):
                file.append(page)
                removed += len(page)
            store.drop_month(LedgerEntry, month)
        while gone := _remove_oldest(runtime, until, file):
            removed += gone
    return removed


def _remove_oldest(runtime: Runtime, until: datetime, file: Export) -> int:
    """Remove some of the rows that were booked first. Returns how many: none once they are younger."""
    old = runtime.store.read(partial(_oldest, until))
    file.append(old)
    if old:
        runtime.store.transact(partial(_remove, old))
    return len(old)


def _oldest(until: datetime, snapshot: Snapshot) -> list[LedgerEntry]:
    page = snapshot.page(LedgerEntry, "all", limit=AT_ONCE)
    return [entry for entry in page if entry.created_at < until]


def _remove(entries: Sequence[LedgerEntry], tx: Tx) -> None:
    for entry in entries:
        if get_or_none(tx, LedgerEntry, entry.id) is not None:
            tx.remove(LedgerEntry, entry.id)
