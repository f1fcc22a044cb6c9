"""Changes of the tables of `torch` between versions, oldest first."""

from modelyard.parts.torch.records import BaseModel
from modelyard.stores.table_changes import AddColumn, SchemaChange

CHANGES: tuple[SchemaChange, ...] = (
    SchemaChange("torch/0001_sources_of_base_models", [AddColumn(BaseModel, "source", str, "{}")]),
    SchemaChange("torch/0002_weights_of_base_models", [AddColumn(BaseModel, "weights", str)]),
)
