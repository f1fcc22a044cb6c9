"""Servers on loopback that answer as vLLM does, or as the servers of one format differ."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.parts.doors import testing_servers as _parts
    from modelyard.parts.doors.testing_servers import *  # noqa: F403

    __all__ = []
    __all__ += _parts.__all__
else:
    __getattr__, __dir__ = lazy_exports(__name__, {})
