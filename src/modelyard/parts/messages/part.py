"""Chat completions in the messages format."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.messages.interface import MESSAGES

    return (MESSAGES,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.messages.routes import ROUTES

    return ROUTES


PART = Part(
    "messages",
    interfaces=_interfaces,
    routes={"messages": _routes},
)
