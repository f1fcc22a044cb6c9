"""Changes of the tables of `steering` between versions, oldest first."""

from modelyard.parts.steering.records import EarlierAnswer, SteeringEntry
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("steering/0001_entries", [AddTable(SteeringEntry), AddTable(EarlierAnswer)]),
)
