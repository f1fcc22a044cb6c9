"""A sweep as people see it: a table, and parallel coordinates, one self-contained SVG without a script."""

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import attrs

from modelyard.parts.reports.html import Html, chip, drawing, facts, joined, table, tag, write_text
from modelyard.parts.reports.line_plot import COLOURS, SEPARATE_FILE, Scale
from modelyard.parts.sweeps.records import Sweep, number

if TYPE_CHECKING:
    from modelyard.parts.sweeps.results import BestTrial, SweepTable, SweepTrial

WIDTH, NARROW, HEIGHT, SIDE, TOP, BOTTOM = 640, 340, 280, 56, 74, 24
"""The narrow width is that of a small screen."""

SCORE_LABEL = "held-out loss"
_HALO = 'stroke="Canvas" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
"""Around values, which lines would strike through."""

_MANY_TIMES = 10
"""An axis is logarithmic if its largest value is so many times its smallest."""


def trial_table(trials: "SweepTable", model: Callable[[str], object] = str) -> Html:
    """Return the trials as a table, the best first, and what is to be said of some. `model` shows the name of a model,
    such as by a link."""
    headings, cells = trials.lines
    numbers = {"trial", "epochs", SCORE_LABEL, "loss", "step"}
    kinds = {"succeeded": "better", "failed": "worse"}
    shown: dict[str, Callable[[str], object]] = {"status": lambda one: chip(one, kinds.get(one, "")), "model": model}
    rows = [
        [shown[name](str(cell)) if name in shown else cell for name, cell in zip(headings, line, strict=True)]
        for line in cells
    ]
    of = {"status": "choice", "model": ""}
    kind = [(name, "number" if name in numbers else of.get(name, "choice")) for name in headings]
    return joined([table(kind, rows), *(tag("p", line) for line in trials.notes)])


