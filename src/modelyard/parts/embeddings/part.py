"""Vectors of texts, as `platform.embeddings` and over HTTP."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.embeddings.service import Embeddings


def _embeddings() -> "type[Embeddings]":
    from modelyard.parts.embeddings.service import Embeddings as resource

    return resource


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.embeddings.interface import EMBEDDINGS

    return (EMBEDDINGS,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.embeddings.routes import ROUTES

    return ROUTES


PART = Part(
    "embeddings",
    resources={"embeddings": _embeddings},
    interfaces=_interfaces,
    routes={"embeddings": _routes},
)
