"""A value of the host's with types that are no JSON is what the json module writes for it, at every door, or it is
refused at its place; the fault of a row costs that row."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from tests.shared.odd_values import (
    REFUSED,
    STANDS_FOR_JSON,
    Colour,
    Count,
    Name,
    as_data,
    is_data,
    is_its_json_or_refused,
    odd_values,
    plain,
)

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput

EVALUATION, MODEL = "weave:///local/d/object/e", "weave:///local/d/object/m"
Door = Callable[[Platform, Any], Any]


@pytest.fixture(scope="module")
def opened() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def run_of(platform: Platform) -> Any:
    return platform.evaluations.runs.create(EVALUATION, MODEL, project="d")


def created_output(platform: Platform, value: Any) -> Any:
    made = platform.evaluations.predictions.create(MODEL, {"q": 1}, {"v": value}, project="d")
    return platform.evaluations.predictions.get(made.id).output["value"]["v"]


def finished_output(platform: Platform, value: Any) -> Any:
    made = platform.evaluations.predictions.create(MODEL, {"q": 1}, project="d")
    return platform.evaluations.predictions.finish(made.id, {"v": value}).output["value"]["v"]


def inputs(platform: Platform, value: Any) -> Any:
    return platform.evaluations.predictions.create(MODEL, {"q": value}, project="d").inputs["q"]


def summary(platform: Platform, value: Any) -> Any:
    return platform.evaluations.runs.finish(run_of(platform).id, {"v": value}).summary["v"]


def content(platform: Platform, value: Any) -> Any:
    return platform.evaluations.objects.publish("model", "m", {"v": [value]}, project="d").content["v"][0]


def score(platform: Platform, value: Any) -> Any:
    made = platform.evaluations.predictions.create(MODEL, {"q": 1}, "x", project="d")
    found = platform.evaluations.scores.create(made.id, "weave:///local/d/object/s", {"v": value}, project="d")
    return found.value["value"]["v"]


def dataset_row(platform: Platform, value: Any) -> Any:
    version = platform.evaluations.objects.publish("dataset", "rows", {}, [{"v": value}], project="d")
    return next(iter(platform.evaluations.objects.rows(version)))["v"]


def input_row(platform: Platform, value: Any) -> Any:
    found = platform.evaluations.run("e", lambda row: "x", [{"v": value}], lambda output, row: 1, project="d")
    return found.rows[0].row["v"]


DOORS = {
    door.__name__: door
    for door in (
        created_output, finished_output, inputs, summary, content, score, dataset_row, input_row,
    )
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
@given(odd_values)
@example([{(1, 2): "pair"}, REFUSED[-2]])
def test_a_value_is_its_json_or_is_refused_at_its_place(opened: Platform, door: str, value: Any) -> None:
    is_its_json_or_refused(partial(DOORS[door], opened), value)


def row_of(platform: Platform, model: Any, scorer: Any) -> Any:
    rows = [{"i": 0}, {"i": 1}, {"i": 2}]
    result = platform.evaluations.run("e", model, rows, scorer, project="d", concurrency=1)
    first, odd, last = result.rows
    assert first.outcome == last.outcome == "scored"
    again = platform.evaluations.rescore(result.run.id, lambda output, row: repr(output)).rows[1]
    assert [row.row["i"] for row in result.rows] == [0, 1, 2]
    return odd, again


@pytest.mark.slow
@given(odd_values)
def test_an_odd_output_costs_at_most_its_row_and_is_scored_as_it_is_kept(opened: Platform, value: Any) -> None:
    def seen(output: Any, row: Any) -> str:
        return f"{plain(output)!r} {is_data(output)}"

    odd, again = row_of(opened, lambda row: value if row["i"] == 1 else "fine", seen)
    try:
        wanted = as_data(value)
    except (TypeError, ValueError, RecursionError):
        assert odd.outcome == again.outcome == "model_errors"
        assert odd.detail
    else:
        assert plain(odd.output) == wanted
        assert odd.scores["seen"] == f"{wanted!r} True"


@pytest.mark.slow
@given(odd_values)
@example({1: 0.5, Name("b"): Count(2)})
@example(Colour.RED)
def test_an_odd_score_costs_at_most_its_row(opened: Platform, value: Any) -> None:
    odd, _ = row_of(opened, lambda row: "x", {"s": lambda output, row: value if row["i"] == 1 else 1.0})
    assert odd.outcome in ("scored", "unscored", "scorer_errors")
    assert odd.outcome == "scorer_errors" or is_data(odd.scores)


@pytest.mark.parametrize("value", range(len(STANDS_FOR_JSON)))
def test_a_single_odd_score_is_its_json(opened: Platform, value: int) -> None:
    given = STANDS_FOR_JSON[value]
    odd, _ = row_of(opened, lambda row: "x", {"s": lambda output, row: given if row["i"] == 1 else 1.0})
    assert odd.outcome == ("scorer_errors" if "[" in json.dumps(as_data(given)) else "scored")
    if odd.outcome == "scored":
        assert plain(odd.scores["s"]) == as_data(given)


def test_what_is_refused_deep_inside_is_named(opened: Platform) -> None:
    with pytest.raises(InvalidInput) as caught:
        opened.evaluations.predictions.create(MODEL, {"q": {"deep": [1, {2}]}}, project="d")
    assert caught.value.problems[0].loc == ("inputs", "q", "deep", 1)


@pytest.mark.parametrize("text", [Name("Ada"), Colour.RED])
def test_names_and_options_may_be_subclasses(opened: Platform, text: Any) -> None:
    import numpy

    rule = {"type": Name("numeric"), "absolute": numpy.float64(0.5), "expected": text}
    found = opened.evaluations.run(
        text,
        "echo",
        [{"prompt": "1.2", str.__str__(text): 1}],
        rule,
        project=text,
        temperature=numpy.float64(0.5),
        max_tokens=Count(5),
        metadata={"a": text},
    )
    assert found.score == 1
    assert opened.evaluations.gate(found.run, {"numeric": numpy.float64(0.9)}).passed


def test_the_zoo_has_both_kinds() -> None:
    assert all(as_data(value) is not None for value in STANDS_FOR_JSON)
    for value in REFUSED:
        with pytest.raises((TypeError, ValueError, RecursionError)):
            as_data(value)
