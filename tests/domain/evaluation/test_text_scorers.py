"""Scorers of texts against oracles that are slow and plain, and scorers that look into JSON and calls."""

import json
import re
import string
import unicodedata
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from each import each_case
from modelyard import ScriptedBackend, open_platform
from modelyard.domain.evaluation.scorer_rules import (
    Fuzzy,
    JsonPath,
    OneOf,
    RougeL,
    TokenF1,
    ToolCalls,
    common_subsequence,
    rule_of,
)
from modelyard.domain.evaluation.scorers import MAX_OUTPUT, Contains, ExactMatch, Unscored
from modelyard.errors import InvalidInput
from modelyard.parts.scripted.backend import call, say

NEAR = (Fuzzy(), TokenF1(), RougeL())


def said(rule: Any, output: Any, expected: Any) -> Any:
    return rule.score(output, {"expected": expected})


# ---- texts ---------------------------------------------------------------------------------------------------------


@given(st.text("abc", max_size=12), st.text("abc", max_size=12))
def test_the_longest_common_subsequence_is_that_of_the_recursion(one: str, other: str) -> None:
    @cache
    def longest(at: int, by: int) -> int:
        if at == len(one) or by == len(other):
            return 0
        if one[at] == other[by]:
            return 1 + longest(at + 1, by + 1)
        return max(longest(at + 1, by), longest(at, by + 1))

    assert common_subsequence(one, other) == longest(0, 0)


@pytest.mark.parametrize("rule", NEAR, ids=lambda rule: rule.type)
@given(one=st.text(max_size=20), other=st.text(max_size=20))
def test_nearness_is_from_0_to_1_the_same_both_ways_and_1_for_the_same_text(rule: Any, one: str, other: str) -> None:
    found = said(rule, one, other)
    assert 0 <= found <= 1
    assert found == said(rule, other, one)
    assert said(rule, one, one) == 1


@each_case(
    ("rule", "output", "expected", "found"),
    [
        (Fuzzy(), "kitten", "sitting", 8 / 13),
        (Fuzzy(), "abc", "", 0.0),
        (Fuzzy(ignore_case=True), "PARIS", "Paris", 1.0),
        (TokenF1(), "The capital is Paris.", "Paris", 0.5),
        (TokenF1(), "an apple, a pear", "pear apple", 1.0),
        (TokenF1(), "no no no", "no", 0.5),
        (RougeL(), "police kill the gunman", "police killed the gunman", 0.75),
        (RougeL(), "the gunman kill police", "police killed the gunman", 0.5),
        (RougeL(), "", "police", 0.0),
    ],
)
def test_nearness_by_hand(rule: Any, output: str, expected: str, found: float) -> None:
    assert said(rule, output, expected) == pytest.approx(found)


def squad_tokens(text: str) -> list[str]:
    """What SQuAD's evaluation describes: lower-case, drop punctuation, then articles, then surplus white space."""
    kept = [letter for letter in unicodedata.normalize("NFC", text).lower() if letter not in string.punctuation]
    return re.sub(r"\b(a|an|the)\b", " ", "".join(kept)).split()


def squad_f1(one: list[str], other: list[str]) -> float:
    left, common = [*other], 0
    for token in one:
        if token in left:
            left.remove(token)
            common += 1
    if not common:
        return 0.0
    precision, recall = common / len(one), common / len(other)
    return 2 * precision * recall / (precision + recall)


PARTS = [
    "the",
    "a",
    "An",
    "U.S.",
    "US",
    "well-known",
    "well",
    "known",
    "1,234",
    "1234",
    "don't",
    "dont",
    "café",
    "x",
    "…",
]
squad_texts = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map(" ".join)


@given(squad_texts | st.text(max_size=12), squad_texts | st.text(max_size=12))
@example("made in the U.S.", "made in the US")
@example("well-known", "well known")
def test_token_f1_is_that_of_squad(one: str, other: str) -> None:
    assume(squad_tokens(one) or squad_tokens(other))
    assume(not any(unicodedata.combining(letter) for letter in unicodedata.normalize("NFC", one + other)))
    assert said(TokenF1(), one, other) == pytest.approx(squad_f1(squad_tokens(one), squad_tokens(other)))


DAY, GIFT = "\u0926\u093f\u0928", "\u0926\u093e\u0928"


@each_case(
    ("one", "other", "found"),
    [
        (DAY, GIFT, 0),
        (DAY, DAY, 1),
        (f"{DAY} {GIFT}", GIFT, 2 / 3),
        ("cafe\u0301", "caf\u00e9", 1),
        ("\u0e01\u0e34\u0e19", "\u0e01\u0e31\u0e19", 0),
        ("\u05e9\u05b8", "\u05e9\u05b9", 0),
        ("!!", "??", 0),
        ("!!", "!!", 1),
        ("", "", 1),
        ("", "?", 0),
        (" ?", "? ", 1),
        ("\u2764\ufe0f", "\U0001f44d\ufe0f", 0),
        ("東京", "東京", 1),
        ("東京", "京都", 0),
        ("Straße", "STRASSE", None),
    ],
)
def test_words_are_those_of_unicode(one: str, other: str, found: float | None) -> None:
    for rule in (TokenF1(), RougeL()):
        if found is not None:
            assert said(rule, one, other) == pytest.approx(found)
    assert said(RougeL(), "Straße", "STRASSE") == 1


