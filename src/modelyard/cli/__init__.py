"""The command line, a thin layer over the Python API."""

import click

from modelyard.cli.lazy_group import LazyGroup
from modelyard.lazy import defer_modules

__all__ = ["main"]

defer_modules(__name__, "uvicorn_server")

SECTIONS = {
    "Start": {
        "quickstart": ("serving:quickstart", "Fine-tune, reinforce and evaluate a small model, in seconds."),
        "ask": ("asking:ask", "Ask a model for one completion, shown as it is made."),
        "serve": ("serving:serve", "Serve the platform over HTTP until interrupted."),
        "ui": ("serving:ui", "Show the dashboard of a store on this machine, to read only."),
        "work": ("working:work", "Run queued jobs until interrupted."),
    },
    "Models": {
        "catalogue": ("asking:catalogue", "List the models that can be asked, and their prices."),
        "models": ("models:models", "List trainable models, or look at one."),
        "checkpoints": ("models:checkpoints", "List the checkpoints of a model."),
        "aliases": ("models:aliases", "List the aliases of a model."),
        "promote": ("models:promote", "Point an alias at a checkpoint."),
        "rollback": ("models:rollback", "Point an alias back to where it pointed before."),
        "base-models": ("base_models:base_models", "Manage base models in local folders."),
    },
    "Work": {
        "train": ("training:train", "Train a model: sft, rl, dpo, import."),
        "collect": ("traffic:collect", "Collect stored answers into training data, and train on them."),
        "evaluate": ("evaluations:evaluate", "Evaluate models, and print their scores."),
        "runs": ("evaluations:runs", "List, show, compare, report and export evaluation runs."),
        "annotate": ("annotations:annotate", "Tag a job, a run, a model or a checkpoint, or write a note on it."),
        "jobs": ("jobs:jobs", "Manage jobs: trainings and evaluations."),
    },
    "Who may do what": {
        "keys": ("keys:keys", "Manage API keys."),
        "usage": ("usage:usage", "Sum usage and its cost."),
        "budget": ("usage:budget", "Bound what entities and keys may spend."),
    },
    "Store": {
        "doctor": ("upkeep:doctor", "Try every part of the platform."),
        "backup": ("upkeep:backup", "Write a consistent copy while others work on."),
        "restore": ("upkeep:restore", "Copy a backup back, and check it."),
        "keep": ("upkeep:keep", "Remove what is older than so many days."),
        "sweep": ("upkeep:sweep", "Remove files that no record names."),
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
