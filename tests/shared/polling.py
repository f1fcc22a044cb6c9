"""Waiting for what a thread or a process does of its own accord, where there is no event to wait for."""

import threading
import time
from collections.abc import Callable

LONGEST = 100.0
"""Seconds until a condition counts as broken: many, since a machine may be busy."""
BETWEEN_LOOKS = 0.001


def until(condition: Callable[[], object], longest: float = LONGEST) -> None:
    """Return as soon as the condition holds. Raises AssertionError if it does not within so many seconds."""
    deadline, pause = time.monotonic() + longest, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {longest:.0f} s"
        pause.wait(BETWEEN_LOOKS)
