"""The distribution of values as bars: one self-contained SVG text."""

from collections.abc import Iterator
from html import escape

import attrs

from modelyard.domain.evaluation.statistics import Distribution
from modelyard.parts.reports.line_plot import COLOURS, Scale, fitted, round_number, tick_label

WIDTH, HEIGHT = 340, 200
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 44, 40
NEUTRAL = "#8A8F98"


@attrs.frozen
class Histogram:
    """Bars over values. If they are differences, losses and gains have different colours, and 0 is marked.

    >>> Histogram("exact", Distribution(0, 0.5, (3, 0, 7))).svg.startswith("<svg ")
    True
    """

    title: str
    distribution: Distribution
    differences: bool = False
    lower_is_better: bool = False
    of: str = "rows"

    @property
    def svg(self) -> str:
        return "".join(self._drawn())

    def _drawn(self) -> Iterator[str]:
        bars, step = self.distribution, self.distribution.step
        across = Scale(bars.centres[0] - step, bars.centres[-1] + step, LEFT, WIDTH - RIGHT)
        up = Scale(0, max(bars.counts) * 1.05, HEIGHT - BOTTOM, TOP)
        yield f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
        yield ' font-family="system-ui, sans-serif" font-size="12" fill="currentColor">'
        yield f"<title>{escape(self.title)}</title><desc>{escape(self._description())}</desc>"
        title = escape(fitted(self.title, WIDTH - RIGHT - LEFT))
        yield f'<text x="{LEFT}" y="16" font-size="14" font-weight="600">{title}</text>'
        yield f'<text x="{LEFT}" y="34" opacity=".7">{self.of}</text>'
        yield from _grid(up)
        for centre, count in zip(bars.centres, bars.counts, strict=True):
            if count:
                yield self._bar(across, up, centre, count)
        yield from self._axis(across)
        yield "</svg>\n"

    def _bar(self, across: Scale, up: Scale, centre: float, count: int) -> str:
        left, right = (across(centre + side * self.distribution.step * 0.46) for side in (-1, 1))
        top, bottom = up(count), up(0)
        place = f'x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" height="{bottom - top:.1f}" rx="1.5"'
        title = f"<title>{round_number(centre)}: {count:,}</title>"
        return f'<rect {place} fill="{self._colour(centre)}">{title}</rect>'

    def _colour(self, centre: float) -> str:
        if not self.differences:
            return COLOURS[0]
        if abs(centre) < self.distribution.step / 2:
            return NEUTRAL
        return COLOURS[2] if (centre > 0) is not self.lower_is_better else COLOURS[1]

    def _axis(self, across: Scale) -> Iterator[str]:
        bottom = HEIGHT - BOTTOM
        if self.differences and across.low < 0 < across.high:
            yield f'<path d="M{across(0):.1f} {TOP}V{bottom}" stroke="currentColor" stroke-opacity=".6" '
            yield 'stroke-dasharray="3 3"/>'
        for value in across.ticks(5):
            x = f"{across(value):.1f}"
            yield f'<path d="M{x} {bottom}v4" stroke="currentColor" stroke-opacity=".5"/>'
            yield tick_label(value, across(value), bottom + 17, WIDTH)
        below = "difference" if self.differences else "score"
        yield f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end" opacity=".7">{below}</text>'
        yield f'<path d="M{LEFT} {bottom}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".5"/>'

    def _description(self) -> str:
        bars = zip(self.distribution.centres, self.distribution.counts, strict=True)
        return "; ".join(f"{count} around {round_number(centre)}" for centre, count in bars if count)


def _grid(up: Scale) -> Iterator[str]:
    for value in up.ticks(4, apart=1.0):
        y = f"{up(value):.1f}"
        yield f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="currentColor" stroke-opacity=".12"/>'
        yield f'<text x="{LEFT - 6}" y="{y}" dy=".35em" text-anchor="end" opacity=".7">{value:,.0f}</text>'
