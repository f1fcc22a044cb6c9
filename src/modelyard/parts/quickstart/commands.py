"""The command that runs the quickstart."""

from pathlib import Path

import click

from modelyard.parts.quickstart import story


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=Path("quickstart"))
def quickstart(folder: Path) -> None:
    """Fine-tune, reinforce and evaluate a small model on real data, in seconds, in FOLDER (default: ./quickstart)."""
    story.run(folder)
