"""Waiting for what a thread or a process does of its own accord, where there is no event to wait for."""

import threading
import time
from collections.abc import Callable

LONGEST = 100.0
"""Seconds until a condition counts as broken: many, since a machine may be busy."""
BETWEEN_LOOKS = 0.001
SHARE, LONGEST_PAUSE = 0.02, 0.05
"""After such a share of the time waited it is looked for again: looking takes time of a processor, too."""


def until(condition: Callable[[], object], longest: float = LONGEST) -> None:
    """Return as soon as the condition holds. Raises AssertionError if it does not within so many seconds."""
    begun, pause = time.monotonic(), threading.Event()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < longest, f"did not happen within {longest:.0f} s"
        pause.wait(min(max(BETWEEN_LOOKS, SHARE * waited), LONGEST_PAUSE))
