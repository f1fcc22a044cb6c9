"""Means that a judge gave, corrected by labels: what they are, and that their intervals contain the truth."""

import math
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.parts.review.agreement import Confusion
from modelyard.parts.review.corrected import beta_quantile, of_few_values, of_numbers, of_other_rows
from sampled import in_campaign

ROOT = Path(__file__).parents[3]

rows_of_yes_and_no = st.lists(st.tuples(st.booleans(), st.booleans()), min_size=5, max_size=40)


@given(rows_of_yes_and_no, st.lists(st.booleans(), max_size=60))
def test_both_estimators_are_one_for_yes_and_no(labelled: list[tuple[bool, bool]], others: list[bool]) -> None:
    """PPI++ with its weight tuned is Tenenbein's estimate, if the judge says both yes and no of labelled rows."""
    known = [(float(judge), float(people)) for judge, people in labelled]
    judged = [judge for judge, _ in known] + list(map(float, others))
    if len({judge for judge, _ in known}) < 2:
        return
    few = of_few_values(Counter(judged), [(judge, {people: 1.0}) for judge, people in known], (0.0, 1.0))
    many = of_numbers(judged, known)
    assert few.mean is not None
    assert many.mean is not None
    assert math.isclose(few.mean, many.mean, abs_tol=1e-9)
    assert few.interval is not None
    assert 0 <= few.interval.low <= few.interval.high <= 1


@given(rows_of_yes_and_no)
def test_if_all_rows_are_labelled_the_mean_is_that_of_people(labelled: list[tuple[bool, bool]]) -> None:
    known = [(float(judge), {float(people): 1.0}) for judge, people in labelled]
    found = of_few_values(Counter(judge for judge, _ in known), known, (0.0, 1.0))
    assert found.mean is not None
    assert math.isclose(found.mean, sum(people for _, people in labelled) / len(labelled))


def test_power_tuning_is_that_of_ppi() -> None:
    """The weight is cov(Y, f) / ((1 + n / N) var f), with f of the N rows without a label (PPI++, example 6.1)."""
    labelled = [(1.0, 2.0), (2.0, 2.5), (4.0, 3.0), (3.0, 3.5), (5.0, 4.0)]
    others = [1.0, 2.0, 2.0, 5.0, 4.0, 3.0, 1.0]
    f, y = [one for one, _ in labelled], [other for _, other in labelled]
    n, size = len(f), len(others)
    mean_f, mean_y = sum(f) / n, sum(y) / n
    covariance = sum((a - mean_f) * (b - mean_y) for a, b in labelled)
    weight = covariance / (1 + n / size) / sum((a - mean_f) ** 2 for a in f)
    wanted = mean_y + weight * (sum(others) / size - mean_f)
    found = of_numbers([*f, *others], labelled)
    assert found.mean is not None
    assert math.isclose(found.mean, wanted)


def test_a_judge_that_says_the_same_of_all_rows_changes_nothing() -> None:
    labelled = [(3.0, float(at % 3)) for at in range(12)]
    found = of_numbers([3.0] * 100, labelled)
    assert found.mean == 1.0
    assert found.interval is not None
    t, deviation = 2.200985, math.sqrt(8 / 11)
    assert math.isclose(found.interval.high, 1 + t * deviation / math.sqrt(12), rel_tol=1e-5)


def test_a_judge_that_is_always_right_leaves_the_error_of_the_rows_and_of_those_that_nobody_labelled() -> None:
    labelled = [(float(at), 2.0 * at) for at in range(8)]
    judged = [float(at) for at in range(50)]
    found = of_numbers(judged, labelled, bounds=(-1000.0, 1000.0))
    assert found.mean is not None
    assert found.interval is not None
    assert math.isclose(found.mean, 49.0)
    t, deviation = 2.0096, 2 * math.sqrt(sum((at - 24.5) ** 2 for at in range(50)) / 49)
    unseen = (1000 - 49) * 3.8415 / (8 + 3.8415)
    assert math.isclose(found.interval.high - 49, unseen + t * deviation / math.sqrt(50), rel_tol=1e-3)
    assert of_numbers(judged, labelled).interval is None


@each_case("value", [0.0, 0.1, 3.0, 1e9], ids=str)
def test_labels_that_are_all_the_same_do_not_prove_that_others_are(value: float) -> None:
    for count in (4, 40):
        labelled = [(float(at % 5), value + 3 * (at % 5)) for at in range(count)]
        for known in (labelled, [(0.1, value)] * count):
            judged = [one for one, _ in known] * 20
            assert of_numbers(judged, known).interval is None
            assert of_numbers(judged, known, bounds=(value, value)).interval is None
            found = of_numbers(judged, known, bounds=(value - 5, value + 20)).interval
            assert found is not None
            assert found.high - found.low > 3 / count


def test_without_labels_there_is_no_interval() -> None:
    assert of_few_values({1.0: 3, 0.0: 1}, [], (0.0, 1.0)).interval is None
    assert of_numbers([1.0, 2.0], [(1.0, 1.0)] * 3).interval is None
    assert of_other_rows(5, 10, Confusion(3, 0, 1, 0)).interval is None


def test_no_disagreement_in_few_labels_does_not_prove_the_judge_right() -> None:
    found = of_few_values({1.0: 500, 0.0: 500}, [(1.0, {1.0: 1.0})] * 10 + [(0.0, {0.0: 1.0})] * 10, (0.0, 1.0))
    assert found.mean == 0.5
    assert found.interval is not None
    assert found.interval.high - found.interval.low > 0.15


def test_rogan_and_gladens_estimate_is_that_of_a_published_example() -> None:
    """23 of 150 cows are positive by a test of sensitivity 0.96 and specificity 0.89: 5.1 (0 to 13) of 100, as the
    function epi.prev of the R package epiR has it."""
    found = of_other_rows(23, 150, Confusion(960, 110, 40, 890))
    assert found.mean is not None
    assert round(100 * found.mean, 1) == 5.1
    assert found.interval is not None
    assert (round(100 * found.interval.low), round(100 * found.interval.high)) == (0, 13)


def test_a_judge_no_better_than_chance_tells_nothing() -> None:
    found = of_other_rows(50, 100, Confusion(6, 5, 4, 5))
    assert (found.mean, found.interval) == (None, None)


def test_more_errors_of_the_judge_widen_the_interval() -> None:
    widths = []
    for wrong in (1, 5, 15):
        found = of_other_rows(300, 1000, Confusion(50 - wrong, wrong, wrong, 50 - wrong))
        assert found.interval is not None
        widths.append(found.interval.high - found.interval.low)
    assert widths == sorted(widths)


@each_case("share", [0.025, 0.3, 0.975], ids=str)
def test_quantiles_of_a_beta_distribution_are_those_of_scipy(share: float) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    for a, b in ((0.4, 3.2), (2.0, 2.0), (40.0, 0.7), (300.0, 900.0)):
        assert math.isclose(beta_quantile(share, a, b), beta.ppf(share, a, b), rel_tol=1e-6, abs_tol=1e-9)


# ---- worlds


def campaign(*options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "tests.campaigns.judges", "--short", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("worlds", ["400", in_campaign("2000")])
def test_intervals_contain_the_truth_as_often_as_they_say(worlds: str) -> None:
    done = campaign("--worlds", worlds)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("worlds", ["100", in_campaign("300")])
def test_an_interval_without_the_judges_error_contains_the_truth_too_seldom(worlds: str) -> None:
    done = campaign("--worlds", worlds, "--sabotage")
    assert done.returncode == 1, done.stdout + done.stderr
    assert all("outside of" in line for line in done.stdout.splitlines())
