"""Completions that were stored on request, over HTTP."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.route import Route


def _on_training() -> "Sequence[Route]":
    from modelyard.parts.stored_completions.routes import ON_TRAINING

    return ON_TRAINING


def _on_inference() -> "Sequence[Route]":
    from modelyard.parts.stored_completions.routes import ON_INFERENCE

    return ON_INFERENCE


PART = Part("stored_completions", routes={"training": _on_training, "inference": _on_inference})
