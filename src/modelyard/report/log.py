"""Log lines that stay lines, whatever a client has put into a message."""

import logging
from typing import Any

from modelyard.report.table import printable

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class PlainFormatter(logging.Formatter):
    """One line a record, and its traceback below; no character in either steers a terminal or forges another record."""

    def __init__(self) -> None:
        super().__init__(LINE)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the standard library's name
        """The line, with control characters as `?`."""
        return printable(super().formatMessage(record))

    def formatException(self, error: Any) -> str:  # noqa: N802 - the standard library's name
        """The traceback, indented, so that no line of it looks like a record."""
        return "\n".join("  " + printable(line) for line in super().formatException(error).splitlines())
