"""A model trained with every combination of options: `platform.training.sweep`, `platform.training.sweeps`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.parts.sweeps.service import StartSweep, Sweeps
    from modelyard.platform.runtime import Runtime
    from modelyard.protocols import Tx


def _records() -> "Sequence[Record]":
    from modelyard.parts.sweeps.records import RECORDS

    return RECORDS


def _sweeps() -> "type[Sweeps]":
    from modelyard.parts.sweeps.service import Sweeps as resource

    return resource


def _sweep() -> "type[StartSweep]":
    from modelyard.parts.sweeps.service import StartSweep as member

    return member


def _on_event(runtime: "Runtime", tx: "Tx", event: Any) -> None:
    if "sweep_id" in getattr(event, "spec", ()):
        from modelyard.parts.sweeps.rungs import advance

        advance(runtime, tx, event)


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.sweeps import pages

    return (
        DashboardPage("GET", ("sweeps",), pages.listed, "Sweeps", pages.has_sweep),
        DashboardPage("GET", ("sweeps", "{sweep}"), pages.shown),
        DashboardPage("POST", ("sweeps", "{sweep}", "cancel"), pages.cancel),
    )


_HOME = "modelyard.parts.sweeps.commands"

PART = Part(
    "sweeps",
    records=_records,
    resources={"training.sweeps": _sweeps, "training.sweep": _sweep},
    moved={"sweeps": "training.sweeps"},
    on_event=_on_event,
    pages=_pages,
    commands={
        "sweeps": Command("Work", f"{_HOME}:sweeps", "List sweeps, or look at one."),
        "train sweep": Command("", f"{_HOME}:train_sweep", "Train MODEL on DATA with every combination of options."),
    },
)
