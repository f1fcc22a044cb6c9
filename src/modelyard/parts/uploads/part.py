"""Training data that the W&B client uploads: `platform.compat.uploads`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Part

if TYPE_CHECKING:
    from modelyard.domain.record import Record
    from modelyard.http.interface import Interface
    from modelyard.http.route import Route
    from modelyard.parts.uploads.service import Uploads


def _records() -> "Sequence[Record]":
    from modelyard.parts.uploads.records import RECORDS

    return RECORDS


def _uploads() -> "type[Uploads]":
    from modelyard.parts.uploads.service import Uploads as resource

    return resource


def _interfaces() -> "Sequence[Interface]":
    from modelyard.parts.uploads.interface import UPLOADS

    return (UPLOADS,)


def _routes() -> "Sequence[Route]":
    from modelyard.parts.uploads.routes import ROUTES

    return ROUTES


PART = Part(
    "uploads",
    records=_records,
    resources={"compat.uploads": _uploads},
    interfaces=_interfaces,
    routes={"uploads": _routes},
)
