"""Changes of the tables of `traces` between versions, oldest first."""

from modelyard.parts.traces.records import Feedback, TracedCall, TracedFile, TracedRow, TracedTable
from modelyard.stores.table_changes import AddColumn, AddIndex, AddTable, Fill, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("0030_traces", [*map(AddTable, (TracedCall, Feedback, TracedRow, TracedTable, TracedFile))]),
    SchemaChange(
        "0032_outcomes_of_calls",
        [
            AddColumn(TracedCall, "outcome", str, ""),
            Fill(
                TracedCall,
                "outcome",
                "CASE WHEN ended_at IS NULL THEN 'running' WHEN exception IS NULL THEN 'success' ELSE 'error' END",
            ),
            AddIndex(TracedCall, "by_outcome", ["entity", "project", "outcome", "started_at", "seq"]),
        ],
    ),
    SchemaChange("traces/0001_ages_of_feedback", [AddIndex(Feedback, "by_age", ["created_at", "seq"])]),
)
