"""Conditions on trials: what the operators mean, and what never holds."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard import field
from modelyard.domain.evaluation.filters import (
    ORDERS,
    Field,
    Literal,
    Target,
    all_of,
    any_of,
    contains_text,
    convert,
    equal,
    equals_one_of,
    no,
    scorer_keys,
)
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.errors import CallerError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
INPUTS = {"n": 3, "text": "Ähnlich", "a.b": {"c.d": 1}, "a": {"b": {"x": 2}}, "list": [10, {"y": 20}], "none": None}


def trial(output: Any = "text", **scores: Any) -> ScoredPrediction:
    prediction = Prediction("p", "e", "p", "m", INPUTS, "digest", NOON, output={"value": output})
    made = [
        Score(f"s{at}", "e", "p", "p", scorer, NOON, value={"value": value})
        for at, (scorer, value) in enumerate(scores.items())
    ]
    return prediction, made


# ---- fields ------------------------------------------------------------------------------------------------------


@each_case(
    ("path", "value"),
    [
        ("inputs.n", 3),
        ("inputs.a.b.c.d", 1),
        ("inputs.a.b.x", 2),
        ("inputs.list.0", 10),
        ("inputs.list.1.y", 20),
        ("inputs.list.2", None),
        ("inputs.text.0", None),
        ("inputs.missing", None),
        ("inputs.n.deeper", None),
        ("output.answer", 42),
        ("scores.judge", {"tone": True}),
        ("scores.judge.tone", True),
        ("scores.judge:v2.tone", True),
        ("scores.judge:v1.tone", None),
        ("scores.plain", 0.5),
    ],
)
def test_a_field_is_found_by_its_names(path: str, value: Any) -> None:
    ref = "weave:///e/p/object/judge:v2"
    assert Field(path).of(trial({"answer": 42}, **{ref: {"tone": True}, "plain": 0.5})) == value


def test_the_output_itself_has_no_names_where_it_is_a_string() -> None:
    assert Field("output.x").of(trial("text")) is None


@each_case("path", ["", "scores", "scores.", "outputs.x", "row_digest", "model", "output", "Inputs.n"])
def test_another_field_is_refused(path: str) -> None:
    with pytest.raises(CallerError, match=r"scores\., inputs\., output\."):
        Field(path)


def test_of_two_versions_of_a_scorer_each_is_found_by_its_version_and_the_last_by_the_name() -> None:
    both = trial(**{f"weave:///e/p/object/judge:v{at}": at for at in (1, 2)})
    assert [Field(f"scores.{key}").of(both) for key in ("judge:v1", "judge:v2", "judge")] == [1, 2, 2]
    assert scorer_keys("weave:///e/p/object/judge") == ("judge", "judge:latest")
    assert scorer_keys("no reference") == ("no reference", "no reference")


@pytest.mark.slow
@given(st.recursive(st.integers() | st.text(), lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3)))
def test_looking_anything_up_never_fails(output: Any) -> None:
    for path in ("output.a", "output.a.b.c", "output.....", "output.0.1"):
        Field(path).of(trial(output))


# ---- comparing ---------------------------------------------------------------------------------------------------


@each_case(
    ("left", "right", "holds"),
    [
        (1, 1.0, True),
        (True, 1, True),
        (False, 0.0, True),
        ("1", 1, False),
        ("a", "a", True),
        (None, None, True),
        (None, 0, False),
        ([1, {"a": 2}], [1, {"a": 2}], True),
        ([1], [True], False),
        ({}, None, False),
    ],
)
def test_values_are_equal_as_json_and_a_bool_counts_as_0_or_1(left: Any, right: Any, holds: bool) -> None:
    assert equal(left, right) is holds
    assert equals_one_of(left, "other", right) is holds
    assert (Literal(left) == right).of(trial()) is holds
    assert (Literal(left) != right).of(trial()) is not holds
    assert Literal(left).is_in(["other", right]).of(trial()) is holds


@each_case(
    ("left", "right", "holding"),
    [
        (1, 2, {"$lt", "$lte"}),
        (2, 2.0, {"$gte", "$lte"}),
        (True, 0.5, {"$gt", "$gte"}),
        ("b", "a", {"$gt", "$gte"}),
        ("1", 2, set()),
        (None, 1, set()),
        (1, None, set()),
        (None, None, set()),
        ([2], [1], set()),
        ({}, 1, set()),
    ],
)
def test_what_cannot_be_ordered_is_neither_greater_nor_smaller(left: Any, right: Any, holding: set[str]) -> None:
    assert {name for name, order in ORDERS.items() if order(left, right)} == holding
    value = Literal(left)
    conditions = {"$gt": value > right, "$gte": value >= right, "$lt": value < right, "$lte": value <= right}
    assert {name for name, condition in conditions.items() if condition.of(trial())} == holding


def test_conditions_are_joined_and_turned_round() -> None:
    assert (all_of(), any_of()) == (True, False)
    assert [all_of(True, one) for one in (True, False, 1)] == [True, False, False]
    assert [any_of(False, one) for one in (True, False, 1)] == [True, False, False]
    assert [no(one) for one in (True, False, 1)] == [False, True, True]


def test_operators_join_conditions_on_fields() -> None:
    small, other = field("inputs.n") < 4, field("inputs.text") == "other"
    assert [one.of(trial()) for one in (small & other, small | other, ~other)] == [False, True, True]
    assert [one.path for one in (small & ~other).fields] == ["inputs.n", "inputs.text"]
    assert field("inputs.text").contains("ähn", ignore_case=True).of(trial())


def test_a_condition_is_not_true_or_false_by_itself() -> None:
    with pytest.raises(TypeError, match="&"):
        assert 1 < field("inputs.n") < 5
    with pytest.raises(TypeError, match="&"):
        _ = field("inputs.n") == 1 and field("inputs.text") == "x"


@each_case(
    ("whole", "part", "insensitive", "held"),
    [
        ("Hello", "ell", False, True),
        ("Hello", "ELL", False, False),
        ("Hello", "ELL", True, True),
        ("STRASSE", "straße", True, True),
        (["a"], "a", False, False),
        (None, "a", False, False),
        ("1", 1, False, False),
    ],
)
def test_a_string_contains_a_string(whole: Any, part: Any, insensitive: bool, held: bool) -> None:
    assert contains_text(whole, part, ignore_case=insensitive) is held


@each_case(
    ("value", "to", "converted"),
    [
        ("1.5", "double", 1.5),
        (True, "double", 1.0),
        ("nan", "double", None),
        ("1e400", "double", None),
        (10**400, "double", None),
        ("x", "double", None),
        ([1], "double", None),
        ("7", "int", 7),
        ("7.9", "int", 7),
        (-7.9, "int", -7),
        (2**62 + 1, "int", 2**62 + 1),
        ("x", "int", None),
        ("True", "bool", True),
        ("false", "bool", False),
        ("yes", "bool", None),
        (0.0, "bool", False),
        ({}, "bool", None),
        (1, "string", "1"),
        (True, "string", "true"),
        ({"a": 1}, "string", '{"a": 1}'),
        ("a", "string", "a"),
        (None, "string", None),
        (None, "int", None),
        (None, "exists", False),
        (0, "exists", True),
    ],
)
def test_a_value_is_converted_or_is_none(value: Any, to: str, converted: Any) -> None:
    found = convert(Target(to), value)
    assert (found, type(found)) == (converted, type(converted))
