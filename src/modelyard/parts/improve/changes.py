"""Changes of the tables of `improve` between versions, oldest first."""

from modelyard.parts.improve.records import KeptCall, PromptProposal
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("improve/0001_prompts", [AddTable(KeptCall), AddTable(PromptProposal)]),
)
