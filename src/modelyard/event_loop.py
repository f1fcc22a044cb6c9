"""What modelyard takes from asyncio, which is slow to load and which many never need: it loads at the first use."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncio import CancelledError, Runner, ensure_future, get_running_loop, new_event_loop, shield, sleep, wait

__all__ = ["CancelledError", "Runner", "ensure_future", "get_running_loop", "new_event_loop", "shield", "sleep", "wait"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module("asyncio"), name))
