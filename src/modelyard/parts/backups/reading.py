"""The records of a backup, read where it lies: the file is not changed, and nothing is written next to it."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from modelyard.clock import SystemClock
from modelyard.domain.schema import records_of
from modelyard.part import Part
from modelyard.protocols import Snapshot
from modelyard.stores.schema_changes import changes_of
from modelyard.stores.sqlite.connection import Readers, connect
from modelyard.stores.sqlite.errors import naming
from modelyard.stores.sqlite.migrations import MIGRATIONS
from modelyard.stores.sqlite.rows import plans_of
from modelyard.stores.sqlite.schema import all_changes, other_tables, refuse_unfit, up_to_date, verify

T = TypeVar("T")

_ALONE = "ro&immutable=1"


class BackupFile:
    """The file of a backup. Raises `StoreCorrupt` or `StoreTooNew` for one that is none, or is of a newer version."""

    def __init__(self, path: Path, parts: Sequence[Part]) -> None:
        self.path = os.path.realpath(path)
        self._plans = plans_of(records_of(parts))
        self._changes = all_changes(changes_of(parts), MIGRATIONS)
        self._readers = Readers(self.path, self._plans, SystemClock(), 0, _ALONE)
        with self._connected() as connection:
            refuse_unfit(connection, self._changes)

    def is_current(self) -> bool:
        """Return whether it has the tables of this version, so that its records can be read."""
        with self._connected() as connection:
            return up_to_date(connection, self._plans.values(), self._changes)

    def verify(self) -> None:
        """Read the whole file. Raises `StoreCorrupt` if a page is damaged."""
        with self._connected() as connection:
            verify(connection)

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on the records of a file that is current."""
        return self._readers.read(query)

    def other_tables(self) -> Sequence[str]:
        """Return the names of tables with records that are not declared."""
        with self._connected() as connection:
            return other_tables(connection, self._plans.values())

    def sync(self) -> None:
        """Do nothing: there is nothing to bring to the disk."""

    def close(self) -> None:
        """Close what was opened to read it."""
        self._readers.close()

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        with naming(self.path), closing(connect(self.path, _ALONE, 0)) as connection:
            yield connection
