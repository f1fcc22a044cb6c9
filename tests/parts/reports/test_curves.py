"""Curves of a page: what changes is drawn, the first one large, and what does not change is said."""

import re

from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.reports.curves import curves
from modelyard.parts.reports.line_plot import NARROW, POINTED_AT, SMALL, WIDTH, Series

VALUES = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-3)
LINES = st.lists(VALUES, min_size=1, max_size=8)


def series(*values: float, name: str = "x") -> Series:
    return Series(name, [(float(at), value) for at, value in enumerate(values, 1)])


def drawings(page: str) -> list[str]:
    return re.findall(r"<title>([^<]*)</title><desc>", page)


@given(st.dictionaries(st.sampled_from(["loss", "valid_loss", "reward", "held_out", "a", "b"]), LINES, max_size=6))
def test_each_metric_is_drawn_or_said(metrics: dict[str, list[float]]) -> None:
    page = curves({name: [series(*values, name=name)] for name, values in metrics.items()}, "step")
    said = set(re.findall(r"<dt>([^<]*)</dt>", page))
    shown = {name for title in drawings(page) for name in title.split(" and ")}
    changing = {name for name, values in metrics.items() if max(values) - min(values) > 1e-9 * max(map(abs, values))}
    assert changing <= shown
    assert said | shown == set(metrics)
    assert not said & shown


def test_the_first_curve_is_large_and_the_others_are_folded() -> None:
    page = curves({name: [series(1, 2)] for name in ("entropy", "loss", "grad_norm")}, "step")
    large, rest = page.split("<details>")
    assert drawings(large) == ["loss", "loss"], "for a wide screen and for a narrow one"
    assert drawings(rest) == ["entropy", "grad_norm"]
    widths = [WIDTH, NARROW[0], SMALL[0], SMALL[0]]
    assert re.findall(r'viewBox="0 0 (\d+) ', page) == [*map(str, widths)]
    assert "2 more curves" in rest


def test_the_reward_is_drawn_with_what_is_held_out() -> None:
    page = curves(
        {"reward": [series(0.1, 0.5, name="reward")], "held_out": [series(0.2, 0.4, name="held_out")]}, "round"
    )
    assert drawings(page) == ["reward and held_out"] * 2
    assert ">reward</text>" in page
    assert ">held_out</text>" in page
    assert "more curve" not in page


def test_rounding_is_no_climb_and_one_point_no_curve() -> None:
    page = curves({"kl_div": [series(1e-31, 5e-31)], "loss": [series(3.4131)], "rate": [series(5e-05, 5e-05)]}, "step")
    assert "<svg" not in page
    assert "<dt>loss</dt><dd>3.413</dd>" in page
    assert "<dt>kl_div</dt><dd>0 at each of 2 steps</dd>" in page
    assert "<dt>rate</dt><dd>5e-05 at each of 2 steps</dd>" in page


def test_values_of_several_models_are_said_by_name() -> None:
    page = curves({"loss": [series(3, name="a"), series(2, name="<b>")]}, "checkpoint")
    assert "<dd>a 3; &lt;b&gt; 2</dd>" in page


def test_each_point_says_its_value_unless_there_are_very_many() -> None:
    assert "<title>x, step 2: 7</title>" in curves({"x": [series(5, 7)]}, "step")
    many = curves({"x": [series(*range(POINTED_AT + 1))]}, "step")
    assert "<rect" not in many
    assert f">{POINTED_AT}</text>" in many, "the last value"
