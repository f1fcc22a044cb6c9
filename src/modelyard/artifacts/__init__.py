"""Storage of checkpoint files and training data."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.artifacts.folder import FolderArtifacts
    from modelyard.artifacts.memory import MemoryArtifacts
    from modelyard.parts.objects.store import ObjectArtifacts
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "artifacts.folder": ("FolderArtifacts",),
            "artifacts.memory": ("MemoryArtifacts",),
            "parts.objects.store": ("ObjectArtifacts",),
        },
    )

__all__ = [
    "FolderArtifacts",
    "MemoryArtifacts",
    "ObjectArtifacts",
]

defer_modules(__name__, "address", "folder", "memory")
