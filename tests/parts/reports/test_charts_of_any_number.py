"""Every drawing in a page, of numbers as large and as small as there are: no coordinate is lost."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.evaluation.metrics import LARGEST
from modelyard.domain.evaluation.statistics import Distribution, Interval
from modelyard.parts.reports.histogram import Histogram
from modelyard.parts.reports.inline_chart import BETTER, interval_strip, sparkline

LEAST = 5e-324
"""The least float above 0."""

scores = st.sampled_from([0.0, LEAST, -LEAST, 1e-300, -LARGEST, LARGEST]) | st.floats(-LARGEST, LARGEST)


def histogram(values: list[float]) -> str:
    found = Distribution.of(values)
    assert found is not None
    return Histogram("score", found).svg


def strip(values: list[float]) -> str:
    low, *_, high = sorted(values)
    return interval_strip(values[0], Interval(low, high, 0.95), low, high, BETTER)


@pytest.mark.parametrize("draw", [histogram, strip, sparkline])
@given(values=st.lists(scores, min_size=2, max_size=12))
def test_a_drawing_has_only_numbers_for_coordinates(draw: Callable[[list[float]], str], values: list[float]) -> None:
    shapes = re.sub("<title>.*?</title>|<desc>.*?</desc>|<text[^>]*>|[^<>]*</text>", "", draw(values))
    assert not re.search(r"\b(nan|inf)\b", shapes)
