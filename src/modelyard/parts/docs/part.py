"""The docs themselves: for people in a terminal (`modelyard docs`), for language models (`/llms.txt`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import ALWAYS, Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route


def _routes() -> "Sequence[Route]":
    from modelyard.parts.docs.routes import ROUTES

    return ROUTES


PART = Part(
    "docs",
    routes={ALWAYS: _routes},
    commands={
        "docs": Command(
            "Start", "modelyard.parts.docs.command:docs", "Show a page of the docs as Markdown, or list the pages."
        )
    },
)
