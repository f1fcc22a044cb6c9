"""What your implementations of a protocol are tested with: a contract for each, and what its tests are made of."""

from typing import TYPE_CHECKING

from modelyard.lazy import lazy_exports
from modelyard.testing import naming_extra

if TYPE_CHECKING:
    from modelyard.parts.doors import testing_contracts as _parts
    from modelyard.parts.doors.testing_contracts import *  # noqa: F403
    from modelyard.testing.run_twice_store import RunTwiceStore

    __all__ = ["RunTwiceStore"]
    __all__ += _parts.__all__
else:
    _load, __dir__ = lazy_exports(__name__, {"testing.run_twice_store": ("RunTwiceStore",)})
    __getattr__ = naming_extra(_load)
