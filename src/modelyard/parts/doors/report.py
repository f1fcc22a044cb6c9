"""What the part `reports` draws, as `modelyard.report` has it."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modelyard.parts.comparisons.slices import run_slices
    from modelyard.parts.reports.clusters import cluster_notes
    from modelyard.parts.reports.comparison_files import (
        comparison_html,
        comparison_junit,
        comparison_markdown,
        comparison_notebook,
    )
    from modelyard.parts.reports.frames import data_frame
    from modelyard.parts.reports.line_plot import Plot
    from modelyard.parts.reports.metric_files import save_metrics, write_events
    from modelyard.parts.reports.operations import operations_page
    from modelyard.parts.reports.records import records_table, rows_table
    from modelyard.parts.reports.run_files import run_html, run_junit, run_markdown, run_notebook
    from modelyard.parts.reports.training_pages import job_notebook, save_job, save_model
    from modelyard.parts.reports.training_plots import job_plot, metric_table, model_plot
    from modelyard.parts.reports.values import value_notebook

HOMES = {
    "parts.reports.clusters": ("cluster_notes",),
    "parts.comparisons.slices": ("run_slices",),
    "parts.reports.comparison_files": (
        "comparison_html",
        "comparison_junit",
        "comparison_markdown",
        "comparison_notebook",
    ),
    "parts.reports.frames": ("data_frame",),
    "parts.reports.line_plot": ("Plot",),
    "parts.reports.metric_files": ("save_metrics", "write_events"),
    "parts.reports.operations": ("operations_page",),
    "parts.reports.records": ("records_table", "rows_table"),
    "parts.reports.run_files": (
        "run_html",
        "run_junit",
        "run_markdown",
        "run_notebook",
    ),
    "parts.reports.training_pages": ("job_notebook", "save_job", "save_model"),
    "parts.reports.training_plots": (
        "job_plot",
        "metric_table",
        "model_plot",
    ),
    "parts.reports.values": ("value_notebook",),
}

__all__: list[str] = [
    "Plot",
    "cluster_notes",
    "comparison_html",
    "comparison_junit",
    "comparison_markdown",
    "comparison_notebook",
    "data_frame",
    "job_notebook",
    "job_plot",
    "metric_table",
    "model_plot",
    "operations_page",
    "records_table",
    "rows_table",
    "run_html",
    "run_junit",
    "run_markdown",
    "run_notebook",
    "run_slices",
    "save_job",
    "save_metrics",
    "save_model",
    "value_notebook",
    "write_events",
]
