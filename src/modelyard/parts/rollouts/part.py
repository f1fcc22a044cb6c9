"""A new checkpoint or version comes to the users of an alias in stages: `platform.rollouts`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    from modelyard.domain.identity import Principal
    from modelyard.domain.models import Model
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.rollouts.arms import RolloutCapture
    from modelyard.parts.rollouts.service import RollOut, StagedRollouts
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import Snapshot, Tx
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.rollouts.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.rollouts.changes import CHANGES

    return CHANGES


def _rollouts() -> "type[StagedRollouts]":
    from modelyard.parts.rollouts.service import StagedRollouts as resource

    return resource


def _roll_out() -> "type[RollOut]":
    from modelyard.parts.rollouts.service import RollOut as member

    return member


def _routes() -> "Sequence[Route]":
    from modelyard.parts.rollouts.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.rollouts import pages

    return (
        DashboardPage("GET", ("rollouts",), pages.listed, "Rollouts", pages.has_rollout),
        DashboardPage("GET", ("rollouts", "{rollout}"), pages.shown),
        DashboardPage("POST", ("rollouts", "{rollout}", "stop"), pages.stop),
    )


def _captures(runtime: "Runtime", snapshot: "Snapshot", principal: "Principal", name: str) -> "RolloutCapture | None":
    if ":" not in name and "@" not in name:
        return None
    from modelyard.parts.rollouts.arms import capture_of

    return capture_of(runtime, snapshot, principal, name)


def _on_event(runtime: "Runtime", tx: "Tx", event: Any) -> None:
    if hasattr(event, "below"):
        from modelyard.parts.rollouts.upkeep import on_alias_moved

        on_alias_moved(runtime, tx, event)
    elif hasattr(event, "completion_id"):
        from modelyard.parts.rollouts.scores import on_opinion

        on_opinion(runtime, tx, event)


def _upkeep(runtime: "Runtime") -> None:
    from modelyard.parts.rollouts.mirror import Mirror
    from modelyard.parts.rollouts.upkeep import look

    look(runtime)
    runtime.cache.slot(Mirror).wake(runtime)


def _keeps(snapshot: "Snapshot", model: "Model") -> "Mapping[int, str]":
    from modelyard.parts.rollouts.subjects import kept_by_rollouts

    return kept_by_rollouts(snapshot, model)


PART = Part(
    "rollouts",
    records=_records,
    changes=_changes,
    resources={"rollouts": _rollouts, "models.roll_out": _roll_out},
    routes={"operations": _routes},
    pages=_pages,
    captures=_captures,
    keeps=_keeps,
    on_event=_on_event,
    upkeep=_upkeep,
    commands={
        "rollouts": Command(
            "Work",
            "modelyard.parts.rollouts.commands:rollouts",
            "Bring checkpoints and variants to the users of an alias in stages.",
        )
    },
)
