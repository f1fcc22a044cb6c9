"""Rows that a connection need not read again: it has read or written them, and no other connection has written since.

What is read and replaced in every transaction, such as a budget or the progress of a job, is found here.
"""

from collections.abc import Callable
from typing import Any

from modelyard.stores.row_reading import Row
from modelyard.stores.sqlite.rows import StatementPlan

_MOST = 256
"""Rows that are kept: few are replaced again and again."""

Place = tuple[StatementPlan, Row]
"""The plan of a class of records, and a key."""


class RecentRows:
    """The rows by their place.

    SQLite counts the commits of other connections (`PRAGMA data_version`); the count is read once in a transaction, and
    only where it matters. `current` must be set to False when one begins, and `forget` be called where one was undone,
    even in part.
    """

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self._rows: dict[Place, Row] = {}
        self._version: int | None = None
        self.current: bool = False

    def find(self, place: Place) -> Row | None:
        """Return the row at a place, if it is known."""
        if place in self._rows and not self.current:
            self._check()
        return self._rows.get(place)

    def keep(self, place: Place, row: Row) -> None:
        """Keep a row as it was written."""
        if not self.current:
            self._check()
        if len(self._rows) >= _MOST:
            self._rows.clear()
        self._rows[place] = row

    def drop(self, place: Place) -> None:
        """Keep a row no longer: it was written in a way that does not show what it is now."""
        self._rows.pop(place, None)

    def forget(self) -> None:
        """Keep none of the rows."""
        self._rows.clear()

    def _check(self) -> None:
        version: int = self._execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._rows.clear()
        self._version, self.current = version, True
