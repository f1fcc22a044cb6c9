"""The command line, a thin layer over the Python API."""

import click

from modelyard.cli.lazy_group import LazyGroup
from modelyard.lazy import defer_modules

__all__ = ["main"]

defer_modules(__name__, "uvicorn_server")

SECTIONS = {
    "Start": {
        "quickstart": ("cli.serving:quickstart", "Fine-tune, reinforce and evaluate a small model, in seconds."),
        "ask": ("cli.asking:ask", "Ask a model for one completion, shown as it is made."),
        "serve": ("cli.serving:serve", "Serve the platform over HTTP until interrupted."),
        "ui": ("cli.serving:ui", "Show the dashboard of a store on this machine, to read only."),
        "work": ("cli.working:work", "Run queued jobs until interrupted."),
    },
    "Models": {
        "catalogue": ("cli.asking:catalogue", "List the models that can be asked, and their prices."),
        "models": ("cli.models:models", "List trainable models, or look at one."),
        "checkpoints": ("cli.models:checkpoints", "List the checkpoints of a model."),
        "aliases": ("cli.models:aliases", "List the aliases of a model."),
        "promote": ("cli.models:promote", "Point an alias at a checkpoint."),
        "rollback": ("cli.models:rollback", "Point an alias back to where it pointed before."),
        "base-models": ("parts.torch.commands:base_models", "Manage base models in local folders."),
    },
    "Work": {
        "train": ("cli.training:train", "Train a model: sft, rl, dpo, import."),
        "collect": ("parts.traffic.commands:collect", "Collect stored answers into training data, and train on them."),
        "evaluate": ("cli.evaluations:evaluate", "Evaluate models, and print their scores."),
        "runs": ("cli.evaluations:runs", "List, show, compare, report and export evaluation runs."),
        "annotate": (
            "parts.annotations.commands:annotate",
            "Tag a job, a run, a model or a checkpoint, or write a note on it.",
        ),
        "jobs": ("cli.jobs:jobs", "Manage jobs: trainings and evaluations."),
    },
    "Who may do what": {
        "keys": ("cli.keys:keys", "Manage API keys."),
        "usage": ("cli.usage:usage", "Sum usage and its cost."),
        "budget": ("cli.usage:budget", "Bound what entities and keys may spend."),
    },
    "Store": {
        "doctor": ("cli.upkeep:doctor", "Try every part of the platform."),
        "backup": ("cli.upkeep:backup", "Write a consistent copy while others work on."),
        "restore": ("cli.upkeep:restore", "Copy a backup back, and check it."),
        "keep": ("cli.upkeep:keep", "Remove what is older than so many days."),
        "sweep": ("cli.upkeep:sweep", "Remove files that no record names."),
        "migrate": ("cli.stores:migrate", "Bring the tables of an older version to this one."),
        "copy": ("cli.stores:copy", "Copy every record from one store to another."),
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
