"""Rules by which old data go: `platform.keep`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.retention.service import Keep


def _keep() -> "type[Keep]":
    from modelyard.parts.retention.service import Keep as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.retention.routes import ROUTES

    return ROUTES


PART = Part(
    "retention",
    resources={"keep": _keep},
    moved={f"keep_{name}": f"keep.{name}" for name in ("events", "ledger", "runs", "texts")},
    routes={"operations": _routes},
    commands={
        "keep": Command("Store", "modelyard.parts.retention.commands:keep", "Remove what is older than so many days."),
        "delete-entity": Command(
            "Store", "modelyard.parts.retention.commands:delete_entity", "Delete all data of an entity for ever."
        ),
    },
)
