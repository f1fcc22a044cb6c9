"""What the dashboard shows of runs that Tinker's clients drive."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from driven_runs import BASE, Driven, opened, shown_run
from modelyard.domain.identity import Principal, Scope, host
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.tinker import pages as tinker
from modelyard.parts.tinker.records import CommandKind
from modelyard.platform.platform import Platform


@pytest.fixture
def platform() -> Iterator[Platform]:
    with opened() as platform:
        yield platform


@pytest.fixture
def shown(platform: Platform) -> Driven:
    return shown_run(platform, "acme", "sums")


def page(
    platform: Platform, *segments: object, status: int = 200, query: str = "", reader: Principal | None = None
) -> str:
    """The text of a page. Every reader but the host sees what is his only."""
    path = "/".join(str(segment).replace(":", "%3A") for segment in segments)
    request = Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""]))
    response = Dashboard(platform, reader=reader or host()).handle(request)
    body: Any = response.body
    assert response.status == status, path
    return (body if isinstance(body, bytes) else b"".join(body)).decode()


def test_no_run(platform: Platform) -> None:
    assert "No run yet" in page(platform, "tinker")


def test_runs_are_listed_with_their_model_loss_and_state(platform: Platform, shown: Driven) -> None:
    text = page(platform, "tinker")
    run = platform.compat.training_runs.get(shown.run)
    loss = platform.compat.training_runs.metrics(run)[-1].values["loss"]
    for part in (f"/dashboard/models/{run.model_id}", BASE, "open", f"{loss:.4g}", f"{shown.session}%3Atrain%3A0"):
        assert part in text
    platform.compat.training_runs.unload(shown.run)
    shown.work()
    assert ">ended<" in page(platform, "tinker")


def test_a_run_shows_its_curves_client_and_checkpoints(platform: Platform, shown: Driven) -> None:
    shown.save(8, "brief", ttl_seconds=60)
    platform.compat.training_runs.save(shown.run, 9, CommandKind.SAVE_FOR_SAMPLER, "sampled")
    shown.work()
    text = page(platform, "tinker", shown.run)
    run = platform.compat.training_runs.get(shown.run)
    assert "<title>loss</title>" in text
    assert "rank 4, on attn, mlp, unembed" in text
    assert "<bdi>sums</bdi> 0.38.0" in text
    paths = [f"tinker://{shown.run}/{name}" for name in ("weights/end", "weights/brief", "sampler_weights/sampled")]
    at = [text.index(path) for path in paths]
    assert at == sorted(at, reverse=True)
    assert f"/dashboard/models/{run.model_id}/1" in text
    assert f"/dashboard/jobs/{run.job_id}" in text
    assert text.count("never") == 2
    assert "data-live" in text
    platform.compat.training_runs.unload(shown.run)
    shown.work()
    ended = page(platform, "tinker", shown.run)
    assert "it was unloaded" in ended
    assert "data-live" not in ended


def test_a_run_shows_its_tokens_and_its_last_commands(platform: Platform, shown: Driven) -> None:
    run = platform.compat.training_runs.get(shown.run)
    tokens = sum(row.values["num_trainable_tokens"] for row in platform.compat.training_runs.metrics(run))
    shown.learn(8, "pending")
    text = page(platform, "tinker", shown.run)
    assert tokens > 0
    assert re.search(rf"trained tokens.{{0,40}}>{tokens:.0f}<", text)
    commands = text.partition("Last commands")[2]
    kinds = re.findall(r">(create model|forward backward|optim step|save weights)<", commands)
    steps = ["optim step", "forward backward"] * 3
    assert kinds == ["forward backward", "save weights", *steps, "create model"]
    assert commands.index(">pending<") < commands.index(">done<")
    platform.compat.training_runs.command(shown.run, 9, CommandKind.REFUSED, {"why": "it has no rows"})
    shown.work()
    assert "it has no rows" in page(platform, "tinker", shown.run).partition("Last commands")[2]


def test_the_job_of_a_run_leads_to_the_run_and_its_model(platform: Platform, shown: Driven) -> None:
    run = platform.compat.training_runs.get(shown.run)
    text = page(platform, "jobs", run.job_id)
    assert f"/dashboard/tinker/{shown.run.replace(':', '%3A')}" in text
    assert f"/dashboard/models/{run.model_id}" in text
    assert f"/dashboard/models/{run.model_id}" in page(platform, "jobs")


def test_a_run_that_has_done_nothing_yet(platform: Platform) -> None:
    driven = Driven(platform)
    driven.begin()
    text = page(platform, "tinker", driven.run)
    assert "No optimizer step has been made yet" in text
    assert "Nothing has been saved yet" in text
    assert "Metadata" not in text


@pytest.mark.parametrize("scope", [Scope("other"), Scope("acme", frozenset({"elsewhere"}))])
def test_strangers_see_neither_the_list_nor_the_run(platform: Platform, shown: Driven, scope: Scope) -> None:
    stranger = Principal("stranger", str(scope.entity), scope)
    assert "No run yet" in page(platform, "tinker", reader=stranger)
    page(platform, "tinker", shown.run, reader=stranger, status=404)
    page(platform, "tinker", reader=stranger, query=f"after={shown.run}", status=404)


def test_older_runs_are_on_further_pages(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tinker, "PAGE", 2)
    driven = Driven(platform)
    made = [driven.begin(number) for number in range(5)]
    seen, query = [], ""
    while True:
        text = page(platform, "tinker", query=query)
        seen += re.findall(r"/tinker/([^\"]+)\"", text)
        further = re.search(r"tinker\?after=([^\"]+)\"", text)
        if further is None:
            break
        query = f"after={further[1]}"
    assert [one.replace("%3A", ":") for one in seen] == made[::-1]


def test_a_run_whose_model_was_deleted(platform: Platform, shown: Driven) -> None:
    run = platform.compat.training_runs.get(shown.run)
    platform.models.delete(run.model_id)
    page(platform, "tinker")
    page(platform, "tinker", shown.run)
