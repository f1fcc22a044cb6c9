"""A store in one schema of a PostgreSQL database."""

import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from typing import Any, Literal, TypeVar, cast

from modelyard import process_identity
from modelyard.domain.record import Record
from modelyard.errors import MissingExtra, OutcomeUnknown, StoreClosed, StoreError, UsedAfterFork
from modelyard.protocols import (
    ClaimingStore,
    Month,
    MonthlyStore,
    NextClaim,
    Snapshot,
    Store,
    Subscription,
    Tx,
)
from modelyard.stores.group_commit import GroupCommit
from modelyard.stores.schema_changes import CHANGES
from modelyard.stores.table_changes import SchemaChange

try:
    import psycopg  # noqa: F401
except ImportError as error:
    raise MissingExtra("psycopg", "postgres") from error

from modelyard.parts.postgres import months
from modelyard.parts.postgres.backup import back_up_to_file
from modelyard.parts.postgres.claims_fast import MOST_NEEDS, UNHEARD, Claimed, ClaimStep
from modelyard.parts.postgres.connections import Connector, ReadPool
from modelyard.parts.postgres.notices import Notices
from modelyard.parts.postgres.pages import Row
from modelyard.parts.postgres.rows import plans_of
from modelyard.parts.postgres.schema import COMMITS, has_table, migrate_schema, open_schema, other_tables
from modelyard.parts.postgres.tx import PostgresTx
from modelyard.parts.postgres.writer import GroupWriter
from modelyard.stores.history import MIGRATIONS

T = TypeVar("T")
R = TypeVar("R")

_MOST_READERS = 8
_MIGRATION_PATIENCE = 60.0
_LOOKING_PATIENCE = 10.0
_CLOSING_PATIENCE = 2.0
_DAY = 86_400.0
_STRAY = (
    "{} has records of a month, from {} on, since no process was there to give it a partition: they are removed row by"
    " row and not at once"
)
_KEPT_DAYS = 7
"""Days after which the number of a writer's commits is forgotten, if it has not written since."""


