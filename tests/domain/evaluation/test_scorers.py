"""Declarative scorers: what each says, what each refuses to say, and that none can be kept busy."""

import json
import math
from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.scorer_rules import RULES, rule_of
from modelyard.domain.evaluation.scorers import (
    MAX_OUTPUT,
    Contains,
    ExactMatch,
    JsonEqual,
    LlmJudge,
    Numeric,
    RegularExpression,
    Unscored,
    checked_score,
    same_json,
)
from modelyard.errors import InvalidInput

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@each_case(
    ("rule", "output", "expected", "reply"),
    [
        (ExactMatch(), "Paris", "Paris", True),
        (ExactMatch(), " Paris\n", "Paris", True),
        (ExactMatch(), "paris", "Paris", False),
        (ExactMatch(ignore_case=True), "STRASSE", "straße", True),
        (ExactMatch(), "5", 5, True),
        (ExactMatch(), "", "x", False),
        (Contains(), "It is Paris.", "Paris", True),
        (Contains(), "It is Rome.", "Paris", False),
        (Contains(ignore_case=True), "it is PARIS", "Paris", True),
        (RegularExpression(r"^\d+$"), "123", None, True),
        (RegularExpression(r"^\d+$"), "12a", None, False),
        (Numeric(), "That makes 1,234.5 dollars", 1234.5, True),
        (Numeric(), "first 3, then 4", "4", True),
        (Numeric(absolute=0.5), "10.4", 10, True),
        (Numeric(absolute=0.5), "10.6", 10, False),
        (Numeric(relative=0.1), "-109", -100, True),
        (Numeric(), "no number", 1, False),
        (JsonEqual(), '{"b": 1.0, "a": [true]}', {"a": [True], "b": 1}, True),
        (JsonEqual(), '{"a": 1}', '{"a": 1}', True),
        (JsonEqual(), '{"a": 1}', {"a": True}, False),
        (JsonEqual(), "not json", {"a": 1}, False),
        (JsonEqual(), '"Paris"', "Paris", True),
        (JsonEqual(), '"Paris"', '"Paris"', True),
        (JsonEqual(), '"Rome"', "Paris", False),
        (JsonEqual(), "Paris", "Paris", False),
        (JsonEqual(), '["Paris"]', "Paris", False),
        (JsonEqual(), '""', "", True),
        (JsonEqual(), "5", "5", True),
        (JsonEqual(), {"a": "x"}, {"a": "x"}, True),
    ],
)
def test_what_a_declarative_scorer_says(rule: Any, output: str, expected: object, reply: bool) -> None:
    assert rule.score(output, {"expected": expected}) is reply


def test_another_field_of_the_row_may_hold_what_is_expected() -> None:
    assert Contains("answer").score("yes!", {"answer": "yes"}) is True
    with pytest.raises(KeyError):
        Contains("answer").score("yes!", {"expected": "yes"})


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(a*)*b", "a*a*a*a*a*a*b", "(.*a){9}$"])
def test_no_pattern_and_output_keep_a_worker_busy(pattern: str) -> None:
    for output in ("a" * 1000 + "!", "a" * (MAX_OUTPUT - 1) + "!"):
        with suppress(Unscored):  # a search that backtracks would not end
            RegularExpression(pattern).score(output, {})


@pytest.mark.slow
def test_a_search_that_takes_too_many_steps_is_given_up() -> None:
    with pytest.raises(Unscored, match="steps"):
        RegularExpression("(.*a){20}$").score("a" * (MAX_OUTPUT - 1) + "!", {})


def test_an_output_beyond_the_bound_is_not_scored() -> None:
    with pytest.raises(Unscored, match="more than"):
        RegularExpression("a").score("a" * (MAX_OUTPUT + 1), {})


def test_an_expected_field_without_a_number_scores_nothing() -> None:
    with pytest.raises(Unscored, match="no number"):
        Numeric().score("1", {"expected": "one"})


# ---- the judge ----


def test_a_judge_gets_the_strings_of_the_row_which_are_never_templates() -> None:
    judge = LlmJudge("m", "Is {output} the same as {expected}? {{x}}")
    assert judge.asks("{expected}", {"expected": "{output}", "x": 1}) == "Is {expected} the same as {output}? {1}"
    with pytest.raises(KeyError):
        LlmJudge("m", "{missing}").asks("a", {})


@pytest.mark.parametrize("scale", ["yes_no", "number"])
def test_a_judge_that_says_neither_scores_nothing(scale: str) -> None:
    with pytest.raises(Unscored, match="the judge gave no"):
        LlmJudge("m", "?", scale).read("Perhaps.")


# ---- as data ----


@each_case(
    "rule",
    [
        ExactMatch("x", True),
        Contains(),
        RegularExpression("a+"),
        Numeric(absolute=1, relative=0.5),
        JsonEqual(),
        LlmJudge("m", "p", "number", {"max_tokens": 5}),
    ],
)
def test_a_rule_is_made_again_from_its_data(rule: Any) -> None:
    assert rule_of(json.loads(json.dumps(rule.plain()))) == rule
    assert RULES[rule.type] is type(rule)


