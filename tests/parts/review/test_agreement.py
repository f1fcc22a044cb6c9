"""How far judges and people agree, against worked examples of the literature."""

import math

from hypothesis import given
from hypothesis import strategies as st

from modelyard.parts.review.agreement import Confusion, cohen_kappa, fleiss_kappa, krippendorff_alpha

FLEISS = [
    [0, 0, 0, 0, 14],
    [0, 2, 6, 4, 2],
    [0, 0, 3, 5, 6],
    [0, 3, 9, 2, 0],
    [2, 2, 8, 1, 1],
    [7, 7, 0, 0, 0],
    [3, 2, 6, 3, 0],
    [2, 5, 3, 2, 2],
    [6, 5, 2, 1, 0],
    [0, 2, 2, 3, 7],
]
"""Ten things that fourteen raters put into five classes; kappa is 0.210 (en.wikipedia.org/wiki/Fleiss'_kappa)."""

KRIPPENDORFF = (
    "1 2 3 3 2 1 4 1 2 . . .",
    "1 2 3 3 2 2 4 1 2 5 . 3",
    ". 3 3 3 2 3 4 2 2 5 1 .",
    "1 2 3 3 2 4 4 1 2 5 1 .",
)
"""Four raters, with ratings missing: Krippendorff (2011), Computing Krippendorff's Alpha-Reliability, section C and D:
alpha is 0.743 for nominal and 0.849 for interval data."""

ratings = st.lists(st.lists(st.integers(0, 4).map(float), max_size=5), max_size=12)


def test_cohens_kappa_is_that_of_the_worked_example() -> None:
    """Fifty grant proposals that two readers accept or refuse (en.wikipedia.org/wiki/Cohen's_kappa): 0.4."""
    pairs = [(True, True)] * 20 + [(True, False)] * 5 + [(False, True)] * 10 + [(False, False)] * 15
    assert cohen_kappa(pairs) == 0.4 or math.isclose(cohen_kappa(pairs) or 0, 0.4)


def test_fleiss_kappa_is_that_of_the_worked_example() -> None:
    found = fleiss_kappa([[value for value, count in enumerate(row) for _ in range(count)] for row in FLEISS])
    assert found is not None
    assert round(found, 3) == 0.210


def test_krippendorffs_alpha_is_that_of_the_worked_example() -> None:
    raters = [line.split() for line in KRIPPENDORFF]
    units = [[float(value) for value in unit if value != "."] for unit in zip(*raters, strict=True)]
    assert round(krippendorff_alpha(units, "nominal") or 0, 3) == 0.743
    assert round(krippendorff_alpha(units, "interval") or 0, 3) == 0.849


@given(ratings)
def test_an_agreement_is_at_most_1_and_does_not_depend_on_order(rated: list[list[float]]) -> None:
    other = [list(reversed(row)) for row in reversed(rated)]
    for found, again in (
        (fleiss_kappa(rated), fleiss_kappa(other)),
        (krippendorff_alpha(rated), krippendorff_alpha(other)),
        (krippendorff_alpha(rated, "interval"), krippendorff_alpha(other, "interval")),
    ):
        assert (found is None) is (again is None)
        assert found is None or again is None or math.isclose(found, again, abs_tol=1e-9)
        assert found is None or found <= 1


@given(ratings)
def test_who_agrees_on_everything_agrees_fully_or_by_chance_alone(rated: list[list[float]]) -> None:
    same = [[row[0]] * len(row) for row in rated if row]
    for found in (fleiss_kappa(same), krippendorff_alpha(same), cohen_kappa([(row[0], row[0]) for row in same])):
        assert found in (None, 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=40))
def test_nominal_alpha_of_two_raters_is_kappa_with_common_shares(pairs: list[tuple[bool, bool]]) -> None:
    """Krippendorff's alpha for two raters without gaps is Scott's pi, corrected for the size of the sample."""
    found = krippendorff_alpha([(float(one), float(other)) for one, other in pairs])
    if found is None:
        return
    count, yes = 2 * len(pairs), sum(map(sum, pairs))
    apart = sum(one != other for one, other in pairs) / len(pairs)
    chance = 2 * yes * (count - yes) / (count * (count - 1))
    assert math.isclose(found, 1 - apart / chance)


def test_nothing_has_no_agreement() -> None:
    assert cohen_kappa([]) is fleiss_kappa([]) is fleiss_kappa([[1.0]]) is krippendorff_alpha([[1.0]]) is None
    assert Confusion().sensitivity is Confusion().specificity_interval() is None


def test_a_confusion_counts_what_the_judge_says_first() -> None:
    found = Confusion.of([(True, True)] * 8 + [(False, True)] * 2 + [(True, False)] + [(False, False)] * 9)
    assert found == Confusion(8, 1, 2, 9)
    assert (found.sensitivity, found.specificity) == (0.8, 0.9)
    interval = found.sensitivity_interval()
    assert interval is not None
    assert (round(interval.low, 3), round(interval.high, 3)) == (0.490, 0.943)
    assert found + found == Confusion(16, 2, 4, 18)
