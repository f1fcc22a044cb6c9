"""Reports of runs and comparisons say what labels show, through every door."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from http_client import client_of
from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.parts.review.records import Review
from page_reader import Reader

ROWS = [{"prompt": f"say {at}", "expected": f"say {at}" if at % 3 else "no"} for at in range(30)]
CANNOT_TELL = "the judge cannot tell a difference of this size"


def labelled(platform: Platform, runs: int = 2, first: int | None = None) -> list[str]:
    """Two equal runs with reviews, of which people find fewer rows right than the scorer does."""
    found = [
        platform.evaluations.run("quiz", "echo", ROWS, {"right": {"type": "exact_match"}}).run.id for _ in range(runs)
    ]
    for run in found:
        label(platform, platform.review.start(run, rows=12), 0, first)
    return found


def label(platform: Platform, review: Review, start: int, end: int | None) -> None:
    for row in platform.review.rows(review.id, "ann")[start:end]:
        value: Any = row.output == row.inputs["expected"] and row.place % 4 > 0
        platform.review.label(review.id, "ann", row.place, value)


def test_every_report_has_the_corrected_mean_and_difference(tmp_path: Path) -> None:
    path = str(tmp_path / "yard.db")
    with open_platform(path, entity="acme") as platform:
        before, after = labelled(platform)
        mean = f"right, corrected by what people say: {platform.review.estimate(before)}"
        between = platform.review.compare(before, after)
        difference = f"right, corrected by what people say: {between}; {CANNOT_TELL}"
        assert "from 12 labels here" in mean
        assert platform.evaluations.remarks(before) == (mean,)
        report, compared = platform.evaluations.report(before), platform.evaluations.compare(before, after)
        assert mean in str(platform.evaluations.result(before))
        for shown in (str(report), report.html, report.markdown, report._repr_html_()):
            assert mean in shown
        for shown in (str(compared), compared.html, compared.markdown, compared._repr_html_()):
            assert difference in shown
        ninety = platform.evaluations.report(before, confidence=0.9)
        assert f"{platform.review.estimate(before, confidence=0.9)}" in str(ninety)
        asked = {"baseline": before, "candidate": after}
        answer = client_of(platform).ok("POST", "/v2/acme/default/eval_results/compare", asked, auth="Basic")
        assert answer["remarks"] == [difference]
        reader = Reader(platform)
        assert mean in reader.page(f"runs/{before}")
        assert difference in reader.page(f"compare?baseline={before}&candidate={after}")
    said = CliRunner().invoke(main, ["runs", "show", before, "--store", path]).output
    assert mean in said
    fields = json.loads(CliRunner().invoke(main, ["runs", "show", before, "--json", "--store", path]).output)
    assert fields["remarks"] == [mean]
    for command in (["runs", "compare"], ["compare"]):
        assert difference in CliRunner().invoke(main, [*command, before, after, "--store", path]).output


def test_a_page_shows_the_labels_of_now() -> None:
    with open_platform(entity="acme") as platform:
        (run,) = labelled(platform, 1, first=4)
        reader = Reader(platform)
        assert "from 4 labels here" in reader.page(f"runs/{run}")
        label(platform, next(iter(platform.review.list())), 4, None)
        assert "from 12 labels here" in reader.page(f"runs/{run}")


def test_a_judge_that_changed_is_named_in_the_report() -> None:
    judge = {"type": "llm_judge", "model": "echo", "prompt": "yes {output}"}
    with open_platform() as platform:
        run = platform.evaluations.run("quiz", "echo", ROWS, {"judge": judge}).run.id
        review = platform.review.start(run, rows=4)
        for row in platform.review.rows(review.id, "ann"):
            platform.review.label(review.id, "ann", row.place, True)
        changed = platform.evaluations.rescore(run, {"judge": {**judge, "prompt": "yes! {output}"}})
        (said,) = platform.evaluations.remarks(changed)
        assert "not checked: its prompt, model or settings have changed" in said
        assert said in str(changed)


def test_every_door_says_that_a_judge_which_changed_is_not_checked(tmp_path: Path) -> None:
    judge = {"type": "llm_judge", "model": "variants/default/critic@prod", "prompt": "{output}"}
    path = str(tmp_path / "yard.db")
    store = ["--store", path]
    with open_platform(path, entity="acme") as platform:
        for words in ("yes {x}", "yes! {x}"):
            platform.variants.publish("default/critic", model="echo", template=words)
        platform.variants.promote("default/critic", 1)
        run = platform.evaluations.run("quiz", "echo", ROWS, {"judge": judge}).run.id
        review = platform.review.start(run, rows=4)
        for row in platform.review.rows(review.id, "ann"):
            platform.review.label(review.id, "ann", row.place, True)
        client, reader, two = client_of(platform), Reader(platform), {"baseline": run, "candidate": run}
        assert client.ok("GET", "/v1/judged/estimate", query={"run": run})["check"]["checked"]
        platform.variants.promote("default/critic", 2)
        found = client.ok("GET", "/v1/judged/estimate", query={"run": run})
        assert (found["check"]["checked"], found["low"]) == (False, None)
        reason = found["check"]["reason"]
        assert "its model has changed" in reason
        compared = client.ok("GET", "/v1/judged/comparison", query=two)
        assert compared["verdict"] == "the judge is not checked"
        for page in (
            f"runs/{run}",
            f"compare?baseline={run}&candidate={run}",
            f"reviews/{review.id}/results?person=ann",
        ):
            assert reason in reader.page(page)
        assert reason in str(platform.evaluations.result(run))
    assert reason in CliRunner().invoke(main, ["review", "estimate", run, *store]).output
    assert reason in CliRunner().invoke(main, ["runs", "show", run, *store]).output
    gate = CliRunner().invoke(main, ["review", "compare", run, run, "--not-worse", *store])
    assert (gate.exit_code, "the judge is not checked" in gate.output) == (1, True)


def test_without_labels_a_report_says_nothing_of_them() -> None:
    with open_platform() as platform:
        run = platform.evaluations.run("quiz", "echo", ROWS)
        assert platform.evaluations.remarks(run) == ()
        assert "people" not in str(run)
