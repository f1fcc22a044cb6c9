"""Changes of the tables of this part between versions, oldest first."""

from modelyard.parts.responses.records import ModelResponse
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (SchemaChange("0022_responses", [AddTable(ModelResponse)]),)
