"""Changes of the tables of `annotations` between versions, oldest first."""

from modelyard.parts.annotations.records import Annotation
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (SchemaChange("0019_annotations", [AddTable(Annotation)]),)
