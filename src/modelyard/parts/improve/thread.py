"""A function that runs in a thread of its own, while the turns of a generator do what it asks for."""

import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")
Work = Callable[[], Generator[None, None, R]]


class _Left(BaseException):
    """Ends the thread: nobody does its work any more."""


class ServedThread(Generic[T]):
    """Runs `function` in a thread, which calls `ask` for work that is done by who iterates over `turns`."""

    def __init__(self, function: "Callable[[ServedThread[T]], T]") -> None:
        self._function = function
        self._asked = SimpleQueue[tuple[str, Any]]()
        self._answers = SimpleQueue[Any]()
        self._left = False

    def ask(self, work: "Work[R]") -> R:
        """Have work done, and return what it returns. What it raises is raised by `turns`, and ends this thread, but
        for `NotDone`, which is raised here."""
        if self._left:
            raise _Left
        self._asked.put(("work", work))
        found = self._answers.get()
        if isinstance(found, BaseException):
            raise found
        return found  # type: ignore[no-any-return]

    def turns(self) -> Generator[None, None, T]:
        """Do the work as it is asked for; return what the function returns, and raise what it raises."""
        thread = threading.Thread(target=self._run, name="modelyard-improve", daemon=True)
        thread.start()
        try:
            while True:
                kind, value = self._asked.get()
                if kind == "returned":
                    return value  # type: ignore[no-any-return]
                if kind == "raised":
                    raise value
                try:
                    found: Any = yield from value()
                except NotDone as error:
                    found = error
                self._answers.put(found)
        finally:
            self._left = True
            self._answers.put(_Left())
            thread.join()

    def _run(self) -> None:
        try:
            found: tuple[str, Any] = "returned", self._function(self)
        except _Left:
            return
        except BaseException as error:  # noqa: BLE001 - it is raised by `turns`
            found = "raised", error
        self._asked.put(found)


class NotDone(Exception):
    """Work that is not done, which the function is to handle."""
