"""Changes of the tables of `routers` between versions, oldest first."""

from modelyard.parts.routers.records import RouterListing
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (SchemaChange("routers/0001_listings", [AddTable(RouterListing)]),)
