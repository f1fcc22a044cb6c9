"""What every rule of retention needs: the time before which records go, the file they go to, and the months to drop."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, BinaryIO

import attrs

from modelyard.clock import uuid7_from
from modelyard.disk import sync, sync_folder
from modelyard.errors import InvalidInput
from modelyard.part import check_place
from modelyard.platform.runtime import Runtime
from modelyard.protocols import Month, MonthlyStore

AT_ONCE = 200
"""How many records one step removes: the store is held for milliseconds."""
LATE = timedelta(days=1)
"""How long after the time in its id a record may be added."""

Path = str | os.PathLike[str] | None


MOST_DAYS = 100_000


def time_before(runtime: Runtime, days: float) -> datetime:
    """Return the time so many days ago. Raises `InvalidInput`."""
    if type(days) not in (int, float) or not 0 < days <= MOST_DAYS:
        raise InvalidInput.at("days", msg=f"must be a number above 0, and at most {MOST_DAYS:,}")
    return runtime.clock.now() - timedelta(days=days)


class Export:
    """The file that records are appended to before they are removed, one JSON object a line; or none."""

    def __init__(self, file: BinaryIO | None) -> None:
        self._file = file

    def append(self, records: Iterable[Any]) -> None:
        """Append records, and bring them to the disk. Raises `OSError`."""
        if self._file is None:
            return
        for record in records:
            line = json.dumps(attrs.asdict(record, recurse=False), default=_plain, ensure_ascii=False)
            self._file.write(f"{line}\n".encode())
        self._file.flush()
        sync(self._file.fileno())


@contextmanager
def exporting(path: Path) -> Iterator[Export]:
    """Open the file, whose name is on the disk before anything that a new file holds is removed.

    Raises `InvalidInput` for an address, and for a folder that is not there.
    """
    if path is None:
        yield Export(None)
        return
    check_place(path)
    with open(path, "ab") as file:
        sync_folder(os.path.dirname(os.path.abspath(path)))
        yield Export(file)


def _plain(value: object) -> object:
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return dict(value)
    return attrs.asdict(value, recurse=False)  # type: ignore[arg-type]


def months_before(runtime: Runtime, cls: type[Any], until: datetime) -> Iterator[tuple[MonthlyStore, Month]]:
    """Yield the months of a class that ended before a time, if the store keeps months apart."""
    store, end = runtime.store, uuid7_from(until - LATE)
    if isinstance(store, MonthlyStore):
        yield from ((store, month) for month in store.months(cls) if month.end <= end)


def pages_of(store: MonthlyStore, cls: type[Any], month: Month, key: tuple[str, ...]) -> Iterator[list[Any]]:
    """Yield all records of a month, a page at a time."""
    after: tuple[object, ...] | None = None
    while page := [*store.month_page(cls, month, after, AT_ONCE)]:
        yield page
        after = tuple(getattr(page[-1], name) for name in key)
