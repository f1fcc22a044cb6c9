"""The metrics of a training job as files: a page, rows, or events for TensorBoard."""

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from itertools import chain
from typing import Any

from modelyard.errors import MissingExtra
from modelyard.part import refuse_address
from modelyard.parts.reports.curves import curves
from modelyard.parts.reports.html import checked_ending, section
from modelyard.parts.reports.line_plot import Series
from modelyard.parts.reports.training_pages import write_page
from modelyard.parts.reports.training_plots import metric_order, metric_table
from modelyard.platform.training.metrics import MetricRow
from modelyard.report.evaluations.export import csv_lines, json_lines

_TENSORBOARD = (
    "tensorboard.compat.proto.event_pb2",
    "tensorboard.compat.proto.summary_pb2",
    "tensorboard.summary.writer.event_file_writer",
)


def save_metrics(rows: Sequence[MetricRow], path: str | os.PathLike[str]) -> None:
    """Write the numbers of a job to a file of the kind that its ending names: .html, .jsonl or .csv."""
    ending = checked_ending(path, ".html", ".jsonl", ".csv")
    names = metric_order({name for row in rows for name in row.values})
    if ending == ".html":
        drawn = {name: [_series(name, rows)] for name in names}
        write_page(path, "Metrics", section("Curves", curves(drawn, "step")), section("Numbers", metric_table(rows)))
        return
    lines = [_line(row) for row in rows]
    columns = ("step", "created_at", *names)
    table = chain([columns], ([line.get(name) for name in columns] for line in lines))
    with open(path, "wb") as file:
        file.writelines(json_lines(iter(lines)) if ending == ".jsonl" else csv_lines(table))


def _line(row: MetricRow) -> Mapping[str, Any]:
    return {"step": row.step, "created_at": row.created_at.isoformat(), **row.values}


def _series(name: str, rows: Sequence[MetricRow]) -> Series:
    return Series(name, [(float(row.step), row.values[name]) for row in rows if name in row.values])


def write_events(rows: Sequence[MetricRow], folder: str | os.PathLike[str]) -> None:
    """Write the numbers as scalars into a file of events for TensorBoard."""
    try:
        event, summary, files = map(import_module, _TENSORBOARD)
    except ImportError as missing:
        raise MissingExtra("tensorboard") from missing
    refuse_address(folder, "name a folder")
    writer = files.EventFileWriter(os.fspath(folder))
    for row in rows:
        values = [summary.Summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
        at = row.created_at.timestamp()
        writer.add_event(event.Event(wall_time=at, step=row.step, summary=summary.Summary(value=values)))
    writer.close()
