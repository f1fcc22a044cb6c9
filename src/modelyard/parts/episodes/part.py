"""Agents that are trained as they are: `platform.episodes`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.identity import Principal
    from modelyard.domain.record import Record
    from modelyard.http.route import Route
    from modelyard.parts.episodes.capture import EpisodeCapture
    from modelyard.parts.episodes.service import Episodes
    from modelyard.platform.runtime import Runtime
    from modelyard.platform.training.handle import JobHandle
    from modelyard.protocols import Snapshot
    from modelyard.stores.table_changes import SchemaChange


def _records() -> "Sequence[Record]":
    from modelyard.parts.episodes.records import RECORDS

    return RECORDS


def _changes() -> "Sequence[SchemaChange]":
    from modelyard.parts.episodes.changes import CHANGES

    return CHANGES


def _episodes() -> "type[Episodes]":
    from modelyard.parts.episodes.service import Episodes as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.episodes.routes import ROUTES

    return ROUTES


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.episodes import pages

    return (
        DashboardPage("GET", ("episodes",), pages.groups, "Episodes", pages.has_group),
        DashboardPage("GET", ("episodes", "{group}"), pages.group),
        DashboardPage("GET", ("episodes", "{group}", "{episode}"), pages.episode),
    )


def _captures(runtime: "Runtime", snapshot: "Snapshot", principal: "Principal", name: str) -> "EpisodeCapture | None":
    if not principal.name.startswith(KEY_NAME):
        return None
    from modelyard.parts.episodes.capture import capture_of

    return capture_of(runtime, snapshot, principal)


def _submits(training: Any, kind: str, model: Any, data: Any, *of: Any) -> "JobHandle | None":
    groups = data if isinstance(data, list | tuple) else [data]
    if kind != "rl" or not any(getattr(one, "is_episode_group", False) for one in groups):
        return None
    from modelyard.parts.episodes.training import submit_groups

    return submit_groups(training, model, groups, *of)


KEY_NAME = "modelyard episode "
"""How the name of an episode's key begins; its id follows."""

PART = Part(
    "episodes",
    records=_records,
    changes=_changes,
    resources={"episodes": _episodes},
    routes={"training": _routes},
    pages=_pages,
    captures=_captures,
    submits=_submits,
    commands={
        "episodes": Command("Work", "modelyard.parts.episodes.commands:episodes", "Look at the episodes of agents.")
    },
)
