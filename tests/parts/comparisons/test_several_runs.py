"""Several runs in one comparison: which pairs, on which rows, and how much is found by chance alone."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlencode

import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.domain.canonical import digest
from modelyard.domain.evaluation.comparison import Comparison, Verdict
from modelyard.domain.evaluation.metrics import ScoredPrediction
from modelyard.domain.evaluation.pairing import compare
from modelyard.domain.evaluation.run import Prediction, Score
from modelyard.domain.identity import host
from modelyard.errors import InvalidInput
from modelyard.http.message import Request
from modelyard.parts.comparisons.several import corrected
from modelyard.parts.dashboard.app import Dashboard

NOW = datetime(2026, 11, 20, 9, 0, tzinfo=UTC)


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


def passing(count: int, of: int = 40) -> list[bool]:
    return [n < count for n in range(of)]


def three(platform: Platform, scored_runs: Any) -> list[Any]:
    return [
        scored_runs.add(platform, scored_runs.questions(passing(count)), f"m{count}:step1") for count in (5, 20, 38)
    ]


# ---- chance


def run_of(values: list[tuple[float, float]]) -> list[ScoredPrediction]:
    found = []
    for n, both in enumerate(values):
        key = digest({"n": n})
        made = Prediction(f"p-{key}", "a", "b", "m", {"n": n}, key, NOW, "run", output={"value": "x"})
        scores = [Score("s", "a", "b", made.id, f"scorer{at}", NOW, value={"value": v}) for at, v in enumerate(both)]
        found.append((made, scores))
    return sorted(found, key=lambda one: one[0].row_digest)


def wrong(found: list[Comparison]) -> bool:
    return any(one.verdict in (Verdict.BETTER, Verdict.WORSE) for pair in found for one in pair.metrics)


@pytest.mark.slow
def test_models_that_are_equal_seldom_get_any_verdict() -> None:
    """Four equal models and two metrics are twelve tests. At 95 %, one table in twenty may have a wrong verdict."""
    random, tables, uncorrected, family = Random(5), 150, 0, 0
    for _ in range(tables):
        runs = [run_of([(random.gauss(0, 1), random.gauss(0, 1)) for _ in range(25)]) for _ in range(4)]
        pairs = [compare(one, other, keep=0) for one, other in combinations(runs, 2)]
        uncorrected += wrong(pairs)
        family += wrong(corrected(pairs))
    assert family <= tables * 0.05 + 3 * (tables * 0.05 * 0.95) ** 0.5
    assert uncorrected > tables * 0.15, "the correction within pairs alone would do, so this test tests nothing"


def test_a_difference_that_is_large_is_found_after_the_correction(platform: Platform, scored_runs: Any) -> None:
    found = platform.evaluations.compare_all(three(platform, scored_runs))
    verdicts = {(one.candidate, one.baseline): one.comparison.metric("exact").verdict for one in found.pairs}
    assert verdicts == dict.fromkeys(
        [("m20:step1", "m5:step1"), ("m38:step1", "m5:step1"), ("m38:step1", "m20:step1")], "better"
    )


# ---- which pairs


def test_all_pairs_are_compared_or_those_with_the_baseline(platform: Platform, scored_runs: Any) -> None:
    runs = three(platform, scored_runs)
    every = platform.evaluations.compare_all(runs)
    assert (len(every.pairs), every.tests) == (3, 3)
    for given in (runs, runs[1:]):  # the baseline may be among them
        found = platform.evaluations.compare_all(given, baseline=runs[0])
        assert [(one.baseline, one.candidate) for one in found.pairs] == [
            ("m5:step1", "m20:step1"),
            ("m5:step1", "m38:step1"),
        ]


def test_a_pair_has_the_numbers_of_the_two_runs_alone_but_for_the_correction(
    platform: Platform, scored_runs: Any
) -> None:
    runs = three(platform, scored_runs)
    alone = platform.evaluations.compare(runs[0], runs[2]).metric("exact")
    one = platform.evaluations.compare_all(runs).pair("m5:step1", "m38:step1").metric("exact")
    assert (one.paired, one.baseline, one.candidate) == (alone.paired, alone.baseline, alone.candidate)
    assert one.corrected == pytest.approx(3 * alone.paired.p)


def test_a_pair_is_named_by_runs_ids_results_labels_and_models(platform: Platform, scored_runs: Any) -> None:
    runs = three(platform, scored_runs)
    ids = [run if isinstance(run, str) else run.id for run in runs]
    found = platform.evaluations.compare_all(runs)
    wanted = found.pair("m5:step1", "m38:step1")
    results = [platform.evaluations.result(id) for id in ids]
    for sides in (ids, results, [one.run for one in results], [*map(platform.evaluations.report, ids)]):
        assert found.pair(sides[0], sides[2]) is wanted
    assert found.pair("m5", results[2]) is found.pair(ids[0], "m38") is wanted
    for unknown in (("m5", "m6"), ("m38", "m5"), ("m5", "m5")):
        with pytest.raises(InvalidInput, match="must be one of those that were compared: m20:step1 with m5:step1, "):
            found.pair(*unknown)


def test_a_model_of_several_runs_names_none_of_them(platform: Platform, scored_runs: Any) -> None:
    runs = [scored_runs.add(platform, scored_runs.questions(passing(n)), f"m:step{n}") for n in (5, 20)]
    found = platform.evaluations.compare_all(runs)
    assert found.pair(runs[0], "m:step20") is found.pairs[0].comparison
    with pytest.raises(InvalidInput, match="several runs are of m: name one of m:step5, m:step20"):
        found.pair("m", "m:step20")


def test_each_pair_is_compared_on_the_rows_that_it_shares(platform: Platform, scored_runs: Any) -> None:
    counts = {"m1": 10, "m2": 20, "m3": 30}
    runs = [
        scored_runs.add(platform, scored_runs.questions([True] * count), f"{name}:step1")
        for name, count in counts.items()
    ]
    found = platform.evaluations.compare_all(runs)
    assert [one.comparison.metric("exact").paired.count for one in found.pairs] == [10, 10, 20]


def test_runs_of_one_model_are_told_apart_by_their_ids(platform: Platform, scored_runs: Any) -> None:
    runs = [scored_runs.add(platform, scored_runs.questions(passing(count))) for count in (5, 30)]
    found = platform.evaluations.compare_all(runs)
    assert [run.id for run in found.runs.values()] == [run.id for run in runs]
    assert all(run.id[-8:] in label for label, run in found.runs.items())


@pytest.mark.parametrize("count", [0, 1, 21])
def test_fewer_than_two_runs_and_too_many_are_refused(platform: Platform, scored_runs: Any, count: int) -> None:
    runs = [scored_runs.add(platform, scored_runs.questions([True])) for _ in range(count)]
    with pytest.raises(InvalidInput, match=f"runs: must have 2 to 20 runs with the baseline, and has {count}"):
        platform.evaluations.compare_all(runs)


def test_a_run_that_is_given_twice_and_a_run_alone_are_refused(platform: Platform, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True]))
    with pytest.raises(InvalidInput, match="runs: has a run twice"):
        platform.evaluations.compare_all([run, run.id])
    with pytest.raises(InvalidInput, match="runs: must be a list"):
        platform.evaluations.compare_all(run)


def test_runs_of_different_scorers_say_what_was_not_compared(platform: Platform, scored_runs: Any) -> None:
    runs = three(platform, scored_runs)
    other = scored_runs.add(platform, scored_runs.questions(passing(3), "words"), "other:step1")
    found = platform.evaluations.compare_all([*runs[:2], other], lower_is_better="exact")
    assert "m20:step1 is worse than m5:step1 on exact." in str(found)
    assert "other:step1 and m5:step1: not compared: exact, only the baseline has values of it" in str(found)


# ---- how it is shown


def test_it_is_shown_as_text_as_a_page_in_a_notebook_and_as_markdown(
    platform: Platform, scored_runs: Any, tmp_path: Path
) -> None:
    runs = three(platform, scored_runs)
    found = platform.evaluations.compare_all(runs, baseline=runs[0])
    for text in (str(found), found.html, found._repr_html_(), found.markdown):
        assert "p corrected for 2 tests" in text.replace("\\", "")
        assert "m38:step1" in text
    for ending in ("html", "md"):
        found.save(tmp_path / f"all.{ending}")
        assert (tmp_path / f"all.{ending}").read_text("utf-8").count("m38:step1")
    with pytest.raises(InvalidInput, match=r"must end in \.html or \.md"):
        found.save(tmp_path / "all.xml")


def test_the_pages(platform: Platform, scored_runs: Any) -> None:
    runs = three(platform, scored_runs)
    name = runs[0].evaluation
    reader: Any = Dashboard(platform, reader=host())

    def page(path: str, **query: str) -> str:
        asked = Request("GET", f"/dashboard/{path}", urlencode(query), [("host", "127.0.0.1")], iter([b""]))
        body: Any = reader.handle(asked).body
        return (body if isinstance(body, bytes) else b"".join(body)).decode()

    assert "/dashboard/comparisons/evaluation?name=" in page("comparisons")
    assert "3 runs compared, all pairs" in page("comparisons/evaluation", name=name)
    chosen = page("comparisons/evaluation", name=name, baseline=runs[1].id)
    assert "3 runs compared with m20:step1" in chosen
    assert [f'<a href="/dashboard/runs/{run.id}">' in chosen for run in runs] == [True] * 3
    pair = f"compare?{urlencode({'baseline': runs[1].id, 'candidate': runs[2].id})}".replace("&", "&amp;")
    assert f'<a href="/dashboard/{pair}">better</a>' in chosen
    assert "has no two completed runs" in page("comparisons/evaluation", name="another")
    assert f"/dashboard/runs/{runs[0].id}/by" in page(f"runs/{runs[0].id}")
    assert "m5:step1 by question" not in page(f"runs/{runs[0].id}/by")
    refused = page(f"runs/{runs[0].id}/by", field="qestion")
    assert "did you mean" in refused


def test_the_command_prints_and_saves_the_table(yard_file: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}", "expected": "1"} for n in range(12)]
    with open_platform(yard_file, project="p") as platform:
        for name, model in {"a": lambda row: "1", "b": lambda row: "2", "c": lambda row: row["prompt"]}.items():
            platform.evaluations.run(name, model, rows, "exact_match")
    page = tmp_path / "all.md"
    told = CliRunner().invoke(main, ["compare", "--store", str(yard_file), "a", "b", "c", "--save", str(page)])
    assert told.exit_code == 0, told.output
    assert "3 runs compared, all pairs" in told.output
    assert "3 runs compared" in page.read_text("utf-8")
    one = CliRunner().invoke(main, ["compare", "--store", str(yard_file), "b", "c", "--baseline", "a"])
    assert "p corrected for 2 tests" in one.output