@attrs.frozen
class ParallelPlot:
    """A line for each trial over an axis for each option and one for the score; the best trial is drawn last, wide."""

    title: str
    axes: Mapping[str, Sequence[Any]]
    trials: "Sequence[SweepTrial]"
    width: int = WIDTH

    @property
    def svg(self) -> str:
        """The plot as the text of an SVG file."""
        return "".join(self._drawn(SEPARATE_FILE))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that ends in .svg. Raises `InvalidInput` for another ending."""
        write_text(path, self.svg, ".svg")

    def _repr_html_(self) -> str:
        return "".join(self._drawn(""))

    def _drawn(self, style: str) -> Iterator[str]:
        measured = [one for one in self.trials if one.score is not None]
        scores = [one.score for one in measured if one.score is not None]
        axes = [*((name, PlotAxis.of(values)) for name, values in self.axes.items())]
        axes.append((SCORE_LABEL, PlotAxis.of(scores)))
        across = Scale(0, max(len(axes) - 1, 1), SIDE, self.width - SIDE)
        size = f'viewBox="0 0 {self.width} {TOP + HEIGHT + BOTTOM}" width="{self.width}"'
        yield f'<svg xmlns="http://www.w3.org/2000/svg" {size}'
        yield f' role="img" font-family="system-ui, sans-serif" font-size="12" fill="currentColor"{style}>'
        said = "; ".join(map(_said, measured)) or "no trial has a score yet"
        yield f"<title>{escape(self.title)}</title><desc>{escape(said)}</desc>"
        yield f'<text x="12" y="20" font-size="14" font-weight="600">{escape(self.title)}</text>'
        for place, one in reversed([*enumerate(measured)]):
            yield self._line(one, [axis for _, axis in axes], across, best=place == 0)
        for at, (name, axis) in enumerate(axes):
            yield from axis.drawn(name, across(at), raised=at % 2 == 1 and self.width == NARROW)
        yield "</svg>\n"

    def _line(self, trial: "SweepTrial", axes: Sequence["PlotAxis"], across: Scale, best: bool) -> str:
        values = [*(trial.options[name] for name in self.axes), trial.score]
        places = (axis.place(value) for axis, value in zip(axes, values, strict=True))
        points = " ".join(f"{across(at):.1f},{place:.1f}" for at, place in enumerate(places))
        colour, width, opacity = (COLOURS[1], 3, 1) if best else (COLOURS[0], 1.4, 0.55)
        style = f'stroke="{colour}" stroke-width="{width}" stroke-opacity="{opacity}" stroke-linejoin="round"'
        return f'<polyline points="{points}" fill="none" {style}><title>{escape(_said(trial))}</title></polyline>'


@attrs.frozen
class PlotAxis:
    """One axis: a scale for numbers, logarithmic if they span much, or else a place for each value."""

    values: Sequence[Any]
    numeric: bool
    log: bool

    @classmethod
    def of(cls, values: Sequence[Any]) -> "PlotAxis":
        """Choose how values are laid out."""
        numeric = bool(values) and all(type(value) in (int, float) for value in values)
        log = numeric and min(values) > 0 and max(values) >= _MANY_TIMES * min(values)
        return cls([_listed(value) for value in values], numeric, log)

    def place(self, value: Any) -> float:
        """Return how far down a value lies: the largest is at the top."""
        if not self.numeric:
            return self._scale(0, len(self.values) - 1)(self.values.index(_listed(value)))
        ends = self._at(min(self.values)), self._at(max(self.values))
        return self._scale(*ends)(self._at(value))

    def _at(self, value: float) -> float:
        return math.log10(value) if self.log else value

    @staticmethod
    def _scale(low: float, high: float) -> Scale:
        margin = 0.0 if high > low else 0.5
        return Scale(low - margin, high + margin, TOP + HEIGHT, TOP)

    def drawn(self, name: str, x: float, raised: bool) -> Iterator[str]:
        """Yield the line of the axis, its name and its values. A name that is raised leaves room for its neighbours."""
        yield f'<path d="M{x:.1f} {TOP}v{HEIGHT}" stroke="currentColor" stroke-opacity=".5"/>'
        above = TOP - (30 if raised else 14)
        yield f'<text x="{x:.1f}" y="{above}" text-anchor="middle" font-weight="600">{escape(name)}</text>'
        ends = [min(self.values), max(self.values)] if self.numeric and name == SCORE_LABEL else self.values
        for value in dict.fromkeys(map(_hashable, ends)):
            shown = number(value) if type(value) is float else str(value)
            y = f"{self.place(value):.1f}"
            yield f'<path d="M{x - 4:.1f} {y}h8" stroke="currentColor"/>'
            anchor, shift = ("end", -8) if name == SCORE_LABEL else ("start", 8)
            yield f'<text x="{x + shift:.1f}" y="{y}" dy=".35em" text-anchor="{anchor}" {_HALO}>{escape(shown)}</text>'


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _listed(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _said(trial: "SweepTrial") -> str:
    options = ", ".join(f"{name} {value}" for name, value in trial.options.items())
    return f"trial {trial.number}: {options}: {SCORE_LABEL} {number(trial.score)} ({trial.status})"


def sweep_content(
    record: Sweep,
    trials: "SweepTable",
    best: "BestTrial | None",
    model: Callable[[str], object] = str,
    data: Callable[[str], object] = str,
) -> Html:
    """Return the best trial, the plot, the table, and what was requested. `model` shows the name of a model, `data` the
    URL of a data set."""
    headline = tag("p", f"Best so far: {best}" if best else "No trial has a score yet.", kind="headline")
    wide, narrow = (ParallelPlot("Options and held-out loss", record.axes, trials, one) for one in (WIDTH, NARROW))
    figure = drawing(wide._repr_html_(), narrow._repr_html_())
    return joined([headline, figure, trial_table(trials, model), facts(facts_of(record, model, data))])


def facts_of(
    record: Sweep, model: Callable[[str], object], data: Callable[[str], object]
) -> Iterator[tuple[str, object]]:
    """Yield what was requested, in words."""
    plan = record.plan
    options = ", ".join(f"{name}={value}" for name, value in plan["options"].items()) or "the defaults"
    early = f"one of {plan['halving']} goes on" if plan["halving"] else "no trial is stopped early"
    yield "trained from", joined([model(plan["start"]), f", step {plan['start_step']}, by {plan['method'].upper()}"])
    yield "data", joined([data(plan["data"]), f" ({_rows(plan['rows'])})"])
    yield "held out", joined([data(plan["held_out"]), f" ({_rows(plan['held_out_rows'])})"])
    yield "the same for all", options
    yield "epochs", f"{' + '.join(map(str, record.rungs))}: {early}" if plan["halving"] else early
    yield "seed", plan["seed"]


def _rows(count: int) -> str:
    return f"{count:,} row{'' if count == 1 else 's'}"
