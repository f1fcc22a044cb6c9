"""Base models in local folders: answering, embeddings and training on torch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.parts.torch.engine import TorchEngine
    from modelyard.parts.torch.exports.imported import ImportAdapter
    from modelyard.parts.torch.exports.service import ExportModel, PushModel
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


def _export_model() -> "type[ExportModel]":
    from modelyard.parts.torch.exports.service import ExportModel

    return ExportModel


def _push_model() -> "type[PushModel]":
    from modelyard.parts.torch.exports.service import PushModel

    return PushModel


def _import_adapter() -> "type[ImportAdapter]":
    from modelyard.parts.torch.exports.imported import ImportAdapter

    return ImportAdapter


_EXPORTS = "modelyard.parts.torch.exports.commands"

PART = Part(
    "torch",
    records=_records,
    changes=_changes,
    moved={
        "export_model": "models.export",
        "import_adapter": "models.import_adapter",
        "push_model": "models.push",
    },
    resources={
        "add_base_model": _add_base_model,
        "base_models": _base_models,
        "models.export": _export_model,
        "models.push": _push_model,
        "models.import_adapter": _import_adapter,
    },
    engine=_engine,
    commands={
        "base-models": Command(
            "Models",
            "modelyard.parts.torch.commands:base_models",
            "Add base models from folders, GGUF files and hubs, and list them.",
        ),
        "models export": Command("", f"{_EXPORTS}:export_model", "Write a checkpoint of MODEL where others load it."),
        "models push": Command("", f"{_EXPORTS}:push_model", "Send a checkpoint of MODEL to a hub."),
        "models import": Command("", f"{_EXPORTS}:import_adapter", "Add the adapter in FOLDER to MODEL."),
    },
)
