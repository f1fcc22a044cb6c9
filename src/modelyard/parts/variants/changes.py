"""Changes of the tables of `variants` between versions, oldest first."""

from modelyard.parts.variants.records import Variant, VariantAlias, VariantMove, VariantVersion
from modelyard.stores.table_changes import AddTable, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange(
        "variants/0001_tables",
        [AddTable(Variant), AddTable(VariantVersion), AddTable(VariantAlias), AddTable(VariantMove)],
    ),
)
