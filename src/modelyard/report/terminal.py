"""Output for terminals and collectors: log lines and progress bars."""

import importlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, TextIO

from modelyard.report.table import printable

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PlainFormatter(logging.Formatter):
    """One line per record, and its traceback below; no character in either controls a terminal or forges a record."""

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        return printable(super().formatMessage(record))

    def formatException(self, error: Any) -> str:  # noqa: N802 - the standard library's name
        """Return the traceback, indented, so that no line of it looks like a record."""
        return "\n".join("  " + printable(line) for line in super().formatException(error).splitlines())


class JsonFormatter(logging.Formatter):
    """One JSON object per record, in ASCII, so that no character of it breaks a line. It has `time` (ISO 8601, in UTC),
    `level`, `logger` and `message`, and `traceback` if there is one. A line of the access log has its parts instead of
    the message."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        known: dict[str, Any] = {"time": moment, "level": record.levelname, "logger": record.name}
        known |= getattr(record, "access", None) or {"message": record.getMessage()}
        traceback = self._traceback(record)
        if traceback:
            known["traceback"] = traceback
        return json.dumps(known, default=str)

    def _traceback(self, record: logging.LogRecord) -> str | None:
        if record.exc_text:
            return record.exc_text
        return self.formatException(record.exc_info) if record.exc_info else None


def log_to_terminal(form: str = "") -> None:
    """Log to standard error, as `text` or `json` with a line for each request, or warnings, unless it is set up."""
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    handler.addFilter(unreported)
    logging.basicConfig(level=logging.INFO if form else logging.WARNING, handlers=[handler])
    logging.getLogger("modelyard.access").setLevel(logging.INFO)


def unreported(record: logging.LogRecord) -> bool:
    failure = record.exc_info[1] if record.exc_info else None
    return record.name.startswith("modelyard") or not getattr(failure, "reported", False)


Show = Callable[[int, int | None, Mapping[str, float]], None]
"""Shows the number of steps done, their total (None: not known yet), and numbers next to the bar."""


@contextmanager
def progress_bar(label: str, unit: str = "step") -> Iterator[Show]:
    """Show a bar that counts in this unit, with its rate, for the duration of the context. The first count is the
    start: the rate only covers what is done after it. A number is shown until it is replaced. Without tqdm, show lines
    of text."""
    try:
        tqdm: Any = importlib.import_module("tqdm.auto")
    except ImportError:
        yield from _progress_lines(label, unit, sys.stderr)
        return
    with tqdm.tqdm(desc=label, unit=unit, miniters=1) as bar:
        started, shown = False, dict[str, str]()

        def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
            nonlocal started
            bar.total = total
            shown.update(_texts(numbers))
            bar.set_postfix(shown, refresh=False)
            if not started:
                started, bar.initial, bar.n, bar.last_print_n = True, done, done, done
                bar.refresh()
            bar.update(done - bar.n)

        yield show


LINES = 10
"""How many lines are written if there is no terminal. Without a total, one is written when the count doubles."""


def _progress_lines(label: str, unit: str, file: TextIO) -> Iterator[Show]:
    live, shown = file.isatty(), dict[str, str]()
    written = -1

    def show(done: int, total: int | None, numbers: Mapping[str, float]) -> None:
        nonlocal written
        shown.update(_texts(numbers))
        part = done * LINES // total if total else done.bit_length()
        if live or part > written:
            written = part
            of = "" if total is None else f" of {total}"
            known = "".join(f", {name} {text}" for name, text in shown.items())
            file.write(f"{_CLEARED if live else ''}{label}: {done}{of} {unit}s{known}{'' if live else chr(10)}")
            file.flush()

    yield show
    if live and written >= 0:
        file.write("\n")


_CLEARED = "\r\x1b[K"


def _texts(numbers: Mapping[str, float]) -> dict[str, str]:
    return {name: f"{value:.3g}" for name, value in numbers.items()}
