"""Records in PostgreSQL, for many machines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from modelyard.part import Part, StoreAddress

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.parts.postgres.store import PostgresStore
    from modelyard.platform.runtime import Runtime
    from modelyard.stores.table_changes import SchemaChange


def _open(
    address: str,
    records: "Sequence[Record]",
    changes: "Sequence[SchemaChange]",
    durability: Literal["power", "process"],
) -> "PostgresStore":
    from modelyard.parts.postgres.store import PostgresStore

    return PostgresStore(address, records, changes=changes, durability=durability)


def _migrate(address: str, records: "Sequence[Record]", changes: "Sequence[SchemaChange]") -> Sequence[str]:
    from modelyard.parts.postgres.store import migrate

    return migrate(address, records, changes=changes)


def _exists(address: str) -> bool:
    from modelyard.parts.postgres.store import has_store

    return has_store(address)


def _upkeep(runtime: "Runtime") -> None:
    add_months = getattr(runtime.store, "add_months", None)
    if add_months is not None:
        add_months()


_DATABASE = StoreAddress("postgresql://host/database", _open, _migrate, _exists)

PART = Part("postgres", stores={"postgresql": _DATABASE, "postgres": _DATABASE}, upkeep=_upkeep)