class PostgresStore:
    """A store in PostgreSQL 15 or newer, which any number of processes and machines may share.

    `address` is what libpq takes: postgresql://user@host/database, or words; the password may be in it, in ~/.pgpass
    or in PGPASSWORD. `durability` is what an acknowledged record survives: "power", unless the server runs without
    fsync, or only the death of a "process". `patience` is how many seconds a call waits, for others or for the server
    to come back, before it raises `StoreBusy`. Opening creates the tables that `schema` never had; `changes` of others
    are made by `migrate` only. It raises `StoreBusy` where the server cannot be reached, `StoreTooNew` for tables of a
    newer version, and `StoreError`.

    It uses one connection that writes, up to `readers` that read, and one that listens for notices once something here
    waits. `listen` is the address for that one where `address` is that of a pooler in transaction mode.

        with contextlib.closing(PostgresStore("postgresql://host/yard", RECORDS)) as store:
            store.transact(lambda tx: tx.add(model))
    """

    blocking = True

    def __init__(
        self,
        address: str,
        records: Sequence[Record],
        schema: str = "modelyard",
        *,
        durability: Literal["power", "process"] = "power",
        patience: float = 10.0,
        readers: int = _MOST_READERS,
        listen: str | None = None,
        changes: Sequence[SchemaChange] = CHANGES,
    ) -> None:
        if durability not in ("power", "process"):
            raise ValueError(f'durability must be "power" or "process", not {durability!r}')
        if not schema.isidentifier():
            raise ValueError(f"{schema!r} cannot be the name of a schema; use letters, digits and underscores")
        self._forks, self._records = process_identity.forks, records
        self._closing = threading.Lock()
        self._schema, self._plans = schema, plans_of(records, schema)
        plans = self._plans
        connector = self._connector = Connector(address, patience)
        self._first_strays = months.first_strays(plans.values(), schema)
        self._months_due = time.monotonic() + _DAY
        commits, name = f'"{schema}"."{COMMITS}"', str(uuid.uuid4())

        def settle(connection: Any) -> tuple[str, list[str]]:
            unchanged = open_schema(connection, schema, plans, changes)
            forget = f"DELETE FROM {commits} WHERE at < now() - interval '{_KEPT_DAYS} days'"  # noqa: S608
            connection.execute(forget)
            connection.execute(f"INSERT INTO {commits} VALUES ($1, 0, now()) ON CONFLICT DO NOTHING", (name,))  # noqa: S608
            self._server: int = connection.info.server_version
            settings = ("fsync", "synchronous_commit")
            return unchanged, [connection.execute(f"SHOW {name}").fetchone()[0] for name in settings]

        unchanged, shown = connector.patiently(settle, again=True)
        self.durability: str = durability if shown[0] == "on" else "process"
        level = "off" if durability == "process" else "on" if shown[1] == "off" else None
        with ExitStack() as opened:
            self._notices = opened.enter_context(closing(Notices(Connector(listen or address, patience), schema, name)))
            self._readers = opened.enter_context(closing(ReadPool(connector, plans, readers, patience)))
            self._writer = opened.enter_context(
                closing(GroupWriter(connector, plans, schema, name, unchanged, patience, level, self._notices))
            )
            self._group = GroupCommit(self._writer.run, self._writer.run_one)
            opened.callback(self._group.end_thread)
            self._opened = opened.pop_all()

    def transact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` in a transaction that it may share with the steps of other callers."""
        self._refuse_misuse()
        return self._group.transact(step, durable)

    async def atransact(self, step: Callable[[Tx], T], durable: bool = True) -> T:
        """Run `step` as `transact` does, for a task; a thread of the store leads if no caller does."""
        self._refuse_misuse()
        return await self._group.atransact(step, durable)

    def claim_next(self, ask: NextClaim) -> tuple[Claimed | None, str]:
        """Claim the first job of the entity that is next, in one round trip. Raises what `transact` raises."""
        self._refuse_misuse()
        if len(ask.fits) > MOST_NEEDS:
            return None, ""
        step: Any = ClaimStep.of(ask)
        found = self._group.transact(step, durable=False) or self._group.transact(step, durable=False)
        if found is UNHEARD:
            raise OutcomeUnknown("a job was claimed, and the answer lost; look which jobs the worker holds")
        return found or (None, "")

    def read(self, query: Callable[[Snapshot], T]) -> T:
        """Run `query` on one snapshot, concurrently with the writers: it waits for none and delays none."""
        self._refuse_misuse()
        return self._readers.read(query)

    def subscribe(self, topic: str, wake: Callable[[], None]) -> Subscription:
        """Have `wake` called after each commit of a step that notifies the topic, here or elsewhere."""
        self._refuse_misuse()
        return self._notices.subscribe(topic, wake)

    def settings_version(self) -> int | None:
        """Return how often a setting was changed, as the last commit found it; None a second after that."""
        self._refuse_misuse()
        return self._writer.settings_version()

    def months(self, cls: type[Any]) -> Sequence[Month]:
        """Return the partitions of the table of a class, the oldest first, but for that of what has no other."""
        self._refuse_misuse()
        return months.months_of(self._readers.rows(*months.parts(self._plans[cls])))

    def month_page(self, cls: type[R], month: Month, after: Row | None, limit: int) -> Sequence[R]:
        """Return up to `limit` records of a partition in the order of their keys, after the key `after`."""
        self._refuse_misuse()
        plan = self._plans[cls]
        return [*map(plan.record_of, self._readers.rows(*months.page(plan, self._schema, month, after, limit)))]

    def drop_month(self, cls: type[Any], month: Month) -> None:
        """Drop a partition with all its records, while no step runs. It waits for those who read the table."""
        if month.name not in {there.name for there in self.months(cls)}:
            raise StoreError(f"no partition {month.name} of {cls.__name__}")
        self.transact(lambda tx: cast(PostgresTx, tx).change_tables(months.drop(self._schema, month)))

    def add_months(self) -> None:
        """Create the partitions of this month and of the next two, if that was not done for a day."""
        self._refuse_misuse()
        if time.monotonic() < self._months_due:
            return
        add = partial(months.add_missing_parts, schema=self._schema, plans=self._plans.values())
        self._connector.patiently(add, again=True)
        self._months_due = time.monotonic() + _DAY

    def check(self) -> Mapping[str, object]:
        """Write a little; return engine, version, durability, and a warning if months are not kept apart."""
        self._refuse_misuse()
        self.transact(lambda tx: cast(PostgresTx, tx).touch(), durable=False)
        strays = self._readers.rows(self._first_strays or "SELECT 1 WHERE false")
        return {
            "engine": "postgresql",
            "version": f"{self._server // 10000}.{self._server % 10000}",
            "durability": self.durability,
            "warning": "; ".join(_STRAY.format(*stray) for stray in strays) or None,
        }

    def sync(self) -> None:
        """Bring to the disk what steps of this store that were not durable have written."""
        self.transact(self._touch)

    def other_tables(self) -> Sequence[str]:
        """Return the names of tables with records that are not declared, such as those of a part that is not open."""
        self._refuse_misuse()
        return other_tables(self._readers.rows, self._schema, self._plans)

    def backup(self, path: str) -> None:
        """Copy the records of one snapshot to a SQLite file, which `open_platform` opens.

        Raises `FileExistsError` or `StoreError`.
        """
        self._refuse_misuse()
        back_up_to_file(self, self._records, path)

    def close(self) -> None:
        """Finish the waiting calls, sync and close the connections: a server that is away is waited for two seconds. In
        a forked child, leave those of the parent open.

        Raises `StoreError`, with the store closed, if something could not be brought to the disk.
        """
        if process_identity.forks != self._forks:
            return
        self._group.refuse_steps()
        self._connector.hurry(_CLOSING_PATIENCE)
        with self._closing, self._opened, suppress(StoreClosed):  # it may be closed already
            try:
                self._group.transact(self._touch, durable=True, last=True)
            except StoreError:
                if self._writer.unsynced:
                    raise

    def _touch(self, tx: Tx) -> None:
        """Write something if something waits for a sync: a commit without a write is not synced."""
        if self._writer.unsynced:
            cast(PostgresTx, tx).touch()

    def _refuse_misuse(self) -> None:
        if process_identity.forks != self._forks:
            raise UsedAfterFork("this store was opened before a fork; open it again in the child")
        self._readers.refuse_closed()
        self._group.refuse_steps()


def migrate(
    address: str, records: Sequence[Record], schema: str = "modelyard", changes: Sequence[SchemaChange] = CHANGES
) -> list[str]:
    """Bring the tables of an older version to this one; return the names of what was changed.

    Servers of the older version refuse to write from then on, until they restart with the new one.
    Raises `StoreTooNew`, `StoreCorrupt`, `StoreBusy` or `StoreError`, and then changes nothing.
    """
    plans = plans_of(records, schema)
    return Connector(address, patience=_MIGRATION_PATIENCE).patiently(
        lambda connection: migrate_schema(connection, schema, plans, changes), again=False
    )


def has_store(address: str, schema: str = "modelyard") -> bool:
    """Return whether a database has the tables of a store. Raises `StoreBusy`, `StoreError`."""
    return Connector(address, patience=_LOOKING_PATIENCE).patiently(
        lambda connection: has_table(connection, schema, MIGRATIONS), again=True
    )


_conforms: type[Store] = PostgresStore
_conforms_too: type[MonthlyStore] = PostgresStore
_claims_too: type[ClaimingStore] = PostgresStore
