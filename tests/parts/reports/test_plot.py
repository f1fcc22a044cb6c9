"""The plot: one well-formed SVG, whatever is drawn."""

import itertools
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.reports.line_plot import (
    BOTTOM,
    COLOURS,
    DIGIT_WIDTH,
    NARROW,
    PANEL,
    TOP,
    WIDTH,
    Panel,
    Plot,
    Scale,
    Series,
    thinned,
)

SVG = "{http://www.w3.org/2000/svg}"
numbers = st.floats(allow_nan=False, allow_infinity=False)
lines = st.lists(numbers, max_size=30).map(lambda ys: [(float(x), y) for x, y in enumerate(ys)])


def plot_of(*lines: list[tuple[float, float]]) -> Plot:
    return Plot("A & <b>", "step", (Panel("loss", tuple(Series(f"line {at}", line) for at, line in enumerate(lines))),))


def drawn(plot: Plot) -> ET.Element:
    return ET.fromstring(plot.svg)


def places(svg: ET.Element) -> list[tuple[float, float]]:
    found = [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in svg.iter(f"{SVG}circle")]
    for line in svg.iter(f"{SVG}polyline"):
        found += [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]  # type: ignore[misc]
    return found


@given(st.lists(lines, max_size=3))
def test_every_plot_is_well_formed_and_within_its_bounds(found: list[list[tuple[float, float]]]) -> None:
    for x, y in places(drawn(plot_of(*found))):
        assert 0 <= x <= WIDTH
        assert 0 <= y <= TOP + PANEL + BOTTOM


def test_higher_values_stand_higher_and_later_ones_further_right() -> None:
    (x1, y1), (x2, y2) = places(drawn(plot_of([(1, 1.0), (2, 5.0)])))
    assert x1 < x2
    assert y1 > y2


def test_one_point_is_a_dot_and_none_is_said() -> None:
    assert len(list(drawn(plot_of([(1, 2.5)])).iter(f"{SVG}circle"))) == 1
    description = drawn(plot_of([])).find(f"{SVG}desc")
    assert description is not None
    assert description.text == "line 0: no values yet"


def test_the_description_of_a_plot_says_where_each_line_begins_and_ends() -> None:
    svg = drawn(plot_of([(1, 3.0), (9, 0.5)]))
    title, description = svg.find(f"{SVG}title"), svg.find(f"{SVG}desc")
    assert title is not None
    assert description is not None
    assert title.text == "A & <b>"
    assert description.text == "line 0: 3 at step 1, 0.5 at step 9"


def test_several_lines_have_a_legend_and_colours_of_their_own() -> None:
    svg = drawn(plot_of([(1, 1.0), (2, 2.0)], [(1, 2.0), (2, 1.0)]))
    texts = [text.text for text in svg.iter(f"{SVG}text")]
    assert {"line 0", "line 1"} <= set(texts)
    assert [line.attrib["stroke"] for line in svg.iter(f"{SVG}polyline")] == list(COLOURS[:2])


def test_a_file_follows_the_reader_and_a_notebook_its_page(tmp_path: Path) -> None:
    plot = plot_of([(1, 1.0)])
    plot.save(tmp_path / "plot.svg")
    assert "color-scheme: light dark" in (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert "color-scheme" not in plot._repr_html_()


# ---- ticks


@given(st.floats(-1e12, 1e12), st.floats(1e-3, 1e12), st.integers(2, 10))
def test_ticks_are_few_and_within(low: float, width: float, most: int) -> None:
    scale = Scale(low, low + width, 0, 100)
    ticks = scale.ticks(most)
    assert len(ticks) <= most + 1
    assert all(-1 <= scale(tick) <= 101 for tick in ticks)


def test_an_axis_of_small_amounts_has_ticks() -> None:
    panels = (Panel("score", (Series("one", [(0.0, 0.0), (0.0038, 1.0)]),)),)
    for size in ((WIDTH, PANEL), NARROW):
        drawn = Plot("Money", "USD", panels, size=size).svg
        labels = re.findall(r'<text x="([\d.]+)" y="\d+" text-anchor="middle" opacity=".7">([\d.]+)</text>', drawn)
        assert "0.003" in dict(labels).values()
        places = [float(x) for x, _ in labels]
        assert all(b - a > DIGIT_WIDTH * 6 for a, b in itertools.pairwise(places)), places


def test_ticks_are_round() -> None:
    assert Scale(0.13, 0.87, 0, 100).ticks(5) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert Scale(0, 3, 0, 100).ticks(8, apart=1.0) == [0, 1, 2, 3]


# ---- millions of points


@given(st.lists(st.floats(-1e6, 1e6), max_size=500), st.integers(2, 10))
def test_thinning_keeps_the_ends_and_the_spikes(ys: list[float], stretches: int) -> None:
    points = list(enumerate(ys))
    kept = thinned(points, stretches)
    assert len(kept) <= 8 * stretches
    assert kept == sorted(set(kept))
    assert set(kept) <= set(points)
    if points:
        assert (kept[0], kept[-1]) == (points[0], points[-1])
        assert min(y for _, y in kept) == min(ys)
        assert max(y for _, y in kept) == max(ys)


def test_few_points_are_all_kept() -> None:
    assert thinned([(1.0, 2.0), (2.0, 1.0)]) == [(1.0, 2.0), (2.0, 1.0)]


def test_endless_points_need_no_more_room() -> None:
    """Taken one at a time: after each the points that are held are bounded."""
    held = thinned(((float(x), float(x % 7)) for x in range(50_000)), 10)
    assert len(held) <= 80
