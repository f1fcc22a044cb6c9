"""The metrics of a page as curves: the one that is looked at first is large, the others are folded."""

from collections.abc import Iterator, Mapping, Sequence

from modelyard.parts.reports.html import Html, facts, folded, joined, plots
from modelyard.parts.reports.line_plot import NOISE, SMALL, Panel, Plot, Series, figure, round_number
from modelyard.parts.reports.training_plots import metric_order

TOGETHER = {"reward": "held_out", "loss": "valid_loss", "train_loss": "valid_loss"}
"""Metrics that are drawn in one plot."""

Lines = Mapping[str, Sequence[Series]]
"""The lines of each metric: one for each job or model."""


def curves(metrics: Lines, x_label: str) -> Html:
    """Draw the metrics that change, and name the values of those that do not."""
    drawn = [name for name in metric_order(metrics) if any(map(_changes, metrics[name]))]
    together = [name for first in drawn[:1] for name in (first, TOGETHER.get(first, "")) if name in metrics]
    steady = [name for name in metric_order(metrics) if name not in drawn and name not in together]
    parts: list[object] = []
    if drawn:
        parts.append(_large(metrics, together, x_label))
        others = [name for name in drawn if name not in together]
        small = [Plot(name, x_label, (Panel("", tuple(metrics[name])),), size=SMALL) for name in others]
        words = "1 more curve" if len(small) == 1 else f"{len(small)} more curves"
        shown = [plot._repr_html_() for plot in small]
        parts.append(folded(words, plots(shown)) if shown else "")
    parts.append(facts((name, _said(metrics[name], x_label)) for name in steady) if steady else "")
    return joined(parts)


def _changes(series: Series) -> bool:
    values = [value for _, value in series.points]
    most = max(map(abs, values), default=0.0)
    return most > NOISE and max(values) - min(values) > NOISE * most


def _large(metrics: Lines, names: Sequence[str], x_label: str) -> Html:
    lines = tuple(
        Series(_label(name, series.name, len(names)), series.points) for name in names for series in metrics[name]
    )
    plot = Plot(" and ".join(names), x_label, (Panel("", lines),))
    return figure(plot)


def _label(metric: str, line: str, metrics: int) -> str:
    return line if metrics == 1 else metric if line in ("", metric) else f"{line}: {metric}"


def _said(lines: Sequence[Series], x_label: str) -> str:
    return "; ".join(_values(lines, x_label))


def _values(lines: Sequence[Series], x_label: str) -> Iterator[str]:
    for series in lines:
        if series.points:
            value = series.points[-1][1]
            shown = round_number(0.0 if abs(value) <= NOISE else float(f"{value:.4g}"))
            named = f"{series.name} {shown}" if len(lines) > 1 else shown
            yield named if len(series.points) == 1 else f"{named} at each of {len(series.points):,} {x_label}s"
