"""Changes of the tables of `rollouts` between versions, oldest first."""

from modelyard.parts.rollouts.records import RECORDS, StagedRollout
from modelyard.stores.table_changes import AddColumn, AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("rollouts/0001_tables", [AddTable(record.cls) for record in RECORDS]),
    SchemaChange("rollouts/0002_variants", [AddColumn(StagedRollout, "kind", str, "model")]),
)
