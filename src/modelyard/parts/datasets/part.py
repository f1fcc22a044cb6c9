"""Data sets that were uploaded, listed, read and split: `platform.datasets`."""

from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.parts.datasets.service import Datasets


def _datasets() -> "type[Datasets]":
    from modelyard.parts.datasets.service import Datasets as resource

    return resource


PART = Part(
    "datasets",
    resources={"datasets": _datasets},
    commands={
        "datasets": Command("Work", "modelyard.parts.datasets.commands:datasets", "List, read and split data sets."),
    },
)
