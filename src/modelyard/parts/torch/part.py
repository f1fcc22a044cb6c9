"""Base models in local folders: answering, embeddings and training on torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.parts.torch.engine import TorchEngine
    from modelyard.parts.torch.service import AddBaseModel, ListBaseModels
    from modelyard.protocols import Store
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.torch.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.torch.changes import CHANGES

    return CHANGES


def _engine(store: "Store | None") -> "TorchEngine":
    from modelyard.parts.torch.engine import TorchEngine

    return TorchEngine(store)


def _add_base_model() -> "type[AddBaseModel]":
    from modelyard.parts.torch.service import AddBaseModel

    return AddBaseModel


def _base_models() -> "type[ListBaseModels]":
    from modelyard.parts.torch.service import ListBaseModels

    return ListBaseModels


PART = Part(
    "torch",
    records=_records,
    changes=_changes,
    resources={"add_base_model": _add_base_model, "base_models": _base_models},
    engine=_engine,
    commands={
        "base-models": Command(
            "Models",
            "modelyard.parts.torch.commands:base_models",
            "Add base models from folders, GGUF files and hubs, and list them.",
        )
    },
)
