"""Events that are posted to addresses of their owner: `platform.webhooks`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.webhooks.service import Webhooks
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import Tx


def _records() -> "Sequence[Record]":
    from modelyard.parts.webhooks.records import RECORDS

    return RECORDS


def _webhooks() -> "type[Webhooks]":
    from modelyard.parts.webhooks.service import Webhooks as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.webhooks.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.webhooks import pages

    return (
        DashboardPage("GET", ("webhooks",), pages.listed, "Webhooks", pages.has_webhook),
        DashboardPage("POST", ("webhooks", "{message}", "redeliver"), pages.redeliver),
    )


def _on_event(runtime: "Runtime", tx: "Tx", event: object) -> None:
    from modelyard.parts.webhooks.outbox import on_event

    on_event(runtime, tx, event)


def _upkeep(runtime: "Runtime") -> None:
    from modelyard.parts.webhooks.alerts import look
    from modelyard.parts.webhooks.delivery import deliver_due

    look(runtime)
    deliver_due(runtime)


PART = Part(
    "webhooks",
    records=_records,
    resources={"webhooks": _webhooks},
    routes={"operations": _routes},
    pages=_pages,
    on_event=_on_event,
    upkeep=_upkeep,
    commands={
        "webhooks": Command(
            "Work", "modelyard.parts.webhooks.commands:webhooks", "Post events to an address, and look after them."
        )
    },
)
