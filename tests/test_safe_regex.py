"""Patterns read as data, judged by the standard library's regular expressions."""

import re
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.safe_regex import MAX_TEXT, PatternError, example, matches, parse


def free(steps: int) -> None:
    """Work without a limit."""


PATTERNS = [
    "",
    "abc",
    "^a$",
    "a|bc|",
    "^(a|b)*$",
    "^[a-c]{2,3}$",
    "^[^a]+$",
    "a.c",
    "^\\d{3}-\\w+\\.[a-z]+$",
    "^\\s\\S\\D\\W$",
    "^(?:ab)+c?$",
    "^(a{2}){2}$",
    "^a{2,}$",
    "^a*?b+?c??$",
    "^[-a]$",
    "^[a\\]-]$",
    "^\\x61\\u0062\\n\\t\\$$",
    "^(a?){3}b$",
    "^a{0}b$",
    "^}$",
    "(^a|b$)",
    "\\ba\\b",
    "(a|b)\\b-",
    "a\\b$",
    "^(|a)+$",
    "^(?P<n>a)(?:b)$",
    "^(?!b)[a-c]",
]
LOOKING = [
    "(?=a)b*",
    "^(?=.*b)(?=.*c)[abc]{2,}$",
    "a(?!b)",
    "(?<=a)b",
    "(?<!a)b$",
    "^((?!bb)[abc])*$",
    "^(?=(a|bc)$)",
]
"""An example is not found for all of these."""


@each_case("pattern", PATTERNS)
def test_an_example_matches(pattern: str) -> None:
    assert re.search(pattern, example(parse(pattern), 0, free))


@each_case("pattern", PATTERNS + LOOKING)
def test_the_same_texts_match_as_in_the_standard_library(pattern: str) -> None:
    node = parse(pattern)
    for length in range(5):
        for letters in product("abc-", repeat=length):
            text = "".join(letters)
            assert matches(node, text, free) == bool(re.search(pattern, text)), text


atoms = st.sampled_from(["a", "b", "[ab]", "[^a]", ".", "\\d", "(a|b)", "(?:ab)", "1"])
quantified = st.builds(
    lambda atom, mark: atom + mark, atoms, st.sampled_from(["", "", "*", "+", "?", "{2}", "{0,2}", "{1,}"])
)
branches = st.lists(quantified, max_size=4).map("".join)
simple = st.builds(
    lambda start, parts, end: f"{start}({'|'.join(parts)}){end}",
    st.sampled_from(["", "^"]),
    st.lists(branches, min_size=1, max_size=3),
    st.sampled_from(["", "$"]),
)


@given(simple, st.text("ab1", max_size=6), st.integers(0, 8))
def test_any_simple_pattern_agrees_with_the_standard_library(pattern: str, text: str, least: int) -> None:
    node = parse(pattern)
    assert matches(node, text, free) == bool(re.search(pattern, text))
    try:
        made = example(node, least, free)
    except PatternError:
        return
    assert len(made) >= least
    assert re.search(pattern, made)


UNKNOWN = [
    "(",
    ")",
    "a)",
    "[",
    "[]",
    "[b-a]",
    "*a",
    "a**",
    "a{2}{3}",
    "a{3,2}",
    "{",
    "a{,2}",
    "^*",
    "(?>a)",
    "(?i)a",
    "(?=a)*",
]
UNKNOWN += ["\\B", "a\\b*", "\\1", "\\p{L}", "[[:alpha:]]", "\\", "a" * 2000, "(" * 500]


@each_case("pattern", UNKNOWN)
def test_what_is_not_simple_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        parse(pattern)


@each_case(("pattern", "least"), [("^a$", 2), ("a{5000}", 0), ("a", MAX_TEXT + 1), ("a$b", 0), ("[^\\s\\S]", 0)])
def test_no_example_is_an_error_and_not_a_wrong_text(pattern: str, least: int) -> None:
    with pytest.raises(PatternError):
        example(parse(pattern), least, free)


def test_all_places_that_are_looked_at_are_paid_for() -> None:
    paid: list[int] = []
    matches(parse("abc"), "x" * 100, paid.append)
    assert sum(paid) >= 100


def test_matching_asks_before_it_works() -> None:
    def spent(steps: int) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        matches(parse("(a+)+"), "aaa", spent)
