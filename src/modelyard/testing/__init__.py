"""The promises of modelyard, runnable: contracts for your implementations, doubles and strategies for your own tests,
and clients wired to a platform in process."""

from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingExtra
from modelyard.lazy import lazy_exports

if TYPE_CHECKING:
    from modelyard.parts.doors import testing as _parts
    from modelyard.parts.doors.testing import *  # noqa: F403
    from modelyard.testing.clock import ManualClock
    from modelyard.testing.run_twice_store import RunTwiceStore

    __all__ = [
        "ManualClock",
        "RunTwiceStore",
    ]
    __all__ += _parts.__all__
else:
    _load, __dir__ = lazy_exports(
        __name__,
        {
            "testing.clock": ("ManualClock",),
            "testing.run_twice_store": ("RunTwiceStore",),
        },
    )

    def __getattr__(name: str) -> Any:
        try:
            return _load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "hypothesis":
                raise
            raise MissingExtra("hypothesis", "contracts") from error
