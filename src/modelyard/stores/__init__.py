"""Stores for records: `memory` for tests and short-lived platforms, `sqlite` for one file that outlives the process,
`postgres` for many machines.
"""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.domain.record import KEY, Index, Record
    from modelyard.domain.schema import RECORDS
    from modelyard.parts.doors import stores as _parts
    from modelyard.parts.doors.stores import *  # noqa: F403
    from modelyard.stores.columns import columns_of
    from modelyard.stores.memory import MemoryStore
    from modelyard.stores.schema_changes import CHANGES
    from modelyard.stores.sqlite.migrations import Migration
    from modelyard.stores.sqlite.store import SqliteStore
    from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, DropIndex, Fill, SchemaChange

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
        "Record",
        "SchemaChange",
        "SqliteStore",
        "columns_of",
    ]
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "domain.record": ("KEY", "Index", "Record"),
            "domain.schema": ("RECORDS",),
            "stores.columns": ("columns_of",),
            "stores.memory": ("MemoryStore",),
            "stores.schema_changes": ("CHANGES",),
            "stores.sqlite.migrations": ("Migration",),
            "stores.sqlite.store": ("SqliteStore",),
            "stores.table_changes": ("AddColumn", "AddIndex", "AddTable", "DropIndex", "Fill", "SchemaChange"),
        },
    )


defer_modules(__name__, "schema_changes", "sqlite")
