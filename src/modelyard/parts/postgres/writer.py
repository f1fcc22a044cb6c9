"""The connection that writes: it runs one transaction for a group of calls.

Locks are held until the commit, so that the steps of all who share the schema are as serial as they must be. Each
commit has a number, kept in a row of its writer: where the connection is lost in the middle of a commit, that row says
what became of it.
"""

# ruff: noqa: S608 - the names come from declarations, and every value is bound

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeVar, cast

import psycopg
from psycopg import errors as pg

from modelyard.errors import OutcomeUnknown, StoreBusy, StoreError, StoreTooNew
from modelyard.parts.postgres.ahead_fast import read_ahead
from modelyard.parts.postgres.batch import Batch
from modelyard.parts.postgres.claims_fast import UNHEARD, ClaimStep, TurnClaims
from modelyard.parts.postgres.connections import Connector
from modelyard.parts.postgres.errors import TRANSIENT, to_store_error
from modelyard.parts.postgres.locks import asks_of, domains_of, lock_statement
from modelyard.parts.postgres.notices import Notices
from modelyard.parts.postgres.rows import RecordPlan
from modelyard.parts.postgres.schema import COMMITS
from modelyard.parts.postgres.tx import PostgresTx
from modelyard.parts.postgres.wire import Abandoned, Wire, ends_group
from modelyard.protocols import Tx
from modelyard.stores.pending_steps import PendingStep, interrupts_leader

T = TypeVar("T")

_MOST_ATTEMPTS = 8
_BETWEEN_QUESTIONS = 0.05
"""Seconds between two questions about a commit."""
SETTINGS_KNOWN = 1.0
"""Seconds for which the version of the settings is taken for known after a commit, which returns it."""
_SETTINGS = ":settings"
"""The writer whose number counts the commits that change settings."""


