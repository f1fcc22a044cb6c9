"""Numbers in texts: signs, ranges, currencies, groups of digits, and values that floats cannot tell apart."""

from fractions import Fraction
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.evaluation.scorers import Numeric
from modelyard.stated import NUMBER, number_in

TABLE = """
5 => 5
+5 => 5
-5 => -5
x = −5 => -5
x=–5 => -5
－５ => -5
１２ => 12
１２．５ => 12.5
٣٫ ٤ => 4
५ => 5
between 3-4 => 4
3–4 => 4
3−4 => 4
3 - 4 => 4
(3)-4 => 4
3%-4% => 4
$3-$4 => 4
10-20-30 => 30
2024-05-06 => 6
COVID-19 => 19
gpt-4 => 4
-$5 => -5
−$5 => -5
$-5 => -5
-€ 5.50 => -5.50
-US$5 => -5
$1,234.50 => 1234.50
1,234 => 1234
1,234,567.8 => 1234567.8
12,34,567 => 1234567
1'234'567 => 1234567
1 234 567 => 1234567
1.234,5 => 1234.5
1.234.567,89 => 1234567.89
1,5 => 5
1,2,3 => 3
0.1 => 0.1
.5 => 0.5
5. => 5
1e5 => 100000
1E-3 => 0.001
2.5e+2 => 250
3.14 is pi => 3.14
3.14.15 => 15
50% => 50
-0 => 0
"""


@each_case("line", TABLE[1:].splitlines())
def test_the_last_number_of_a_text(line: str) -> None:
    text, _, number = line.rpartition(" => ")
    assert number_in(text) == Fraction(number)
    assert Numeric().score(text, {"expected": number}) is True


@each_case("value", ["", "none", "-", "$", "e", True, float("nan"), float("inf"), "½"])
def test_without_a_number_there_is_none(value: Any) -> None:
    assert number_in(value) is None


@each_case(
    ("output", "expected", "rule", "equal"),
    [
        ("9007199254740993", 9007199254740993, Numeric(), True),
        ("9007199254740992", 9007199254740993, Numeric(), False),
        (9007199254740992, "9007199254740993", Numeric(), False),
        ("0.1", 0.1, Numeric(), True),
        ("0.10", 0.1, Numeric(), True),
        ("0.1000000000000000055", 0.1, Numeric(), False),
        ("1e400", 1.0, Numeric(), False),
        ("1.1", 1.0, Numeric(absolute=0.1), True),
        ("1.1000000001", 1.0, Numeric(absolute=0.1), False),
        ("110", 100, Numeric(relative=0.1), True),
        ("x = −5", -5, Numeric(), True),
        ("x = −5", 5, Numeric(), False),
        ([1, 2.5], 2.5, Numeric(), True),
    ],
)
def test_numbers_are_compared_as_they_are_written(output: Any, expected: Any, rule: Numeric, equal: bool) -> None:
    assert rule.score(output, {"expected": expected}) is equal


whole = st.integers(-(10**30), 10**30)
numbers = (
    whole
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=8)
)


@given(numbers, st.sampled_from(["{}", "the answer is {}.", "= {} !", "first 7, then {}", "({})", "${}"]))
def test_a_number_is_found_in_a_sentence(number: Any, sentence: str) -> None:
    wanted = Fraction(repr(number)) if isinstance(number, float) else Fraction(number)
    for minus in "-−":
        assert number_in(sentence.format(str(number).replace("-", minus))) == wanted


@given(whole)
def test_groups_of_digits_are_one_number(number: int) -> None:
    for group in (",", "'", "\u202f"):
        assert number_in(f"{number:,}".replace(",", group)) == number
    assert number_in(f"{number:,}.25") == number + (
        Fraction(1, 4) if number >= 0 and str(number) != "-0" else -Fraction(1, 4)
    )


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=5), st.sampled_from("-–−"))
def test_what_joins_numbers_is_no_sign(numbers: list[int], dash: str) -> None:
    found = NUMBER.finditer(dash.join(map(str, numbers)))
    assert [number_in(one[0]) for one in found] == numbers


@given(st.text() | st.text(st.sampled_from("0123456789.,-+eE$ ")))
def test_any_text_is_read(text: str) -> None:
    found = number_in(text)
    assert found is None or isinstance(found, Fraction)


def test_a_long_text_is_read() -> None:
    for piece in ("1", "1,", "1,234", "-", "1.234,", ".1", "1e", "$"):
        number_in(piece * 50_000)
