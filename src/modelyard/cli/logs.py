"""The log of the commands that run for long, on standard error: text for people, or JSON for collectors."""

import logging
from collections.abc import Callable
from typing import Any, TypeVar

import click

from modelyard.http.ended_requests import log as access_log
from modelyard.report.terminal import JsonFormatter, PlainFormatter

C = TypeVar("C", bound=Callable[..., Any])


def log_option(command: C) -> C:
    return click.option(
        "--log",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How each line of the log is written: for people, or as a JSON object.",
    )(command)


def log_to_terminal(form: str) -> None:
    """Log to standard error, with a line for each request, unless a factory has set logging up already."""
    if logging.getLogger().handlers:
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    handler.addFilter(unreported)
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    access_log.setLevel(logging.INFO)


def unreported(record: logging.LogRecord) -> bool:
    failure = record.exc_info[1] if record.exc_info else None
    return record.name.startswith("modelyard") or not getattr(failure, "reported", False)
