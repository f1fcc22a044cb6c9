"""Commands that take evaluation runs elsewhere."""

import sys
from pathlib import Path
from typing import Any

import click

from modelyard.cli.names import run_named
from modelyard.cli.terminal import PlaceType, StoreName, json_option, opened, store_option


@click.command()
@store_option
@click.argument("run")
@click.argument("file", type=PlaceType())
def report_run(store: StoreName, run: str, file: Path) -> object:
    """Write the report of RUN to FILE: .html, .md, .xml (JUnit), .jsonl or .csv."""
    with opened(store) as platform:
        platform.evaluations.report(run_named(platform, run)).save(file)
    click.echo(f"wrote {file}")
    return {"file": file}


@click.command()
@store_option
@click.argument("run")
@click.option("--format", "form", type=click.Choice(["jsonl", "csv"]), default="jsonl", show_default=True)
@json_option
def export_run(store: StoreName, run: str, form: Any, as_json: bool) -> None:
    """Write every row of RUN to standard output."""
    if as_json and form != "jsonl":
        raise click.UsageError("--json is --format jsonl")
    with opened(store) as platform:
        for piece in platform.evaluations.export(run_named(platform, run), form):
            sys.stdout.buffer.write(piece)
