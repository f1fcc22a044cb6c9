"""Stores for records: `memory` for tests and short-lived platforms, `sqlite` for one file that outlives the process,
`postgres` for many machines.
"""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.domain.record import KEY, Index, Record
    from modelyard.domain.schema import RECORDS
    from modelyard.parts.postgres.store import PostgresStore
    from modelyard.stores.columns import columns_of
    from modelyard.stores.memory import MemoryStore
    from modelyard.stores.schema_changes import CHANGES
    from modelyard.stores.sqlite.migrations import Migration
    from modelyard.stores.sqlite.store import SqliteStore
    from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, DropIndex, Fill, SchemaChange
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "domain.record": ("KEY", "Index", "Record"),
            "domain.schema": ("RECORDS",),
            "stores.columns": ("columns_of",),
            "stores.memory": ("MemoryStore",),
            "parts.postgres.store": ("PostgresStore",),
            "stores.schema_changes": ("CHANGES",),
            "stores.sqlite.migrations": ("Migration",),
            "stores.sqlite.store": ("SqliteStore",),
            "stores.table_changes": ("AddColumn", "AddIndex", "AddTable", "DropIndex", "Fill", "SchemaChange"),
        },
    )

__all__ = [
    "CHANGES",
    "KEY",
    "RECORDS",
    "AddColumn",
    "AddIndex",
    "AddTable",
    "DropIndex",
    "Fill",
    "Index",
    "MemoryStore",
    "Migration",
    "PostgresStore",
    "Record",
    "SchemaChange",
    "SqliteStore",
    "columns_of",
]

defer_modules(__name__, "sqlite")
