"""Training jobs in the words of fine-tuning services: `platform.compat.fine_tuning`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part, TrainedRecord

if TYPE_CHECKING:
    from modelyard.domain.job import Job
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.fine_tuning.service import FineTuning
    from modelyard.platform.runtime import Runtime


def _fine_tuning() -> "type[FineTuning]":
    from modelyard.parts.fine_tuning.service import FineTuning as resource

    return resource


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.fine_tuning.interface import FINE_TUNING

    return (FINE_TUNING,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.fine_tuning.routes import ROUTES

    return ROUTES


def _trained(runtime: "Runtime", job: "Job", loose: list[str]) -> "TrainedRecord | None":
    from modelyard.parts.fine_tuning.result_file import ResultFile

    return ResultFile.of(runtime, job, loose)


PART = Part(
    "fine_tuning",
    resources={"compat.fine_tuning": _fine_tuning},
    interfaces=_interfaces,
    routes={"fine_tuning": _routes},
    trained=_trained,
    commands={
        "train import": Command(
            "", "modelyard.parts.fine_tuning.commands:import_jobs", "Repeat fine-tuning jobs of another service here."
        )
    },
)
