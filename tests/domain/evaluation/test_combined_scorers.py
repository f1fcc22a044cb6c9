"""Scores made of others by a formula, and labels that a judge gives."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.scorer_rules import rule_of
from modelyard.domain.evaluation.scorers import FormulaError, LlmJudge, Unscored, read_formula
from modelyard.errors import InvalidInput

SAME = {"type": "exact_match", "expected": "answer"}
OTHER: Any = {"type": "combined", "scorers": {"a": SAME}, "formula": "1 - a"}
TWICE: Any = {"type": "combined", "scorers": {"a": OTHER}, "formula": "a"}  # one too many inside another


@each_case(
    ("text", "value"),
    [
        ("0.5 * a + b / 2", 1.5),
        ("a ^ 2 - -b", 3.0),
        ("-a ^ 2", -1.0),
        ("min(a, b, 7) + max(b, a) * abs(0 - 3)", 7.0),
        ("sqrt(a) + log(exp(b)) + floor(0.9) + ceil(0.1)", 4.0),
        ("min(a)", 1.0),
        ("a / (b - 2)", None),
        ("(0 - 1) ^ 0.5", None),
        ("10 ^ 400 + a + b", None),
        ("exp(1000)", None),
        ("log(0)", None),
        ("log(8, 2)", 3.0),
        ("floor((0 - 1) ^ 0.5)", None),
    ],
)
def test_what_a_formula_comes_to(text: str, value: float | None) -> None:
    assert read_formula(text).value({"a": 1.0, "b": 2.0}) == (value if value is None else pytest.approx(value))


@each_case(
    "text",
    [
        "",
        "a b",
        "a.b",
        "a[0]",
        "'a'",
        "a if b else 1",
        "lambda: 1",
        "True",
        "1j",
        "print(a)",
        "min()",
        "max(*a)",
        "a; b",
    ]
    + [
        "(" * 500 + "a" + ")" * 500,
        "-" * 990 + "a",
        "a" * 1001,
        "min(a, default=1)",
        "a and b",
        "abs(a, b)",
        "exp(1, 2)",
        "log(1, 2, 3)",
        "__import__('os')",
    ],
)
def test_what_is_no_arithmetic_is_no_formula(text: str) -> None:
    try:
        read_formula(text)
    except FormulaError:
        return
    assert text == "-" * 990 + "a"  # deep, and still arithmetic


@given(st.text(max_size=30))
def test_any_text_is_a_formula_or_refused(text: str) -> None:
    try:
        formula = read_formula(text)
    except FormulaError:
        return
    found = formula.value(dict.fromkeys(formula.names, 1.0))
    assert found is None or math.isfinite(found)


@each_case(
    ("changes", "at"),
    [
        ({"scorers": {}}, ("scorers",)),
        ({"formula": "a + b"}, ("formula",)),
        ({"formula": "1"}, ("formula",)),
        ({"scorers": {"a": {"type": "magic"}}}, ("scorers", "a", "type")),
        ({"scorers": {"a": TWICE}}, ("scorers", "a")),
        ({"scorers": {"a": 5}}, ("scorers", "a")),
        ({"formula": "a.b"}, ("formula",)),
    ],
)
def test_what_cannot_be_combined_is_named(changes: dict[str, Any], at: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        rule_of({**OTHER, "scorers": {"a": SAME}, **changes})
    assert refused.value.problems[0].loc == at


def test_a_combined_scorer_is_data_and_may_be_combined_once_more() -> None:
    once_more = {**OTHER, "scorers": {"a": OTHER}}
    assert (rule_of(OTHER).plain(), rule_of(once_more).plain()) == (OTHER, once_more)


@each_case(
    ("answer", "value"),
    [
        ("good", True),
        ("It is not good, it is BAD.", False),
        ("very good", 2),
        ("bad? no: very good!", 2),
        ("goodness", None),
        ("nothing", None),
    ],
)
def test_the_label_that_stands_last_counts(answer: str, value: Any) -> None:
    judge = LlmJudge("m", "Is it good?", "labels", labels={"good": True, "bad": False, "very good": 2})
    if value is None:
        with pytest.raises(Unscored):
            judge.read(answer)
    else:
        assert judge.read(answer) is value


@pytest.mark.parametrize(
    "options", [{"scale": "labels"}, {"labels": {"a": True}}, {"scale": "labels", "labels": {" ": 1}}]
)
def test_labels_belong_to_their_scale(options: Any) -> None:
    with pytest.raises(InvalidInput, match="labels"):
        LlmJudge("m", "p", **options)
