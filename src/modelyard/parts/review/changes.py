"""Changes of the tables of `review` between versions, oldest first."""

from modelyard.parts.review.records import Review, ReviewLabel, ReviewRow
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("review/0001_tables", [AddTable(Review), AddTable(ReviewRow), AddTable(ReviewLabel)]),
)
