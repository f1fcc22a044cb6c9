"""Waiting for what a thread or a process does of its own accord, where there is no event to wait for."""

import threading
import time
from collections.abc import Callable

LONGEST = 60.0
"""Seconds until a condition counts as broken: many, since a machine may be busy."""
BETWEEN_LOOKS = 0.001


def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds. Raises AssertionError if it does not within a minute."""
    deadline, pause = time.monotonic() + LONGEST, threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {LONGEST:.0f} s"
        pause.wait(BETWEEN_LOOKS)
