"""Domain values made readable for people: as text here; as pages, plots and files for other programs by a part."""

from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingPart
from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.parts.doors.report import *  # noqa: F403
else:
    _load, __dir__ = lazy_exports(__name__, {})

    def __getattr__(name: str) -> Any:
        try:
            return _load(name)
        except AttributeError as missing:
            raise MissingPart(f"{missing}: the part reports draws pages, plots and files, and is not there") from None
