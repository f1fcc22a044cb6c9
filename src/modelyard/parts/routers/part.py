"""What model routers read of a provider (`platform.routers`), and prices that depend on the request."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.routers.service import Routers
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import ServedModel, Snapshot
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.routers.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.routers.changes import CHANGES

    return CHANGES


def _routers() -> "type[Routers]":
    from modelyard.parts.routers.service import Routers as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.routers.routes import ROUTES

    return ROUTES


def _prices(runtime: "Runtime", snapshot: "Snapshot", served: "ServedModel") -> "ServedModel":
    from modelyard.parts.routers.held import priced

    return priced(runtime, snapshot, served)


PART = Part(
    "routers",
    records=_records,
    changes=_changes,
    resources={"routers": _routers},
    routes={"base": _routes},
    prices=_prices,
    commands={
        "routers": Command(
            "Models", "modelyard.parts.routers.commands:routers", "Set prices that depend on the request."
        )
    },
)