class GroupWriter:
    """The only connection of a store that writes. Not thread-safe: only the leader of a group uses it.

    `unchanged` is the condition that the schema was not migrated since. `level` is the setting of synchronous_commit
    with which a durable step commits, if not the server's own. `unsynced` is true while acknowledged records wait for a
    sync.
    """

    def __init__(
        self,
        connector: Connector,
        plans: Mapping[type, RecordPlan],
        schema: str,
        writer: str,
        unchanged: str,
        patience: float,
        level: str | None,
        notices: Notices,
    ) -> None:
        self._connector, self._plans, self._notices = connector, plans, notices
        self._patience, self._level = patience, level
        self._connection: Any = None
        self._writer, self._number, self._committing = writer, 0, False
        self._wire: Wire | None = None
        self._schema = schema
        self._commits = f'"{schema}"."{COMMITS}"'
        self._count = (
            f"INSERT INTO {self._commits} AS mine (writer, number, at)"
            f" SELECT $1, $2 / ({unchanged})::int, now()"
            " ON CONFLICT (writer)"
            " DO UPDATE SET number = excluded.number / (mine.number < excluded.number)::int, at = now()"
            f" RETURNING (SELECT number FROM {self._commits} WHERE writer = '{_SETTINGS}')"
        )
        self._count_settings = (
            f"INSERT INTO {self._commits} AS mine (writer, number, at) VALUES ('{_SETTINGS}', 1, 'infinity')"
            " ON CONFLICT (writer) DO UPDATE SET number = mine.number + 1"
        )
        self._claims = TurnClaims(plans, schema, self._commits, unchanged)
        self._settings: tuple[int, float] | None = None
        self.unsynced: bool = False

    def run(self, group: Sequence[PendingStep[Any]]) -> float:
        """Settle every call, once all that it saw is committed. Returns how many seconds the commit took.

        Where the server is not to be had, only those calls are settled whose patience is at its end.

        Raises only what interrupts this thread; the effects of calls that are not settled are then rolled back.
        """
        others = [call for call in group if not isinstance(call.step, ClaimStep)]
        if others and len(others) < len(group):
            return self.run(others) + self.run([call for call in group if isinstance(call.step, ClaimStep)])
        deadline, careful = group[0].since + self._patience, False
        for _ in range(_MOST_ATTEMPTS):
            try:
                return self._run_together(group, careful, deadline)
            except Abandoned:
                careful = self._recover(group, careful)
            except _Entangled as entangled:
                careful = careful or entangled.guessed
                self._run_apart(group, entangled.guessed)
            except StoreBusy as busy:
                self._fail_impatient(group, busy)
            except StoreError as error:
                _fail(group, error)
            except BaseException:
                self._conclude(group, self._drop())
                raise
            if group[0].settled:
                return 0.0
        self._fail_impatient(group, StoreBusy(f"others were in the way {_MOST_ATTEMPTS} times; try again"))
        return 0.0

    def _run_apart(self, group: Sequence[PendingStep[Any]], guessed: bool) -> None:
        """Run each of the steps that cannot be run together. A lone one has failed, unless it only `guessed` wrong."""
        self._roll_back()
        if len(group) > 1:
            self._run_each(group)
        elif not guessed:
            _settle(group)

    def run_one(self, step: Callable[[Tx], T], durable: bool) -> tuple[T]:
        """Run a lone step, and return its result in a tuple. Raises what the step raises, or `StoreError`."""
        call = PendingStep(step, durable)
        self.run([call])
        return (call.outcome(),)

    def settings_version(self) -> int | None:
        """Return how many commits had changed settings at the last commit here; None if that is long ago."""
        known = self._settings
        return known[0] if known is not None and time.monotonic() < known[1] else None

    def close(self) -> None:
        """Close the connection, and forget the number of its commits."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.Error):
                self._connection.execute(f"DELETE FROM {self._commits} WHERE writer = $1", (self._writer,))
            self._connection.close()

    # ---- one transaction ----

    def _run_together(self, group: Sequence[PendingStep[Any]], careful: bool, deadline: float) -> float:
        self._committing = False
        if self._connection is None:
            self._connection = self._connector.connect(deadline)
        if isinstance(group[0].step, ClaimStep):
            return self._claim(group)
        domains = domains_of(group)
        opening = lock_statement(self._schema, domains)
        wire = self._wire = Wire(self._connection, self._connector.begin(self._connection), opening)
        batch = Batch(wire, alone=domains is None)
        unknown = [call.step for call in group if not asks_of(call.step)]
        if len(unknown) > 1:
            read_ahead(batch, self._plans, unknown, self._now)
        for call in group:
            if asks := asks_of(call.step):
                batch.renew()
                read_ahead(batch, self._plans, asks, self._now, rounds=1)
            self._attempt(call, batch, careful)
        seconds = self._commit(batch, any(map(_is_durable, group)))
        _settle(group)
        self._notices.wake(batch.topics)
        return seconds

    def _claim(self, group: Sequence[PendingStep[Any]]) -> float:
        """Have the server claim a job for each call, in one transaction that is one round trip."""
        claims, steps = self._claims, [cast(ClaimStep, call.step) for call in group]
        outcomes: Sequence[Any] = [(None, "")] * len(group)
        if claims.can_run(self._connection):
            for call in group:
                call.value = UNHEARD  # it stays, if the commit took place and its answer was lost
            wire = self._wire = Wire(self._connection, (), claims.opening(steps))
            first, self._number, self._committing = self._number + 1, self._number + len(group), True
            asked = [claims.statement(step.ask, self._writer, first + at) for at, step in enumerate(steps)]
            try:
                outcomes = claims.outcomes([row for (row,) in wire.many(asked)])
            except Abandoned:
                if not isinstance(wire.fault, psycopg.ProgrammingError):
                    raise
                claims.give_up()
            self._committing = False
            self.unsynced = True
        for call, outcome in zip(group, outcomes, strict=True):
            call.value, call.error = outcome, None
        _settle(group)
        return 0.0

    def _attempt(self, call: PendingStep[Any], batch: Batch, careful: bool) -> None:
        """Run one step, and undo it alone if it raises.

        If it raised after taking for granted what may be wrong, it runs again, carefully.
        """
        batch.begin_step()
        tx = PostgresTx(self._plans, batch, self._now, careful)
        try:
            call.value, call.error = call.step(tx), None
        except BaseException as error:
            if ends_group(error) or (interrupts_leader(error) and not tx.guessed):
                raise
            call.error = error
        finally:
            tx.end()
        if batch.wire.fault is not None:
            raise Abandoned
        if call.error is None:
            return
        if batch.sent_by_step:
            raise _Entangled(tx.guessed)
        batch.undo_step()
        if tx.guessed:
            self._attempt(call, batch, careful=True)

    def _commit(self, batch: Batch, durable: bool) -> float:
        """End the transaction. Returns how many seconds that took, if it had written."""
        batch.send()
        if batch.wrote or batch.topics:
            return self._commit_writes(batch, durable)
        if batch.wire.begun:
            batch.wire.later("COMMIT")
            batch.wire.send()
        return 0.0

    def _commit_writes(self, batch: Batch, durable: bool) -> float:
        wire, started, until = batch.wire, time.perf_counter(), time.monotonic() + SETTINGS_KNOWN
        if level := (self._level if durable else "off"):
            wire.later(f"SET LOCAL synchronous_commit TO {level}")
        if batch.changed_settings:
            wire.later(self._count_settings)
            self._settings = None
        if batch.topics:
            wire.later(*self._notices.statement(batch.topics))
        self._number += 1
        self._committing = True
        (version,) = wire.commit((self._count, (self._writer, self._number)))
        self._committing = False
        self._settings = version or 0, until
        self.unsynced = not durable
        return time.perf_counter() - started

    def _now(self) -> float:
        seconds: float = self._wire.opening_row()[-1]  # type: ignore[union-attr]  # a step is running
        return seconds

    # ---- what went wrong ----

    def _recover(self, group: Sequence[PendingStep[Any]], careful: bool) -> bool:
        """Settle the calls of a transaction that has failed, or leave them to another attempt.

        Returns whether that should be careful.
        """
        fault = self._wire.fault  # type: ignore[union-attr]  # it was abandoned
        stored = self._roll_back()
        lost = self._connection is None
        if self._conclude(group, stored):
            return careful
        if isinstance(fault, pg.LockNotAvailable):
            self._fail_impatient(
                group, StoreBusy(f"another step held the store for {self._patience} seconds; try again")
            )
        elif isinstance(fault, pg.DivisionByZero):
            _fail(group, StoreTooNew("a newer modelyard has migrated the schema; restart with that version"))
        elif not lost and not isinstance(fault, (pg.UniqueViolation, *TRANSIENT)):
            self._run_alone(group, fault)
        return careful or isinstance(fault, pg.UniqueViolation)

    def _conclude(self, group: Sequence[PendingStep[Any]], stored: bool | None) -> bool:
        """Settle the calls whose transaction was `stored`, or may have been; return whether they are settled."""
        if stored is None:
            _fail(group, OutcomeUnknown("the connection was lost during the commit; look before you try again"))
        elif stored:
            _settle(group)
        return stored is not False

    def _roll_back(self) -> bool | None:
        """End a transaction that has failed. Returns whether it was stored after all; None if that is unknown.

        It was not if the connection lives. One that the server has ended may be noticed only now.
        """
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            return self._drop()
        return False

    def _drop(self) -> bool | None:
        """Give up the connection. Returns whether its last commit took place; None if that cannot be found out."""
        if self._connection is None:
            return False
        self._connection.close()
        self._connection = None
        return self._was_stored() if self._committing else False

    def _was_stored(self) -> bool | None:
        """Ask for the number of this writer's last commit; where it is older, see that it stays so."""
        deadline = time.monotonic() + self._patience
        while True:
            try:
                with self._connector.connect(deadline) as connection, connection.transaction():
                    return self._settle_number(connection)
            except (psycopg.Error, StoreError):
                if self._connector.is_over(deadline):
                    return None
            time.sleep(_BETWEEN_QUESTIONS)

    def _settle_number(self, connection: Any) -> bool | None:
        """Wait for a transaction that may still be in its commit, and let it fail if it has not reached it."""
        mine = f"FROM {self._commits} WHERE writer = $1 FOR UPDATE"
        row = connection.execute(f"SELECT number {mine}", (self._writer,)).fetchone()
        if row is None:
            return None
        if row[0] >= self._number:
            return True
        connection.execute(self._count, (self._writer, self._number))
        return False

    def _run_alone(self, group: Sequence[PendingStep[Any]], fault: Any) -> None:
        """Run the calls of a failed group one by one, so that none suffers from the error of another.

        If the group was a single call, that one has failed.
        """
        if len(group) == 1:
            group[0].fail(to_store_error(fault))
            return
        self._run_each(group)

    def _run_each(self, group: Sequence[PendingStep[Any]]) -> None:
        for call in group:
            self.run([call])

    def _fail_impatient(self, group: Sequence[PendingStep[Any]], busy: StoreBusy) -> None:
        """Fail the first call and those that have waited as long; those that came later wait on."""
        now = time.monotonic()
        for call in group:
            if call is group[0] or now - call.since > self._patience:
                call.fail(StoreBusy(str(busy)))


class _Entangled(BaseException):
    """Ends a group one of whose steps has raised after its writes were sent: only all of it can be undone."""

    def __init__(self, guessed: bool) -> None:
        self.guessed = guessed


_is_durable = attrgetter("durable")


def _settle(group: Sequence[PendingStep[Any]]) -> None:
    for call in group:
        call.settled = True


def _fail(group: Sequence[PendingStep[Any]], error: StoreError) -> None:
    for call in group:
        call.fail(type(error)(str(error)))
