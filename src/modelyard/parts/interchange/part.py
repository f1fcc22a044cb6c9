"""Runs that were made elsewhere, and runs for elsewhere: `platform.evaluations.inspect`."""

from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.parts.interchange.service import InspectLogs


def _inspect() -> "type[InspectLogs]":
    from modelyard.parts.interchange.service import InspectLogs as resource

    return resource


_COMMANDS = "modelyard.parts.interchange.commands"

PART = Part(
    "interchange",
    resources={"evaluations.inspect": _inspect},
    commands={
        "runs import": Command("", f"{_COMMANDS}:import_logs", "Keep LOGS of Inspect as runs."),
        "runs write-log": Command("", f"{_COMMANDS}:write_log", "Write RUN as a log of Inspect."),
    },
)