@given(st.text(), st.text())
def test_the_composed_and_the_decomposed_form_score_the_same(one: str, other: str) -> None:
    rules = (*NEAR, OneOf(), ExactMatch(), Contains(), Fuzzy(ignore_case=True), ExactMatch(ignore_case=True))
    for rule in rules:
        composed, decomposed = (
            said(rule, unicodedata.normalize(form, one), unicodedata.normalize(wanted, other))
            for form, wanted in (("NFC", "NFC"), ("NFD", "NFC"))
        )
        assert composed == pytest.approx(decomposed)
        assert said(rule, unicodedata.normalize("NFD", one), unicodedata.normalize("NFC", one)) == 1


@given(
    st.text(st.characters(categories=["P", "S", "Z"]), max_size=6),
    st.text(st.characters(categories=["P", "S"]), max_size=6),
)
def test_texts_without_words_are_as_near_as_they_are_equal(one: str, other: str) -> None:
    assert said(RougeL(), one, other) == float(one.strip() == other.strip())


@each_case("rule", [*NEAR, OneOf()], ids=lambda rule: rule.type)
def test_of_several_texts_the_nearest_counts(rule: Any) -> None:
    assert said(rule, " Rome", ["Paris", "Rome"]) == said(rule, " Rome", "Rome")
    assert said(rule, "Rome", ("Paris", "Oslo")) < 0.5
    with pytest.raises(Unscored, match="the row's 'expected' is empty"):
        said(rule, "Rome", [])


def test_one_of_several_texts() -> None:
    assert said(OneOf(), "Rome\n", ["Paris", " Rome"]) is True
    assert said(OneOf(), "rome", ["Rome"]) is False
    assert said(OneOf(ignore_case=True), "rome", ["Rome"]) is True
    assert said(OneOf(), "5", [4, 5]) is True


@pytest.mark.parametrize("rule", NEAR, ids=lambda rule: rule.type)
def test_no_text_keeps_a_scorer_busy(rule: Any) -> None:
    assert said(rule, "ab " * (MAX_OUTPUT // 3), "ba " * (MAX_OUTPUT // 3)) <= 1
    for output, expected in (("x" * (MAX_OUTPUT + 1), "x"), ("x", ["y", "x" * (MAX_OUTPUT + 1)])):
        with pytest.raises(Unscored, match="more than 20000 characters"):
            said(rule, output, expected)


# ---- JSON ----------------------------------------------------------------------------------------------------------

FOUND = '{"items": [{"name": "sea", "odd name": {"n": 1.0}}, {"name": "sky"}], "none": null}'


@each_case(
    ("path", "expected", "matches"),
    [
        ("$.items[0].name", "sea", True),
        ("items[-1].name", "sky", True),
        ("$.items[0]['odd name'].n", 1, True),
        ('$["items"][1]', {"name": "sky"}, True),
        ("$.none", None, True),
        ("$.items[2].name", "sea", False),
        ("$.items[-3]", None, False),
        ("$.items.name", "sea", False),
        ("$.absent", None, False),
        ("$", json.loads(FOUND), True),
    ],
)
def test_the_value_at_a_place(path: str, expected: Any, matches: bool) -> None:
    assert said(JsonPath(path), FOUND, expected) is matches
    assert said(JsonPath(path), json.loads(FOUND), expected) is matches
    assert said(JsonPath(path), "not json", expected) is False


@each_case("path", ["$..a", "$.a[*]", "$.a[", "$.a b", "$['a", "$.a[1:2]"])
def test_a_path_that_cannot_be_read_is_refused_at_its_field(path: str) -> None:
    with pytest.raises(InvalidInput, match="path: cannot be read from"):
        rule_of({"type": "json_path", "path": path})


# ---- calls of tools ------------------------------------------------------------------------------------------------


def calling(*calls: tuple[str, Any]) -> dict[str, Any]:
    return {"content": "", "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in calls]}


@each_case(
    ("output", "expected", "matches"),
    [
        (calling(("look", '{"a": 1.0}')), {"name": "look", "arguments": {"a": 1}}, True),
        (calling(("look", '{"a": 2}')), {"name": "look", "arguments": {"a": 1}}, False),
        (calling(("look", '{"a": 2}')), {"name": "look"}, True),
        (calling(("look", '{"a": 2}')), "look", True),
        (calling(("send", "{}")), "look", False),
        (calling(("look", "{}"), ("send", "{}")), ["send", "look"], True),
        (calling(("look", "{}"), ("look", "{}")), ["look"], False),
        (calling(("look", "{}")), ["look", "look"], False),
        ({"tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}, "look", True),
        (calling(("look", "not json")), {"name": "look", "arguments": {}}, False),
        ("no call", [], True),
        ("no call", "look", False),
    ],
)
def test_calls_of_tools(output: Any, expected: Any, matches: bool) -> None:
    assert said(ToolCalls(), output, expected) is matches


def test_only_the_names_of_calls() -> None:
    wanted = {"name": "look", "arguments": {"a": 1}}
    assert said(ToolCalls(names_only=True), calling(("look", '{"a": 2}')), wanted) is True


def test_the_calls_of_a_model_are_scored() -> None:
    answers = [call("look", a=1), say("I look.", call("look", a=2)), "no call"]
    rows = [{"prompt": name, "expected": {"name": "look", "arguments": {"a": 1}}} for name in "abc"]
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with open_platform(backend=ScriptedBackend(answers)) as platform:
        run = platform.evaluations.run("e", "scripted", rows, "tool_calls", tools=tools, concurrency=1, progress=False)
        outputs = [row.output for row in run.rows]
    assert run.score == pytest.approx(1 / 3)
    called = {"content": "I look.", "tool_calls": [{"name": "look", "arguments": '{"a": 2}'}]}
    assert json.loads(json.dumps(outputs[1], default=dict)) == called
    assert outputs[2] == "no call"
