"""Output for terminals: log lines and progress bars."""

import importlib
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from modelyard.report.table import printable

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PlainFormatter(logging.Formatter):
    """One line per record, and its traceback below; no character in either controls a terminal or forges a record."""

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        """Return the line, with `?` for control characters."""
        return printable(super().formatMessage(record))

    def formatException(self, error: Any) -> str:  # noqa: N802 - the standard library's name
        """Return the traceback, indented, so that no line of it looks like a record."""
        return "\n".join("  " + printable(line) for line in super().formatException(error).splitlines())


Show = Callable[[int, int | None, Mapping[str, float]], None]
"""Shows the number of steps done, their total (None: not known yet), and numbers next to the bar."""


@contextmanager
def progress_bar(label: str, unit: str = "step") -> Iterator[Show]:
    """Show a bar that counts in this unit, with its rate, for the duration of the context.

    The first count is the start: the rate only covers what is done after it. A number is shown until it is replaced.
    Raises ImportError, naming what to install.
    """
    try:
        tqdm: Any = importlib.import_module("tqdm.auto")
    except ImportError:
        raise ImportError("a progress bar needs tqdm: pip install 'modelyard[progress]'") from None
    with tqdm.tqdm(desc=label, unit=unit, miniters=1) as bar:
        started, shown = False, dict[str, str]()

        def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
            nonlocal started
            bar.total = total
            shown.update((name, f"{value:.3g}") for name, value in numbers.items())
            bar.set_postfix(shown, refresh=False)
            if not started:
                started, bar.initial, bar.n, bar.last_print_n = True, done, done, done
                bar.refresh()
            bar.update(done - bar.n)

        yield show
