"""Rows that go together, trials of a row, and rows drawn by score: estimates weigh them as they must."""

import math
import random
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.review.corrected import DesignedRow, of_design, of_numbers
from modelyard.parts.review.judges import JudgedRow, JudgedRows
from page_reader import Reader

Row = dict[str, Any]


def rows(count: int, talks: int, rate: float = 0.5, seed: int = 1) -> list[Row]:
    """Turns of conversations, in each of which all answers are right or wrong; the judge finds too much right."""
    chance = random.Random(seed)
    good = [chance.random() < rate for _ in range(talks)]
    return [
        {"prompt": f"question {at}", "talk": at % talks, "truth": good[at % talks], "mercy": chance.random() < 0.3}
        for at in range(count)
    ]


def answers(row: Mapping[str, Any]) -> Row:
    return {"truth": row["truth"], "verdict": row["truth"] or row["mercy"]}


def judge(output: Any, row: Mapping[str, Any]) -> bool:
    return bool(output["verdict"])


def label_all(platform: Platform, review: str, first: int | None = None) -> None:
    for row in platform.review.rows(review, "ann")[:first]:
        platform.review.label(review, "ann", row.place, row.output["truth"])


def width(interval: Any) -> float:
    assert interval is not None
    return float(interval.high - interval.low)


# ---- numbers


def test_rows_by_themselves_of_one_stratum_are_corrected_as_numbers() -> None:
    chance = random.Random(2)
    judged = [chance.gauss(3, 1) for _ in range(200)]
    people = [one + chance.gauss(0.5, 0.5) for one in judged[:50]]
    plain = of_numbers(judged, list(zip(judged, people, strict=False)))
    found = of_design([DesignedRow(one, at, 0, people[at] if at < 50 else None) for at, one in enumerate(judged)])
    assert plain.mean is not None
    assert found.mean is not None
    assert math.isclose(found.mean, plain.mean)
    assert width(found.interval) == pytest.approx(width(plain.interval), rel=0.05)


def test_a_stratum_weighs_as_much_as_its_rows() -> None:
    """By hand: 90 rows of which people find 20 % right, and 10 of which they find 80 % right: 0.9 * 0.2 + 0.1 * 0.8."""
    many = [DesignedRow(0.0, ("a", at), 0, float(at % 5 == 0) if at < 20 else None) for at in range(90)]
    few = [DesignedRow(1.0, ("b", at), 1, float(at % 5 > 0)) for at in range(10)]
    found = of_design([*many, *few], bounds=(0.0, 1.0))
    assert found.mean == pytest.approx(0.26)
    alone = of_design([*many, *few[:1], *(DesignedRow(1.0, ("b", at), 1) for at in range(1, 10))])
    assert alone.interval is None


def test_equal_rows_in_clusters_say_no_more_than_one_of_each() -> None:
    chance = random.Random(3)
    one = [(chance.random() < 0.5, chance.random() < 0.5) for _ in range(60)]

    def designed(times: int) -> Any:
        each = [DesignedRow(float(a), at, 0, float(b)) for at, (a, b) in enumerate(one) for _ in range(times)]
        return of_design(each, bounds=(0.0, 1.0)).interval

    assert width(designed(5)) == pytest.approx(width(designed(1)), rel=0.03)


# ---- drawing by score


def judged(values: list[float]) -> JudgedRows:
    found = {(f"row {at}", 0): JudgedRow(f"row {at}", f"id {at}", one) for at, one in enumerate(values)}
    return JudgedRows("s", found, False, 0)


def test_as_many_rows_are_drawn_of_each_score_with_the_chance_that_each_had() -> None:
    of = judged([1.0] * 90 + [0.0] * 8 + [2.0] * 2)
    drawn = of.drawn_by_score(0, 20)
    assert Counter(row.value for row, _ in drawn) == {1.0: 10, 0.0: 8, 2.0: 2}
    assert {row.value: chance for row, chance in drawn} == {1.0: 10 / 90, 0.0: 1.0, 2.0: 1.0}
    assert [row.value for row, _ in drawn[:6]] == [0.0, 1.0, 2.0] * 2
    many = judged([float(at) for at in range(100)])
    assert Counter(many.stratum(row.value) for row, _ in many.drawn_by_score(0, 40)) == dict.fromkeys(range(4), 10)
    assert len(judged([3.0] * 5).drawn_by_score(0, 9)) == 5


def test_each_row_of_a_score_is_drawn_as_often() -> None:
    of = judged([0.0] * 5 + [1.0] * 5)
    drawn = Counter(row.digest for seed in range(2000) for row, _ in of.drawn_by_score(seed, 4))
    assert all(abs(count - 800) < 120 for count in drawn.values())
    assert len(drawn) == 10


