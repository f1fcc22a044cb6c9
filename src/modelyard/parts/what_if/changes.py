"""Changes of the tables of `what_if` between versions, oldest first."""

from modelyard.parts.what_if.records import RECORDS
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (SchemaChange("what_if/0001_tables", [AddTable(record.cls) for record in RECORDS]),)
