"""What an operator does: usage and budgets, jobs that failed or wait, and a store that is to be kept in order."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from modelyard.part import Command, Part

if TYPE_CHECKING:
    from modelyard.http.route import Route
    from modelyard.parts.operating.retry import Retry


def _retry() -> "type[Retry]":
    from modelyard.parts.operating.retry import Retry as resource

    return resource


def _routes() -> "Sequence[Route]":
    from modelyard.parts.operating.routes import ROUTES

    return ROUTES


_ASK, _MODELS = "modelyard.parts.operating.ask_commands", "modelyard.parts.operating.model_commands"
_STORES, _UPKEEP = "modelyard.parts.operating.store_commands", "modelyard.parts.operating.upkeep_commands"
_USAGE, _JOBS = "modelyard.parts.operating.usage_commands", "modelyard.parts.operating.job_commands"
_RUNS = "modelyard.parts.operating.run_commands"
_WHO = "Who may do what"

PART = Part(
    "operating",
    resources={"jobs.retry": _retry},
    moved={"retry": "jobs.retry"},
    routes={"operations": _routes},
    commands={
        "models": Command("Models", f"{_MODELS}:models", "List trainable models, or look at one."),
        "checkpoints": Command("Models", f"{_MODELS}:checkpoints", "List the checkpoints of MODEL by step."),
        "aliases": Command("Models", f"{_MODELS}:aliases", "List the aliases of MODEL, and where each pointed before."),
        "promote": Command(
            "Models",
            f"{_MODELS}:promote",
            "Point an alias of MODEL (an id, or [entity/]project/name) at the checkpoint of STEP.",
        ),
        "rollback": Command(
            "Models", f"{_MODELS}:rollback", "Point an alias of MODEL back to where it pointed before."
        ),
        "keys": Command(_WHO, "modelyard.parts.operating.key_commands:keys", "Manage API keys."),
        "train": Command(
            "Work",
            "modelyard.parts.operating.train_commands:train",
            "Train MODEL ([entity/]project/name, or an id) on DATA, a file or the URL of a dataset.",
        ),
        "usage": Command(
            _WHO,
            f"{_USAGE}:usage",
            "Sum usage and its cost, or list the slowest answers that servers gave within 31 days.",
        ),
        "budget": Command(_WHO, f"{_USAGE}:budget", "Bound what entities, keys and projects may spend."),
        "jobs logs": Command("", f"{_JOBS}:logs", "Print what has happened to JOB."),
        "jobs watch": Command("", "modelyard.parts.operating.watch_command:watch", "Follow JOB until it ends."),
        "jobs pause": Command("", f"{_JOBS}:pause", "Stop JOB at its next step, until it is resumed."),
        "jobs resume": Command("", f"{_JOBS}:resume", "Continue JOB, which is paused or was ended by a budget."),
        "runs report": Command(
            "", f"{_RUNS}:report_run", "Write the report of RUN to FILE: .html, .md, .xml (JUnit), .jsonl or .csv."
        ),
        "runs export": Command("", f"{_RUNS}:export_run", "Write every row of RUN to standard output."),
        "ask": Command("Start", f"{_ASK}:ask", "Ask MODEL for one completion, shown as it is made."),
        "catalogue": Command(
            "Models",
            f"{_ASK}:catalogue",
            "List the models that can be asked, with their prices in USD for a million tokens.",
        ),
        "doctor": Command(
            "Store",
            f"{_UPKEEP}:doctor",
            "Try every part of the platform; exit status 1 if one fails, or if jobs wait and no worker is alive.",
        ),
        "sweep": Command(
            "Store",
            f"{_UPKEEP}:sweep",
            "Remove files that no record names, which a crash may leave, and name records that have lost their files.",
        ),
        "migrate": Command("Store", f"{_STORES}:migrate", "Bring the tables of an older version to this one."),
        "copy": Command(
            "Store",
            f"{_STORES}:copy",
            "Copy every record from SOURCE to TARGET, each a file or the address of a database, and compare the two.",
        ),
        "jobs retry": Command("", f"{_JOBS}:retry", "Try JOB again, which has failed or was cancelled."),
    },
)
