"""Pages of a training job and of a model, each one file that needs nothing else."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.domain.models import Checkpoint, Model
from modelyard.domain.promotion import Alias
from modelyard.domain.training import TrainingJob
from modelyard.parts.reports.curves import curves
from modelyard.parts.reports.html import Html, chip, facts, fragment, joined, long_table, page, section, tag, write_text
from modelyard.parts.reports.line_plot import Plot, Series, short_number
from modelyard.parts.reports.training_plots import job_plot, metric_order, metric_table
from modelyard.platform.paging import get_or_none, iter_index
from modelyard.platform.runtime import Runtime
from modelyard.platform.training.metrics import metric_rows
from modelyard.protocols import Snapshot

MOST_ROWS = 200
"""About how many steps of a job its page has as numbers."""

_STATUS = {"succeeded": "better", "failed": "worse"}
Path = str | os.PathLike[str]


def save_job(runtime: Runtime, job: TrainingJob, path: Path) -> None:
    """Write the page of a training job: its options, its curves and its numbers."""
    name = _trained(runtime, job)
    rows = metric_rows(runtime, job.id, MOST_ROWS)
    drawing = tag("div", Html(job_plot(runtime, job, "Metrics")._repr_html_())) if rows else ""
    write_page(
        path,
        f"{job.kind.upper()} of {name}",
        _facts(job, name),
        section("Curves", drawing),
        section("Options", facts(_plain(job.config))),
        section("Numbers", metric_table(rows) if rows else ""),
    )


def job_notebook(runtime: Runtime, job: TrainingJob, plot: Plot) -> str:
    """Return the plot of a training job, or where it stands as long as it has nothing to plot."""
    if metric_rows(runtime, job.id, 2):
        return plot._repr_html_()
    return fragment(_facts(job, _trained(runtime, job)))


def _trained(runtime: Runtime, job: TrainingJob) -> str:
    model = runtime.store.read(lambda snapshot: get_or_none(snapshot, Model, job.model_id))
    return job.model_id if model is None else _name(model)


def _facts(job: TrainingJob, name: str) -> Html:
    known = [
        ("status", chip(job.status, _STATUS.get(job.status, ""))),
        ("model", name if job.step is None else f"{name}, step {job.step}"),
        ("created", _time(job.created_at)),
        ("ended", _time(job.training_end)),
        *([("error", job.error_message)] if job.error_message else []),
        *([("stopped by", job.stop_reason)] if job.stop_reason and not job.error_message else []),
        ("id", job.id),
    ]
    return facts(known)


def save_model(runtime: Runtime, model: Model, path: Path) -> None:
    """Write the page of a model: its checkpoints, their metrics and its aliases."""
    steps, aliases = runtime.store.read(lambda snapshot: _parts_of(snapshot, model))
    names = metric_order({name for one in steps for name in one.metrics})
    lines = [_line(one, names, aliases) for one in reversed(steps)]
    columns = [("step", "number"), ("aliases", ""), *((name, "number") for name in names), ("created", "")]
    write_page(
        path,
        _name(model),
        facts([("base model", model.base_model), ("created", _time(model.created_at)), ("id", model.id)]),
        section("Metrics by checkpoint", curves({name: [_series(name, steps)] for name in names}, "checkpoint")),
        section("Checkpoints", long_table(columns, lines)),
    )


def _parts_of(snapshot: Snapshot, model: Model) -> tuple[list[Checkpoint], list[Alias]]:
    aliases = snapshot.page(Alias, "by_model", model.id, limit=MOST_ROWS)
    return [*iter_index(snapshot, Checkpoint, "by_model", model.id)], list(aliases)


def _line(one: Checkpoint, names: Sequence[str], aliases: Sequence[Alias]) -> Sequence[object]:
    metrics = [short_number(one.metrics[name]) if name in one.metrics else "" for name in names]
    pointing = joined(chip(alias.name) for alias in aliases if alias.step == one.step)
    return one.step, pointing, *metrics, _time(one.created_at)


def _series(name: str, steps: Sequence[Checkpoint]) -> Series:
    return Series(name, [(float(one.step), one.metrics[name]) for one in steps if name in one.metrics])


def _plain(config: Mapping[str, Any]) -> list[tuple[str, object]]:
    return [(name, "none" if value is None else value) for name, value in config.items()]


def _name(model: Model) -> str:
    return f"{model.entity}/{model.project}/{model.name}"


def _time(at: Any) -> str:
    return "not yet" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def write_page(path: Path, title: str, *content: object) -> None:
    write_text(path, page(title, tag("h1", title), *content))
