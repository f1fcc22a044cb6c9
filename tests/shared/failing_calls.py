"""A module in which a call fails, as tests ask it to: the first, the second ... or all from one on."""

import os
from collections.abc import Callable
from typing import Any

SYSTEM = frozenset({
    "fdatasync", "fstat", "fstatvfs", "fsync", "ftruncate", "link", "listdir", "mkdir", "open", "pread", "pwrite",
    "read", "readv", "rename", "replace", "scandir", "stat", "unlink", "write",
})  # fmt: skip
"""Functions of `os` that ask the system; closing is not among them."""


class Faults:
    """Raises `make()` in place of the call `at`, and if `lasting` of each that follows. Counts them in `asked`."""

    def __init__(self, make: Callable[[], BaseException], at: int, lasting: bool) -> None:
        self.asked, self._make, self._at, self._lasting = 0, make, at, lasting

    def ask(self) -> None:
        self.asked += 1
        if self.asked == self._at or (self._lasting and self.asked > self._at):
            raise self._make()

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def asking(*given: Any, **more: Any) -> Any:
            self.ask()
            return call(*given, **more)

        return asking


class FailingSystem:
    """The module `os`."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)
        return self._faults.wrap(found) if name in SYSTEM else found
