"""Weights and limits of entities in the queue (`platform.shares`), for the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.shares.service import Shares
    from modelyard.platform.runtime import Runtime


def _shares() -> "type[Shares]":
    from modelyard.parts.shares.service import Shares as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.shares.routes import ROUTES

    return ROUTES


def _upkeep(runtime: "Runtime") -> None:
    from modelyard.parts.shares.without_worker import JobsWithoutWorker

    runtime.cache.slot_of(JobsWithoutWorker, lambda: JobsWithoutWorker(runtime)).look()


_HOME = "modelyard.parts.shares.commands"

PART = Part(
    "shares",
    resources={"shares": _shares},
    routes={"operations": _routes},
    commands={"shares": Command("Operate", f"{_HOME}:shares", "Set what entities get of the workers.")},
    upkeep=_upkeep,
)
