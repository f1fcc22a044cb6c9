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
    from modelyard.stores.sqlite.migrations import Migration
    from modelyard.stores.sqlite.store import SqliteStore
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "domain.record": ("KEY", "Index", "Record"),
            "domain.schema": ("RECORDS",),
            "stores.columns": ("columns_of",),
            "stores.memory": ("MemoryStore",),
            "parts.postgres.store": ("PostgresStore",),
            "stores.sqlite.migrations": ("Migration",),
            "stores.sqlite.store": ("SqliteStore",),
        },
    )

__all__ = [
    "KEY",
    "RECORDS",
    "Index",
    "MemoryStore",
    "Migration",
    "PostgresStore",
    "Record",
    "SqliteStore",
    "columns_of",
]

defer_modules(__name__, "sqlite")
