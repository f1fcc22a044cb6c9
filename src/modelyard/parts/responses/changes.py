"""Changes of the tables of `responses` between versions, oldest first."""

from modelyard.parts.responses.records import ModelResponse
from modelyard.stores.table_changes import AddIndex, AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("0022_responses", [AddTable(ModelResponse)]),
    SchemaChange("responses/0001_ages", [AddIndex(ModelResponse, "by_age", ["created_at", "seq"])]),
)
