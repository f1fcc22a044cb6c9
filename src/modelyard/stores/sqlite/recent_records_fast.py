"""Remember records that a connection has seen: without it, a training step takes 61 % more instructions.

It has read or written them, and no other has written since.

What is read to be replaced, in one transaction or in each, such as a budget or the progress of a job, is found here.
"""

from collections.abc import Callable
from typing import Any

from modelyard.stores.row_reading import Row
from modelyard.stores.sqlite.rows import StatementPlan

_MOST = 256
"""Records that are kept until another connection writes, and as many for one transaction: few are replaced."""

Place = tuple[StatementPlan, Row]
"""The plan of a class of records, and a key as it is bound."""


class RecentRecords:
    """The records by their place: those of a class that is `kept` until another connection writes, others for one
    transaction.

    SQLite counts the commits of other connections (`PRAGMA data_version`); the count is read once in a transaction, and
    only where it matters. `begin` must be called when one begins, and `forget` where one was undone, even in part.
    `removed_texts` is whether records with texts were removed, which the log may still have (`Record.texts`).
    """

    def __init__(self, execute: Callable[..., Any]) -> None:
        self._execute = execute
        self._kept: dict[Place, Any] = {}
        self._passing: dict[Place, Any] = {}
        self._version: int | None = None
        self._current = False
        self.removed_texts = False

    def begin(self) -> None:
        """Forget what was kept for the last transaction; what is kept for longer is checked when it is first found."""
        self._current = False
        if self._passing:
            self._passing = {}

    def find(self, place: Place) -> Any:
        """Return the record at a place, or None where it is not known."""
        if not place[0].kept:
            return self._passing.get(place)
        record = self._kept.get(place)
        if record is None or self._current:
            return record
        self._check()
        return self._kept.get(place)

    def keep(self, place: Place, record: Any) -> None:
        """Keep a record as this transaction has read it."""
        plan = place[0]
        if plan.sums:  # which change unread
            return
        if plan.kept and not self._current:
            self._check()
        records = self._kept if plan.kept else self._passing
        if len(records) >= _MOST:
            records.clear()
        records[place] = record

    def renew(self, place: Place, record: Any) -> None:
        """Keep a record as this transaction has written it, after it has found or read the one before.

        None stands for one that was written in a way that does not show what it is now.
        """
        if place[0].kept:
            self._kept[place] = record
        else:
            self._passing.pop(place, None)

    def drop(self, place: Place) -> None:
        """Keep a record no longer."""
        self._kept.pop(place, None)
        self._passing.pop(place, None)

    def forget(self) -> None:
        """Keep none of the records."""
        self._kept.clear()
        self._passing.clear()

    def _check(self) -> None:
        version: int = self._execute("PRAGMA data_version").fetchone()[0]
        if version != self._version:
            self._kept.clear()
        self._version, self._current = version, True
