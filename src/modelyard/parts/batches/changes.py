"""Changes of the tables of `batches` between versions, oldest first."""

from modelyard.parts.batches.files.records import StoredFile
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (SchemaChange("0018_files", [AddTable(StoredFile)]),)
