"""Rules by which data go: `platform.keep_events`, `keep_ledger`, `keep_runs` and `keep_texts`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.retention import service


def _events() -> "type[service.KeepEvents]":
    from modelyard.parts.retention.service import KeepEvents as resource

    return resource


def _ledger() -> "type[service.KeepLedger]":
    from modelyard.parts.retention.service import KeepLedger as resource

    return resource


def _runs() -> "type[service.KeepRuns]":
    from modelyard.parts.retention.service import KeepRuns as resource

    return resource


def _texts() -> "type[service.KeepTexts]":
    from modelyard.parts.retention.service import KeepTexts as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.retention.routes import ROUTES

    return ROUTES


PART = Part(
    "retention",
    resources={"keep_events": _events, "keep_ledger": _ledger, "keep_runs": _runs, "keep_texts": _texts},
    routes={"operations": _routes},
    commands={
        "keep": Command("Store", "modelyard.parts.retention.commands:keep", "Remove what is older than so many days."),
        "delete-entity": Command(
            "Store", "modelyard.parts.retention.commands:delete_entity", "Delete all data of an entity for ever."
        ),
    },
)
