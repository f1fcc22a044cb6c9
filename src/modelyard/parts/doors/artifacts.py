"""Names of parts in `modelyard.artifacts`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.objects.store import ObjectArtifacts

HOMES = {
    "parts.objects.store": ("ObjectArtifacts",),
}

__all__: list[str] = [
    "ObjectArtifacts",
]
