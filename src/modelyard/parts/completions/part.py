"""Prompts that are continued without a chat template, and tokens: `platform.compat.completions`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.completions.service import Completions


def _completions() -> "type[Completions]":
    from modelyard.parts.completions.service import Completions as resource

    return resource


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.completions.interface import COMPLETIONS

    return (COMPLETIONS,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.completions.routes import ROUTES

    return ROUTES


PART = Part(
    "completions",
    resources={"compat.completions": _completions},
    interfaces=_interfaces,
    routes={"completions": _routes},
)