def test_labels_of_rows_drawn_by_score_correct_a_mean_and_a_judge(platform: Platform) -> None:
    data = rows(600, 600, 0.9)
    run = platform.evaluations.run("quiz", answers, data, judge)
    review = platform.review.start(run, rows=80, by_score=True)
    assert review.by_score
    shown = platform.review.rows(review.id, "ann")
    assert Counter(row.output["verdict"] for row in shown)[False] >= 35
    label_all(platform, review.id)
    found = platform.review.estimate(run)
    truth = sum(row["truth"] for row in data) / len(data)
    assert found.corrected.interval is not None
    assert truth in found.corrected.interval
    plain = sum(row.output["truth"] for row in shown) / len(shown)
    assert plain not in found.corrected.interval  # what labels say without their weights
    agreed = found.check.agreement
    assert agreed is not None
    assert agreed.specificity is not None
    passed = [answers(row)["verdict"] for row in data if not row["truth"]]
    assert 1 - sum(passed) / len(passed) in agreed.specificity
    assert agreed.alpha is None


def test_two_runs_whose_rows_were_drawn_by_score_are_compared(platform: Platform) -> None:
    data = rows(400, 400, 0.5)

    def worse(row: Mapping[str, Any]) -> Row:
        return answers({**row, "truth": row["truth"] and row["mercy"]})

    runs = [platform.evaluations.run("quiz", model, data, judge) for model in (answers, worse)]
    for run in runs:
        label_all(platform, platform.review.start(run, rows=300, by_score=True).id)
    found = platform.review.compare(*runs)
    lost = sum(row["truth"] and not row["mercy"] for row in data) / len(data)
    assert found.corrected.interval is not None
    assert -lost in found.corrected.interval


# ---- rows that go together


def test_rows_of_a_conversation_widen_the_interval(platform: Platform) -> None:
    run = platform.evaluations.run("quiz", answers, rows(300, 30), judge)
    label_all(platform, platform.review.start(run, rows=120).id)
    plain = platform.review.estimate(run).corrected
    together = platform.review.estimate(run, cluster_by="talk").corrected
    assert width(together.interval) > 1.5 * width(plain.interval)
    assert together.mean == pytest.approx(plain.mean or 0.0, abs=0.02)
    assert f"{platform.review.estimate(run, cluster_by='talk')}" in str(
        platform.evaluations.report(run, cluster_by="talk")
    )
    with pytest.raises(InvalidInput, match=r"cluster_by: the row .* has no input 'talks'"):
        platform.review.estimate(run, cluster_by="talks")
    other = platform.evaluations.run("quiz", answers, rows(300, 30, seed=5), judge)
    alone = platform.review.estimate(other).corrected
    assert alone.method == "rogan_gladen"
    assert width(platform.review.estimate(other, cluster_by="talk").corrected.interval) > 1.2 * width(alone.interval)
    both = [platform.review.compare(run, run, cluster_by=field) for field in (None, "talk")]
    assert [one.corrected.mean for one in both] == [0.0, 0.0]


def test_trials_of_a_row_go_together(platform: Platform) -> None:
    data = rows(60, 60)
    run = platform.evaluations.run("quiz", answers, data, judge, trials=4)
    review = platform.review.start(run, rows=200)
    assert review.population == 240
    label_all(platform, review.id)
    found = platform.review.estimate(run).corrected
    assert (found.rows, found.labelled) == (240, 200)
    once = platform.evaluations.run("quiz", answers, data, judge)
    label_all(platform, platform.review.start(once, rows=60).id)
    assert width(found.interval) == pytest.approx(width(platform.review.estimate(once).corrected.interval), rel=0.25)
    compared = platform.review.compare(run, run).corrected
    assert (compared.rows, compared.mean) == (240, 0.0)


# ---- doors


def test_both_are_there_through_every_door() -> None:
    with open_platform(entity="acme") as platform:
        run = platform.evaluations.run("quiz", answers, rows(60, 12), judge).run.id
        client, reader = client_of(platform), Reader(platform)
        made = client.ok("POST", "/v1/reviews", {"run": run, "rows": 40, "by_score": True})
        assert made["by_score"] is True
        label_all(platform, made["id"])
        asked = {"run": run, "cluster_by": "talk"}
        found = client.ok("GET", "/v1/judged/estimate", query=asked)
        mine = platform.review.estimate(run, cluster_by="talk").corrected
        assert mine.interval is not None
        assert (found["low"], found["high"]) == (mine.interval.low, mine.interval.high)
        wrong = client.send("GET", "/v1/judged/estimate", query={**asked, "cluster_by": "talks"})
        assert (wrong.status, wrong.locs) == (422, [["query", "cluster_by"]])
        two = {"baseline": run, "candidate": run, "cluster_by": "talk"}
        assert client.ok("GET", "/v1/judged/comparison", query=two)["difference"]["mean"] == 0.0
        there = reader.post("reviews", run=run, rows="10", seed="3", by_score="yes")
        assert "as many of each score" in reader.page(there)
