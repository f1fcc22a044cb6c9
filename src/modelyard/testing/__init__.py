"""The promises of modelyard, runnable: contracts for your implementations, doubles and strategies for your own tests,
and clients wired to a platform in process."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from modelyard.errors import MissingExtra
from modelyard.lazy import lazy_exports


def naming_extra(load: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return what loads a public name, and says which extra it needs when hypothesis is missing."""

    def load_or_name(name: str) -> Any:
        try:
            return load(name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "hypothesis":
                raise
            raise MissingExtra("hypothesis", "contracts") from error

    return load_or_name


if TYPE_CHECKING:
    from modelyard.parts.doors import testing as _parts
    from modelyard.parts.doors.testing import *  # noqa: F403
    from modelyard.testing import contracts, servers
    from modelyard.testing.clock import ManualClock
    from modelyard.testing.run_twice_store import RunTwiceStore

    __all__ = ["ManualClock", "RunTwiceStore", "contracts", "servers"]
    __all__ += _parts.__all__
else:
    _load, __dir__ = lazy_exports(
        __name__,
        {"testing.clock": ("ManualClock",), "testing.contracts": ("contracts",), "testing.servers": ("servers",)},
        {"testing.run_twice_store": ("RunTwiceStore",)},
    )
    __getattr__ = naming_extra(_load)
