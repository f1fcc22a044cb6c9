"""Comparisons and exports over HTTP."""

import json
from typing import Any

import pytest

from modelyard.domain.evaluation.statistics import wilson

PLACE = "/v2/local/demo"
COMPARE = f"{PLACE}/eval_results/compare"


@pytest.fixture
def ask(client: Any, platform: Any) -> Any:
    """Send as the holder of a key of the entity `local`, or of another."""

    def send(method: str, path: str, body: Any = None, *, entity: str = "local", **more: Any) -> Any:
        return client.send(method, path, body, key=platform.keys.create(entity).secret, auth="Basic", **more)

    return send


def test_two_runs_are_compared(ask: Any, platform: Any, scored_runs: Any) -> None:
    before = scored_runs.add(platform, scored_runs.questions([True] * 8 + [False] * 2))
    after = scored_runs.add(platform, scored_runs.questions([False] * 8 + [None] * 2))
    answer = ask("POST", COMPARE, {"baseline": before.id, "candidate": after.id})
    assert answer.status == 200, answer.raw
    (metric,) = answer.json["metrics"]
    assert (answer.json["rows"], metric["name"], metric["verdict"]) == (10, "exact", "worse")
    assert metric["paired"]["p"] == pytest.approx(2 / 256)
    assert metric["paired"]["interval"] == [-1.0, pytest.approx(1 - 2 * wilson(8, 8).low)]
    assert (metric["paired"]["count"], metric["only_baseline"], metric["all_rows"]["count"]) == (8, 2, 10)


def test_options_are_taken_and_wrong_ones_are_named_all_at_once(ask: Any, platform: Any, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([1.0, 2.0]))
    body = {"baseline": run.id, "candidate": run.id}
    assert ask("POST", COMPARE, {**body, "reducer": "max", "confidence": 0.9}).json["confidence"] == 0.9
    lower = ask("POST", COMPARE, {**body, "lower_is_better": ["exact"]}).json["metrics"]
    assert [metric["lower_is_better"] for metric in lower] == [True]
    wrong = ask("POST", COMPARE, {"baseline": 1, "candidate": run.id, "reducer": "mode"})
    assert wrong.status == 422
    assert [problem["loc"] for problem in wrong.json["detail"]] == [["body", "baseline"], ["body", "reducer"]]
    for name, value in (("confidence", 2), ("cluster_by", "document"), ("lower_is_better", ["exatc"])):
        answer = ask("POST", COMPARE, {**body, name: value})
        assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["body", name])


def test_a_run_is_exported_in_both_formats(ask: Any, platform: Any, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([True] * 3))
    path = f"{PLACE}/evaluation_runs/{run.id}/export"
    lines = ask("GET", path)
    assert lines.headers["content-type"] == "application/jsonl"
    assert [json.loads(line)["scores"][0]["value"] for line in lines.raw.splitlines()] == [True] * 3
    table = ask("GET", path, query="format=csv", check=False)
    assert table.headers["content-type"] == "text/csv; charset=utf-8"
    assert table.headers["content-disposition"] == 'attachment; filename="evaluation-run.csv"'
    assert table.raw.splitlines()[0].endswith(b",exact")
    assert len(table.raw.splitlines()) == 4


def test_a_run_without_rows_is_exported_as_nothing(ask: Any, platform: Any, scored_runs: Any) -> None:
    run = scored_runs.add(platform, [])
    answer = ask("GET", f"{PLACE}/evaluation_runs/{run.id}/export")
    assert (answer.status, answer.raw) == (200, b"")


def test_another_format_is_refused(ask: Any, platform: Any, scored_runs: Any) -> None:
    run = scored_runs.add(platform, [])
    answer = ask("GET", f"{PLACE}/evaluation_runs/{run.id}/export", query="format=xlsx")
    assert (answer.status, answer.json["detail"][0]["loc"]) == (422, ["query", "format"])


def test_runs_of_others_and_of_other_projects_are_not_found(ask: Any, platform: Any, scored_runs: Any) -> None:
    run = scored_runs.add(platform, scored_runs.questions([1.0]))
    body = {"baseline": run.id, "candidate": run.id}
    for path, given in ((f"/evaluation_runs/{run.id}/export", None), ("/eval_results/compare", body)):
        method = "GET" if given is None else "POST"
        assert ask(method, f"/v2/local/another{path}", given).status == 404
        assert ask(method, f"/v2/local/demo{path}", given, entity="other").status == 403
        assert ask(method, f"/v2/other/demo{path}", given, entity="other").status == 404
