"""A report proposes `cluster_by` if rows that share a field are more alike than others."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from modelyard import Platform, open_platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


def report(platform: Platform, scored_runs: Any, given: list[tuple[str, bool]], **options: Any) -> Any:
    answers = [
        scored_runs.answer(f"question {n}", scores={"exact": value}, more={"text": text, "alone": n})
        for n, (text, value) in enumerate(given)
    ]
    return platform.evaluations.report(scored_runs.add(platform, answers), **options)


ALIKE = [(f"text {n % 6}", n % 6 < 3) for n in range(60)]
PROPOSAL = 'rows share text: cluster_by="text" widens the interval'


def test_the_shared_field_is_proposed_and_does_widen_the_interval(platform: Platform, scored_runs: Any) -> None:
    plain = report(platform, scored_runs, ALIKE)
    for shown in (str(plain), plain.markdown.replace("\\", ""), plain.html, plain._repr_html_()):
        assert PROPOSAL in shown.replace("&quot;", '"')
    clustered = report(platform, scored_runs, ALIKE, cluster_by="text")
    assert "widens" not in str(clustered)
    one, other = (found.metric("exact").interval for found in (plain, clustered))
    assert other.high - other.low > 1.25 * (one.high - one.low)


def test_rows_that_share_nothing_or_are_no_more_alike_get_no_proposal(platform: Platform, scored_runs: Any) -> None:
    random = Random(3)
    assert "cluster_by" not in str(report(platform, scored_runs, [(f"text {n}", n % 2 == 0) for n in range(60)]))
    mixed = [(f"text {n % 30}", random.random() < 0.5) for n in range(600)]
    assert "cluster_by" not in str(report(platform, scored_runs, mixed))


def test_two_labels_are_no_clusters(platform: Platform, scored_runs: Any) -> None:
    assert "cluster_by" not in str(report(platform, scored_runs, [(f"{n % 2}", n % 2 == 0) for n in range(60)]))


def test_a_run_without_rows_has_a_report(platform: Platform, scored_runs: Any) -> None:
    assert "0 rows" in str(report(platform, scored_runs, []))


@pytest.mark.parametrize("field", ["expected", "gold"])
@pytest.mark.parametrize("scorer", ["exact_match", "contains"])
def test_what_is_expected_is_no_cluster(platform: Platform, field: str, scorer: str) -> None:
    rows = [{"prompt": f"q{n}", field: "abcde"[n % 5], "text": f"text {n % 5}"} for n in range(50)]

    def right_on_three_labels(row: Any) -> str:
        return row[field] if row[field] in "abc" else "?"

    rule = {"type": scorer, "expected": field}
    run = platform.evaluations.run("labels", right_on_three_labels, rows, rule)
    assert f'cluster_by="{field}"' not in str(platform.evaluations.report(run))
    assert PROPOSAL in str(platform.evaluations.report(run))
