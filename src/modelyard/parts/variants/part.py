"""What one serves under a name, in versions: `platform.variants`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelyard.domain.identity import Principal
    from modelyard.domain.models import Model
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.part import Named
    from modelyard.parts.variants.service import Variants
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import Snapshot
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.variants.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.variants.changes import CHANGES

    return CHANGES


def _variants() -> "type[Variants]":
    from modelyard.parts.variants.service import Variants as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.variants.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.variants import pages

    return (
        DashboardPage("GET", ("variants",), pages.listed, "Variants", pages.has_variant),
        DashboardPage("POST", ("variants",), pages.publish),
        DashboardPage("GET", ("variants", "{variant}"), pages.shown),
        DashboardPage("GET", ("variants", "{variant}", "diff"), pages.diff),
        DashboardPage("POST", ("variants", "{variant}", "rollback"), pages.rollback),
        DashboardPage("GET", ("variants", "{variant}", "{number}"), pages.version),
        DashboardPage("POST", ("variants", "{variant}", "{number}", "promote"), pages.promote),
    )


def _names(runtime: "Runtime", snapshot: "Snapshot", principal: "Principal", name: str) -> "Named | None":
    if not name.startswith("variants/") and "/variants." not in name:
        return None
    from modelyard.parts.variants.asking import served_variant

    return served_variant(snapshot, principal, name)


def _keeps(snapshot: "Snapshot", model: "Model") -> "Mapping[int, str]":
    from modelyard.parts.variants.keeping import kept_by_aliases

    return kept_by_aliases(snapshot, model)


PART = Part(
    "variants",
    records=_records,
    changes=_changes,
    resources={"variants": _variants},
    routes={"operations": _routes},
    pages=_pages,
    names=_names,
    keeps=_keeps,
    commands={
        "variants": Command(
            "Work", "modelyard.parts.variants.commands:variants", "Publish, compare and promote what you serve."
        )
    },
)
