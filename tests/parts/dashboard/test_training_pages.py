"""What the dashboard shows of training: rounds, trajectories, checkpoints with their lineage, and budgets."""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from random import Random
from typing import Any

import attrs
import pytest

from modelyard.compose import open_platform
from modelyard.domain.identity import host
from modelyard.formats.training_data import GROUPS
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.platform.platform import Platform
from modelyard.platform.training.trajectories import summarize

HOSTILE = "<script>alert('x')</script>"
TASKS = [{"prompt": f"{HOSTILE} {number}", "expected": "yes"} for number in range(4)]


def length(output: str, row: Mapping[str, Any]) -> float:
    return len(output) / 100


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform(randomness=Random(1).randbytes) as platform:
        model = platform.models.create("learner", project="bots", base_model="tabular-mini")
        platform.models.set_retention(model, keep_last=5, keep_best=("reward", 2))
        options: dict[str, Any] = {"rounds": 2, "samples": 2, "tasks_per_round": 2, "max_tokens": 4}
        platform.training.loop(model, TASKS, length, held_out=TASKS[:2], **options).wait()
        platform.models.promote(model, 2)
        offer = attrs.evolve(platform.catalogue.get("tabular-mini"), id="desk", name="Desk")
        platform.catalogue.register(offer, answers_as="bots/learner:prod")
        platform.usage.set_budget("5", entity="local", period="day", warn_at=Decimal("0.8"))
        yield platform


def page(platform: Platform, *segments: object, query: str = "") -> str:
    reader = Dashboard(platform, reader=host())
    path = "/".join(map(str, segments))
    response = reader.handle(Request("GET", f"/dashboard/{path}", query, [("host", "127.0.0.1")], iter([b""])))
    body: Any = response.body
    assert response.status == 200, path
    text = (body if isinstance(body, bytes) else b"".join(body)).decode()
    assert "<script>alert" not in text
    return text


def test_a_loop_shows_its_rounds_the_reward_first_and_the_jobs_that_train(platform: Platform) -> None:
    loop, first, second = platform.training.list()
    text = page(platform, "jobs", loop.id)
    titles = [text.index(f"<title>{name}</title>") for name in ("reward and held_out", "loss")]
    assert titles == sorted(titles)
    assert "best checkpoint" in text
    assert "rounds: all 2 are done" in text
    assert ">start<" in text
    for job in (first, second):
        assert f"/dashboard/jobs/{job.id}" in text
    assert f"/dashboard/jobs/{loop.id}" in page(platform, "jobs", first.id)


def test_a_dashboard_that_stands_alone_leads_to_no_page_about_an_api(platform: Platform) -> None:
    alone = page(platform, "jobs")
    assert "/dashboard/catalogue" in alone
    assert "/dashboard/api" not in alone


def test_a_job_shows_its_best_and_worst_trajectories(platform: Platform) -> None:
    job = [*platform.training.list()][-1]
    found = platform.training.job(job.id).trajectories()
    assert found is not None
    assert found.groups == 2
    assert [one.reward for one in found.best] == sorted((one.reward for one in found.best), reverse=True)
    assert found.best[0].reward >= found.worst[0].reward
    text = page(platform, "jobs", job.id)
    assert "Trajectories" in text
    assert "&lt;script&gt;alert" in text


def test_groups_that_teach_nothing_are_marked() -> None:
    def group(*rewards: float) -> Any:
        said = [{"role": "user", "content": "x"}]
        return GROUPS.of({"trajectories": [{"messages_and_choices": said, "reward": one} for one in rewards]})

    found = summarize([group(0.1, 0.9), group(0.5, 0.5, 0.5), group(0.0, 0.95, 1.0), group()])
    assert (found.groups, found.zero_variance, found.zero_variance_groups) == (4, 1, (1,))
    assert [one.reward for one in found.best] == [1.0, 0.9, 0.5]
    assert [one.reward for one in found.worst] == [0.0, 0.1, 0.5]


def test_a_model_shows_what_it_keeps_and_the_data_of_its_checkpoints(platform: Platform) -> None:
    model = platform.models.find("learner", project="bots")
    assert model is not None
    text = page(platform, "models", model.id)
    assert "the last 5, the 2 with the highest reward" in text
    assert text.count("sha256 ") == 2
    assert f"/dashboard/models/{model.id}/1" in text


def test_a_checkpoint_shows_its_job_its_parents_and_what_uses_it(platform: Platform) -> None:
    model = platform.models.find("learner", project="bots")
    assert model is not None
    *_, second = platform.training.list()
    text = page(platform, "models", model.id, 2)
    assert f"/dashboard/jobs/{second.id}" in text
    assert f"/dashboard/models/{model.id}/1" in text
    assert "/dashboard/catalogue/desk" in text
    runs = [run.id for run in platform.evaluations.runs.list(project="bots") if run.model.endswith("step2")]
    assert len(runs) == 1
    assert f"/dashboard/runs/{runs[0]}" in text
    assert "desk" not in page(platform, "models", model.id, 1)


def test_scores_of_models_have_intervals(platform: Platform) -> None:
    text = page(platform, "runs")
    assert "Scores of these models" in text
    assert " to " in text[text.index("Scores of these models") :]


def test_scores_of_different_scorers_are_in_no_column_and_no_order_together() -> None:
    with open_platform(project="demo") as platform:
        rows = [{"prompt": str(number), "expected": str(number)} for number in range(4)]
        first = platform.evaluations.run("quiz", "echo", rows, "exact_match").run
        platform.evaluations.run("quiz", "tabular-mini", rows, "exact_match")
        platform.evaluations.rescore(first.id, {"short": lambda output, row: 3.0})
        text = page(platform, "runs")
        matrix = text[text.index("Scores of these models") :]
        assert "quiz: exact_match" in matrix
        assert "quiz: short, rescored" in matrix
        for line in matrix.split("<tr>")[2:]:
            assert line.count("–") == ("echo" not in line)
        ordered = re.findall(
            r"exact_match|short, rescored", page(platform, "runs", query="sort=score").split("Scores of")[0]
        )
        assert ordered == ["exact_match", "exact_match", "short, rescored"]


def test_budgets_show_their_period_and_when_they_warn(platform: Platform) -> None:
    text = page(platform, "usage")
    assert "day" in text
    assert "80 %" in text
