"""The command line, a thin layer over the Python API."""

import click

from modelyard.cli.lazy_group import LazyGroup

__all__ = ["main"]

SECTIONS = {
    "Start": {
        "quickstart": ("serving:quickstart", "Fine-tune, reinforce and evaluate a small model, in seconds."),
        "serve": ("serving:serve", "Serve the platform over HTTP until interrupted."),
        "ui": ("serving:ui", "Show the dashboard of a store on this machine, to read only."),
        "work": ("working:work", "Run queued jobs until interrupted."),
    },
    "Who may do what": {
        "keys": ("keys:keys", "Manage API keys."),
        "usage": ("models:usage", "Sum usage and its cost."),
    },
    "Models": {
        "base-models": ("base_models:base_models", "Manage base models in local folders."),
        "models": ("models:models", "List trainable models."),
        "promote": ("models:promote", "Point an alias at a checkpoint."),
        "rollback": ("models:rollback", "Point an alias back to where it pointed before."),
    },
    "Jobs": {
        "jobs": ("jobs:jobs", "Manage jobs: trainings and evaluations."),
    },
    "Store": {
        "migrate": ("stores:migrate", "Bring the tables of an older version to this one."),
        "copy": ("stores:copy", "Copy every record from one store to another."),
    },
}


@click.group(cls=LazyGroup)
@click.version_option(package_name="modelyard")
def main() -> None:
    """Use the model platform from the command line.

    The store is ./yard.db unless --store names another one; --factory MODULE:FUNCTION names code that returns your own
    platform in its place. Names stand for ids everywhere.
    """


LazyGroup.sections = SECTIONS
