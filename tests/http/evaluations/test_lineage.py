"""The lineage of an evaluation run over HTTP."""

from collections.abc import Iterator
from typing import Any

import pytest

from modelyard.compose import open_platform
from modelyard.platform.platform import Platform

EVALUATION = "weave:///acme/p/object/e:v0"


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        opened.models.create("m", project="p", base_model="tabular-mini", entity="acme")
        yield opened


def test_the_lineage_of_a_run_is_shown_with_its_checkpoint(platform: Platform, client_for: Any) -> None:
    client = client_for(platform)
    model = platform.models.find("m", project="p", entity="acme")
    assert model is not None
    platform.models.promote(model, 0)
    first = platform.evaluations.runs.create(EVALUATION, "weave:///acme/p/object/m:step0", project="p", entity="acme")
    second = platform.evaluations.runs.create(EVALUATION, first.model, first.id, project="p", entity="acme")
    third = platform.evaluations.runs.create(EVALUATION, first.model, second.id, project="p", entity="acme")
    answer = client.send("GET", f"/v2/acme/p/evaluation_runs/{second.id}/lineage", auth="Basic")
    assert answer.status == 200, answer.raw
    shown = answer.json
    assert shown["run"]["evaluation_run_id"] == second.id
    assert [run["evaluation_run_id"] for run in shown["sources"]] == [first.id]
    assert [run["evaluation_run_id"] for run in shown["derived"]] == [third.id]
    assert (shown["missing_source"], shown["has_more"]) == (None, False)
    checkpoint = shown["checkpoint"]
    assert (checkpoint["model_id"], checkpoint["step"], checkpoint["aliases"]) == (model.id, 0, ["prod"])
    assert [(step["step"], step["job_id"], step["kind"]) for step in checkpoint["steps"]] == [(0, None, None)]


def test_the_lineage_of_a_run_that_is_not_here_is_404(platform: Platform, client_for: Any) -> None:
    client = client_for(platform)
    run = platform.evaluations.runs.create(EVALUATION, EVALUATION, project="q", entity="acme")
    for place, run_id in (("acme/p", run.id), ("acme/q", "none")):
        path = f"/v2/{place}/evaluation_runs/{run_id}/lineage"
        assert client.send("GET", path, auth="Basic").status == 404