@each_case(
    ("plain", "place"),
    [
        ({}, "type"),
        ({"type": "os.system"}, "type"),
        ({"type": ["contains"]}, "type"),
        ({"type": "contains", "function": "x"}, "function"),
        ({"type": "contains", "ignore_case": "yes"}, "ignore_case"),
        ({"type": "regular_expression"}, "pattern"),
        ({"type": "regular_expression", "pattern": r"(x)\1"}, "pattern"),
        ({"type": "regular_expression", "pattern": 5}, "pattern"),
        ({"type": "numeric", "absolute": -1}, "absolute"),
        ({"type": "numeric", "absolute": math.nan}, "absolute"),
        ({"type": "numeric", "absolute": True}, "absolute"),
        ({"type": "llm_judge", "model": "m", "prompt": "p", "scale": "stars"}, "scale"),
        ({"type": "llm_judge", "model": "m", "prompt": "p", "options": 1}, "options"),
    ],
)
def test_data_that_are_not_a_rule_are_refused_at_their_place(plain: dict[str, Any], place: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        rule_of(plain)
    assert [problem.loc for problem in refused.value.problems] == [(place,)]


# ---- values ----


class Scalar:
    """One value of an array library, such as `numpy.bool_`, which is neither a bool nor a number to Python."""

    def __init__(self, value: object) -> None:
        self.value = value

    def item(self) -> object:
        return self.value


class Mask:
    """Which values of an array are hidden."""

    def __init__(self, hidden: bool) -> None:
        self.hidden = hidden

    def all(self) -> bool:
        return self.hidden


class Masked(Scalar):
    """One value of a masked array, whose `item()` is a number even if it is hidden."""

    def __init__(self, value: object, hidden: bool) -> None:
        super().__init__(value)
        self.mask = Mask(hidden)


@each_case(
    ("value", "kept", "reason"),
    [
        (True, True, ""),
        (0.25, 0.25, ""),
        (3, 3, ""),
        ("good", "good", ""),
        (None, None, "the scorer gave no score"),
        (math.nan, None, "the score is nan"),
        (-math.inf, None, "the score is -inf"),
        (2**64, None, "the score is beyond 64 bits"),
        (Decimal("0.5"), 0.5, ""),
        (Scalar(True), True, ""),
        (Scalar(math.nan), None, "the score is nan"),
        (Masked(0.0, hidden=True), None, "the scorer gave no score"),
        (Masked(2.5, hidden=False), 2.5, ""),
        ({"a": Masked(0.0, hidden=True)}, {"a": None}, "a: the scorer gave no score"),
        ({"a": {"b": math.inf}, "c": 1, "d": None}, {"a": {"b": None}, "c": 1, "d": None}, "a: b: the score is inf"),
    ],
)
def test_a_score_is_kept_or_it_is_said_why_not(value: object, kept: object, reason: str) -> None:
    assert checked_score(value) == (kept, reason)


@given(st.floats(-9, 9), st.booleans())
def test_a_value_of_numpy_that_is_hidden_is_no_score(number: float, hidden: bool) -> None:
    numpy = pytest.importorskip("numpy")
    for value in (numpy.ma.array(number, mask=hidden), numpy.ma.array([number], mask=hidden)):
        assert checked_score(value)[0] == (None if hidden else number)
    assert checked_score(numpy.ma.masked)[0] is None


@each_case("value", [[1.0], object(), b"x", {"a": [1]}])
def test_what_is_not_a_score_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        checked_score(value)


@given(json_values)
def test_a_json_value_is_the_same_as_itself_through_text(value: Any) -> None:
    assert same_json(json.loads(json.dumps(value)), value)
    assert JsonEqual().score(json.dumps(value), {"expected": json.dumps(value)}) is True


@given(json_values, json_values)
def test_sameness_of_json_does_not_depend_on_the_side(one: Any, other: Any) -> None:
    assert same_json(one, other) is same_json(other, one)


def test_a_misspelt_scorer_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match=r"type: must be one of .*; did you mean 'exact_match'\?$"):
        rule_of({"type": "exact_mach"})
    for unlike in ("zzz", 5, None, ["contains"]):
        with pytest.raises(InvalidInput, match=r"type: must be one of [a-z_, 1]*$"):
            rule_of({"type": unlike})


def test_a_misspelt_field_of_a_scorer_is_named_with_the_nearest() -> None:
    with pytest.raises(InvalidInput, match="expceted: is not a field of contains; did you mean 'expected'"):
        rule_of({"type": "contains", "expceted": "answer"})
    with pytest.raises(InvalidInput, match=r"x: is not a field of contains$"):
        rule_of({"type": "contains", "x": "answer"})
