"""Data sets that were uploaded, listed, read and split: `platform.datasets`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, DashboardPage, Part

if TYPE_CHECKING:
    from modelyard.parts.datasets.service import Datasets


def _datasets() -> "type[Datasets]":
    from modelyard.parts.datasets.service import Datasets as resource

    return resource


def _pages() -> "Sequence[DashboardPage]":
    from modelyard.parts.datasets import pages

    return (DashboardPage("GET", ("datasets", "{entity}", "{project}", "{dataset}"), pages.shown),)


PART = Part(
    "datasets",
    pages=_pages,
    resources={"datasets": _datasets},
    commands={
        "datasets": Command("Work", "modelyard.parts.datasets.commands:datasets", "List, read and split data sets."),
    },
)
