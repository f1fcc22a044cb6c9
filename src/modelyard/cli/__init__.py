"""The command line, a thin layer over the Python API."""

import click

from modelyard.cli import base_models, jobs, keys, models, serving, stores
from modelyard.cli.serving import GRACE_SECONDS
from modelyard.cli.terminal import Group

__all__ = ["GRACE_SECONDS", "main"]


@click.group(cls=Group)
@click.version_option(package_name="modelyard")
def main() -> None:
    """Use the model platform from the command line."""


for command in (
    serving.quickstart,
    serving.serve,
    serving.ui,
    serving.work,
    keys.keys,
    base_models.base_models,
    models.models,
    models.promote,
    models.rollback,
    jobs.jobs,
    models.usage,
    stores.migrate,
    stores.copy,
):
    main.add_command(command)
