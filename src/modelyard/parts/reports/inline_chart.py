"""Small charts within a table: an interval on its scale, and shares of a whole."""

from collections.abc import Iterator, Sequence

from modelyard.domain.evaluation.statistics import Interval
from modelyard.parts.reports.line_plot import COLOURS, Scale

WIDTH, HEIGHT = 170, 18
MIDDLE = HEIGHT / 2


def interval_strip(mean: float | None, interval: Interval | None, low: float, high: float, colour: str) -> str:
    if mean is None or high <= low:
        return ""
    return "".join(_interval(mean, interval, Scale(low, high, 4, WIDTH - 4), colour))


def _interval(mean: float, interval: Interval | None, across: Scale, colour: str) -> Iterator[str]:
    yield f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
    yield f'<path d="M4 {MIDDLE}H{WIDTH - 4}" stroke="currentColor" stroke-opacity=".18"/>'
    if across.low < 0 < across.high:
        yield f'<path d="M{across(0):.1f} 1V{HEIGHT - 1}" stroke="currentColor" stroke-opacity=".55"/>'
    if interval is not None:
        ends = (across(interval.low), across(interval.high))
        yield f'<path d="M{ends[0]:.1f} {MIDDLE}H{ends[1]:.1f}" stroke="{colour}" stroke-width="6" '
        yield 'stroke-opacity=".4" stroke-linecap="round"/>'
    yield f'<circle cx="{across(mean):.1f}" cy="{MIDDLE}" r="4" fill="{colour}"/></svg>'


def sparkline(values: Sequence[float]) -> str:
    if len(values) < 2 or min(values) == max(values):
        return ""
    across, up = Scale(0, len(values) - 1, 2, WIDTH - 2), Scale(min(values), max(values), HEIGHT - 2, 2)
    points = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in enumerate(values))
    return (
        f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
        f'<polyline points="{points}" fill="none" stroke="{COLOURS[0]}" stroke-width="1.6"/></svg>'
    )


def share_strip(counts: Sequence[int], colours: Sequence[str]) -> str:
    total = sum(counts)
    return "".join(_shares(counts, colours, total)) if total else ""


def _shares(counts: Sequence[int], colours: Sequence[str], total: int) -> Iterator[str]:
    yield f'<svg class="strip" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" aria-hidden="true">'
    left = 0.0
    for count, colour in zip(counts, colours, strict=True):
        width = WIDTH * count / total
        yield f'<rect x="{left:.2f}" y="4" width="{width:.2f}" height="10" fill="{colour}"/>'
        left += width
    yield "</svg>"


BETTER, WORSE, PLAIN = COLOURS[2], COLOURS[1], COLOURS[0]
