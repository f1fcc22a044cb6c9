"""Changes of the tables of `review` between versions, oldest first."""

from modelyard.parts.review.records import Review, ReviewLabel, ReviewRow
from modelyard.parts.review.watches import Watch, WatchedAnswer, WatchedDay
from modelyard.stores.table_changes import AddColumn, AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("review/0001_tables", [AddTable(Review), AddTable(ReviewRow), AddTable(ReviewLabel)]),
    SchemaChange("review/0002_watches", [AddTable(Watch), AddTable(WatchedAnswer), AddTable(WatchedDay)]),
    SchemaChange("review/0003_rows_by_score", [AddColumn(Review, "by_score", bool, False)]),
)
