"""What a command says to a machine, with `--json`: what it returns, as one JSON document."""

import json
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from datetime import datetime
from decimal import Decimal
from functools import partial
from typing import Any

import attrs
import click

JSON_HELP = "Print JSON for machines."
_OUT = "modelyard.json"


def with_json(command: click.Command) -> None:
    """Give a command the option `--json` that has none: then what it returns or tells is all of its standard output."""
    named = {parameter.name for parameter in command.params}
    if command.callback is not None and not isinstance(command, click.Group) and "as_json" not in named:
        command.params.append(click.Option(["--json", "as_json"], is_flag=True, help=JSON_HELP))
        command.callback = partial(_answered, command.callback)


def _answered(callback: Callable[..., Any], as_json: bool, **given: Any) -> None:
    if not as_json:
        callback(**given)
        return
    click.get_current_context().meta[_OUT] = sys.stdout
    with redirect_stdout(sys.stderr):
        tell(callback(**given))


def tell(value: Any) -> None:
    """Print a value for a machine, on a line, if a command has no option `--json` of its own, and was given it. None is
    nothing to say."""
    out = click.get_current_context().meta.get(_OUT)
    if out is not None and value is not None:
        click.echo(json_text(value), file=out)


def json_text(value: Any) -> str:
    return json.dumps(value, default=json_form)


def json_form(value: Any) -> Any:
    if attrs.has(type(value)):
        return {field.name: getattr(value, field.name) for field in attrs.fields(type(value))}
    if hasattr(value, "keys"):
        return dict(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, Decimal):
        return f"{value or Decimal(0):f}"
    return value.isoformat() if isinstance(value, datetime) else str(value)


def error_text(error: click.ClickException) -> str:
    """Return an error as a JSON object: its message, the exit status, and the code of an error of modelyard."""
    code = getattr(error.__cause__, "code", None)
    found = {"message": error.format_message(), "status": error.exit_code}
    return json_text({"error": found if code is None else {**found, "code": code}})
