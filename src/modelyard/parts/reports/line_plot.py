"""Numbers over steps as a line plot: one self-contained SVG text, for a file, a page or a notebook."""

import math
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate, groupby

import attrs

from modelyard.domain.evaluation.statistics import round_step
from modelyard.parts.reports.html import Html, drawing, write_text

WIDTH, PANEL, GAP = 640, 200, 44
SMALL = (340, 130)
"""The width, and the height of a panel, of a plot among others: it is shown as large as it is drawn."""

NARROW = (340, 180)
"""Of a large plot on a narrow screen."""

TITLE_SIZE, DIGIT_WIDTH = 14, 7.8
"""In pixels."""

AMOUNT_DIGITS = 8
"""How many digits wide the label of an amount may be, with the gap to the next."""

POINTED_AT = 200
"""How many points of a line at most say their value under the pointer."""

LEFT, RIGHT, TOP, BOTTOM = 64, 16, 36, 40
# After Okabe and Ito: colours that colour-blind readers can distinguish, visible on both white and black.
COLOURS = ("#2480C4", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# A separate file follows the reader's preference; in a page the plot takes the colour of the surrounding text.
SEPARATE_FILE = ' style="color-scheme: light dark; color: CanvasText; background: Canvas"'

LARGEST = 1e150
"""Larger values are drawn at the border, so that no sum overflows."""

Point = tuple[float, float]


@attrs.frozen
class Series:
    """A line: its name and its points (x, y), finite and in the order of x."""

    name: str
    points: Sequence[Point]

    @classmethod
    def of(cls, name: str, points: Iterable[Point]) -> "Series":
        """Create a line through any number of points, in bounded memory: see `thinned`."""
        return cls(name, thinned(points))


@attrs.frozen
class Panel:
    """Lines that share a vertical axis, and its label."""

    label: str
    series: tuple[Series, ...]


@attrs.frozen
class Plot:
    """Panels one above the other over a common horizontal axis. `marks` are positions at which every line is broken;
    `size` is the width of the plot and the height of a panel.

    >>> plot = Plot("Training", "step", (Panel("loss", (Series("loss", [(1, 2.0), (2, 1.5)]),)),))
    >>> plot.svg.startswith("<svg ")
    True
    """

    title: str
    x_label: str
    panels: tuple[Panel, ...]
    marks: tuple[float, ...] = ()
    size: tuple[int, int] = WIDTH, PANEL

    @property
    def svg(self) -> str:
        """The plot as the text of an SVG file."""
        return "".join(_drawn(self, SEPARATE_FILE))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file that ends in .svg. Raises `InvalidInput` for another ending."""
        write_text(path, self.svg, ".svg")

    def _repr_html_(self) -> str:
        return "".join(_drawn(self, ""))


def figure(plot: Plot) -> Html:
    """Return a plot as a page shows it, narrower on a narrow screen."""
    return drawing(plot._repr_html_(), attrs.evolve(plot, size=NARROW)._repr_html_())


# ---- millions of points --------------------------------------------------------------------------------------------


def thinned(points: Iterable[Point], stretches: int = WIDTH) -> list[Point]:
    """Return points that look the same when they are drawn: at most 4 for each of up to twice `stretches` stretches.
    The first, the lowest, the highest and the last point of a stretch are kept, so no spike is lost. Points are read
    one by one, and stretches of equal length are merged in pairs if there are too many."""
    kept: list[list[Point]] = []
    size = 1
    for at, point in enumerate(points):
        if at % size == 0:
            if len(kept) == 2 * stretches:
                kept = [_extremes(kept[first] + kept[first + 1]) for first in range(0, len(kept), 2)]
                size *= 2
            kept.append([point])
        else:
            kept[-1] = _extremes([*kept[-1], point])
    return [point for stretch in kept for point in stretch]


def _extremes(stretch: Sequence[Point]) -> list[Point]:
    low, high = min(stretch, key=_height), max(stretch, key=_height)
    return sorted({stretch[0], low, high, stretch[-1]})


def _height(point: Point) -> float:
    return point[1]


# ---- scales ------------------------------------------------------------------------------------------------------


@attrs.frozen
class Scale:
    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        inside = min(max(value, self.low), self.high)
        return self.start + (self.end - self.start) * (inside - self.low) / (self.high - self.low)

    def ticks(self, most: int, apart: float = 0.0) -> list[float]:
        step = round_step(max((self.high - self.low) / most, apart))
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first
        return [(first + at) * step for at in range(count + 1)]


def _bounds(values: Sequence[float]) -> tuple[float, float]:
    ends = (min(values), max(values)) if values else (0.0, 1.0)
    low, high = (min(max(end, -LARGEST), LARGEST) for end in ends)
    if high - low > max(1e-9 * max(abs(low), abs(high)), 1 / LARGEST):
        return low, high
    margin = abs(low) / 2 or 0.5
    return low - margin, high + margin


def _padded(low: float, high: float) -> tuple[float, float]:
    margin = (high - low) / 10
    return low - margin, high + margin


# ---- drawing -----------------------------------------------------------------------------------------------------


def _drawn(plot: Plot, style: str) -> Iterator[str]:
    width, panel_height = plot.size
    height = TOP + len(plot.panels) * (panel_height + GAP) - GAP + BOTTOM
    across = Scale(*_bounds(_ends(plot)), LEFT, width - RIGHT)
    yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img"'
    yield f' font-family="system-ui, sans-serif" font-size="12" fill="currentColor"{style}>'
    yield f"<title>{escape(plot.title)}</title><desc>{escape(_description(plot))}</desc>"
    last = _last_value(plot)
    yield f'<text x="{LEFT}" y="16" font-size="14" font-weight="600">'
    yield f"{escape(fitted(plot.title, width - RIGHT - LEFT - room_of(last)))}</text>"
    yield f'<text x="{width - RIGHT}" y="16" font-size="14" text-anchor="end">{last}</text>' if last else ""
    for at, panel in enumerate(plot.panels):
        yield from _panel(panel, across, TOP + at * (panel_height + GAP), plot)
    yield f'<text x="{width - RIGHT}" y="{height - 6}" text-anchor="end" opacity=".7">{escape(plot.x_label)}</text>'
    yield "</svg>\n"


def _last_value(plot: Plot) -> str:
    if len(plot.panels) == 1 and len(plot.panels[0].series) == 1 and plot.panels[0].series[0].points:
        return f"{plot.panels[0].series[0].points[-1][1]:.4g}"
    return ""


def room_of(text: str, size: float = TITLE_SIZE) -> float:
    """Return about how wide a text is at most, in bold letters of this size."""
    return sum(size * (1.15 if one in "MW@%" or one > "\u2000" else 0.85 if one.isupper() else 0.72) for one in text)


def fitted(text: str, room: float, size: float = TITLE_SIZE) -> str:
    """Return as much of a text as fits into so many pixels."""
    if room_of(text, size) <= room:
        return text
    widths = accumulate(room_of(one, size) for one in text)
    return text[: sum(width <= room - size for width in widths)] + "…"


def tick_label(value: float, x: float, y: float, width: float) -> str:
    """Return the label below a tick, which does not pass the right border."""
    shown = round_number(value)
    at = min(x, width - 1 - DIGIT_WIDTH * len(shown) / 2)
    return f'<text x="{at:.1f}" y="{y:g}" text-anchor="middle" opacity=".7">{shown}</text>'


def _ends(plot: Plot) -> list[float]:
    lines = [series.points for panel in plot.panels for series in panel.series if series.points]
    return [line[at][0] for line in lines for at in (0, -1)]


def _description(plot: Plot) -> str:
    return (
        "; ".join(_series_text(series, plot.x_label) for panel in plot.panels for series in panel.series) or "no values"
    )


def _series_text(series: Series, x_label: str) -> str:
    if not series.points:
        return f"{series.name}: no values yet"
    (first_x, first), (last_x, last) = series.points[0], series.points[-1]
    return f"{series.name}: {first:.4g} at {x_label} {first_x:g}, {last:.4g} at {x_label} {last_x:g}"


def _panel(panel: Panel, across: Scale, top: int, plot: Plot) -> Iterator[str]:
    values, height = [y for series in panel.series for _, y in series.points], plot.size[1]
    up = Scale(*_padded(*_bounds(values)), top + height, top)
    yield from _grid(across, up)
    yield f'<text x="16" y="{top + height / 2:g}" text-anchor="middle" opacity=".7" '
    yield f'transform="rotate(-90 16 {top + height / 2:g})">{escape(panel.label)}</text>'
    for mark in plot.marks:
        yield f'<path d="M{across(mark):.1f} {top}v{height}" stroke="currentColor" stroke-opacity=".5" '
        yield 'stroke-dasharray="3 3"/>'
    for at, series in enumerate(panel.series):
        for points in _pieces(series.points, plot.marks):
            yield _line(points, across, up, COLOURS[at % len(COLOURS)])
        yield from _pointed_at(series, across, up, plot.x_label)
    if len(panel.series) > 1:
        yield from _legend(panel.series, top, plot.size[0])


def _grid(across: Scale, up: Scale) -> Iterator[str]:
    left, right, bottom = f"{across.start:g}", f"{across.end:g}", up.start
    for value in up.ticks(5):
        y = f"{up(value):.1f}"
        yield f'<path d="M{left} {y}H{right}" stroke="currentColor" stroke-opacity=".15"/>'
        yield f'<text x="{across.start - 8:g}" y="{y}" dy=".35em" text-anchor="end" opacity=".7">'
        yield f"{round_number(value)}</text>"
    whole = across.high - across.low >= 1  # steps are whole, amounts of money are not
    room = 8 if whole else int((across.end - across.start) / (AMOUNT_DIGITS * DIGIT_WIDTH))
    for value in across.ticks(min(8, room), apart=1.0 if whole else 0.0):
        x = f"{across(value):.1f}"
        yield f'<path d="M{x} {bottom:g}v4" stroke="currentColor" stroke-opacity=".5"/>'
        yield tick_label(value, across(value), bottom + 18, across.end + RIGHT)
    yield f'<path d="M{left} {bottom:g}H{right}" stroke="currentColor" stroke-opacity=".5"/>'


def _pointed_at(series: Series, across: Scale, up: Scale, x_label: str) -> Iterator[str]:
    for x, y in series.points if len(series.points) <= POINTED_AT else ():
        says = escape(f"{series.name}, {x_label} {x:g}: {y:.4g}")
        yield f'<rect x="{across(x) - 7:.1f}" y="{up(y) - 7:.1f}" width="14" height="14" fill-opacity="0">'
        yield f"<title>{says}</title></rect>"


NOISE = 1e-12


def short_number(value: float) -> str:
    """Return a number with four significant digits, as a curve has it: noise of rounding is 0.

    >>> short_number(3.542e-31), short_number(-0.25), short_number(123456)
    ('0', '-0.25', '1.235e+05')
    """
    return "0" if abs(value) <= NOISE else f"{value:.4g}"


def round_number(value: float) -> str:
    return f"{value:.6g}"


def _pieces(points: Sequence[Point], marks: Sequence[float]) -> Iterator[Sequence[Point]]:
    for _, piece in groupby(points, lambda point: bisect_left(marks, point[0])):
        yield list(piece)


def _line(points: Sequence[Point], across: Scale, up: Scale, colour: str) -> str:
    places = [(across(x), up(y)) for x, y in points]
    if len(places) == 1:
        x, y = places[0]
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>'
    shown = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return f'<polyline points="{shown}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round"/>'


def _legend(lines: Sequence[Series], top: int, width: int) -> Iterator[str]:
    x = float(LEFT)
    for at, series in enumerate(lines):
        if x > width - LEFT:
            break
        colour = COLOURS[at % len(COLOURS)]
        yield f'<path d="M{x:g} {top - 8}h16" stroke="{colour}" stroke-width="3"/>'
        yield f'<text x="{x + 20:g}" y="{top - 4}">{escape(fitted(series.name, width - x - 20, 12))}</text>'
        x += 36 + 7 * len(series.name)
