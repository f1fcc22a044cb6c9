"""One transaction on one connection: statements wait until an answer is needed, and travel together in one pipeline."""

from collections.abc import Iterable, Sequence
from typing import Any

from psycopg import Error

from modelyard.parts.postgres.pages import Row, Statement
from modelyard.stores.pending_steps import interrupts_leader


class Abandoned(BaseException):
    """Ends a step whose transaction has failed. Not an `Exception`, so that no step swallows it."""


def ends_group(error: BaseException) -> bool:
    """Return whether this ends the whole group, whichever step was running."""
    is_signal = isinstance(error, KeyboardInterrupt | SystemExit)
    return isinstance(error, Abandoned) or (is_signal and interrupts_leader(error))


class Wire:
    """A transaction that begins with its first statement. The answer to `opening`, if any, is kept.

    `fault` is the error that broke it. `trips` counts round trips.
    """

    def __init__(self, connection: Any, begin: Sequence[Statement], opening: Statement | None = None) -> None:
        self._connection = connection
        self._waiting: list[Statement] = [*begin]
        self._begin = len(self._waiting)
        self._opening = opening
        self._row: Any = None
        self.fault: Error | None = None
        self.trips = 0

    @property
    def begun(self) -> bool:
        return self.trips > 0

    def later(self, sql: str, values: Row = ()) -> None:
        """Send this statement with the next that needs an answer."""
        self._waiting.append((sql, values))

    def extend(self, statements: Iterable[Statement]) -> None:
        """Send these statements with the next that needs an answer."""
        self._waiting.extend(statements)

    def opening_row(self) -> Any:
        """Return the row of the opening statement."""
        if not self.begun:
            self.send()
        return self._row

    def rows(self, sql: str, values: Row) -> list[Row]:
        """Return the rows of a statement, in one round trip with all that waits."""
        return self.many([(sql, values)])[0]

    def many(self, statements: Sequence[Statement], then: Sequence[Statement] = ()) -> list[list[Row]]:
        """Return the rows of several statements, in one round trip with all that waits and what comes `then`."""
        before, self._waiting = self._waiting, []
        opens = not self.begun and self._opening is not None
        if opens:
            before.insert(self._begin, self._opening)  # type: ignore[arg-type]  # it is not None
        self.trips += 1
        try:
            results = self._connection.round_trip([*before, *statements, *then])
        except Error as error:
            self.fault = error
            raise Abandoned from error
        if opens:
            self._row = self._connection.rows_of(results[self._begin])[0]
        return [self._connection.rows_of(results[len(before) + at]) for at in range(len(statements))]

    def commit(self, asked: Statement) -> Row:
        """Commit after a statement that returns one row, in one round trip with all that waits. Returns the row."""
        return self.many([asked], [("COMMIT", ())])[0][0]

    def send(self) -> None:
        """Send what waits, and wait for its end."""
        self.many(())
