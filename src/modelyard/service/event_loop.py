"""What the service takes from asyncio: a module of its own, because that is slow to load and many never need it."""

from asyncio import CancelledError, Runner, ensure_future, get_running_loop, new_event_loop, shield, sleep, wait

__all__ = ["CancelledError", "Runner", "ensure_future", "get_running_loop", "new_event_loop", "shield", "sleep", "wait"]
