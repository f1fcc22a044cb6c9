"""What modelyard promises, runnable: contracts for what you implement, doubles and strategies for your own tests, and
clients wired to a platform in process.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from modelyard.deferred import defer_modules

if TYPE_CHECKING:
    from modelyard.testing.cassette import use_cassette
    from modelyard.testing.loopback import LeftLoopback, LoopbackGuard
    from modelyard.testing.openai import async_openai_client, openai_client
    from modelyard.testing.server import served

__all__ = ["LeftLoopback", "LoopbackGuard", "async_openai_client", "openai_client", "served", "use_cassette"]

_HOMES = {
    "LeftLoopback": "loopback",
    "LoopbackGuard": "loopback",
    "async_openai_client": "openai",
    "openai_client": "openai",
    "served": "server",
    "use_cassette": "cassette",
}
"""Where the names of this package live: each module is loaded when the first of its names is asked for."""

defer_modules(__name__, "httpx", "httpx2")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(f"{__name__}.{_HOMES[name]}"), name))
