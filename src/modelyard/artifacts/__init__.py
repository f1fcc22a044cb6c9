"""Storage of checkpoint files and training data."""

from typing import TYPE_CHECKING

from modelyard.lazy import defer_modules, lazy_exports

if TYPE_CHECKING:
    from modelyard.artifacts.folder import FolderArtifacts
    from modelyard.artifacts.memory import MemoryArtifacts
    from modelyard.parts.doors import artifacts as _parts
    from modelyard.parts.doors.artifacts import *  # noqa: F403

    __all__ = ["FolderArtifacts", "MemoryArtifacts"]
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {"artifacts.folder": ("FolderArtifacts",), "artifacts.memory": ("MemoryArtifacts",)},
    )


defer_modules(__name__, "address", "folder", "memory")
