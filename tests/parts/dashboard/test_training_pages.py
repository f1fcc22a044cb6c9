"""What the dashboard shows of training: rounds, trajectories, checkpoints with their lineage, and budgets."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any, ClassVar

import attrs
import pytest

from modelyard.clock import SystemClock
from modelyard.compose import open_platform
from modelyard.domain.identity import host
from modelyard.domain.usage import Budget
from modelyard.engines import TabularTrainer
from modelyard.formats.training_data import GROUPS
from modelyard.http.message import Request
from modelyard.parts.dashboard.app import Dashboard
from modelyard.parts.dashboard.pages.usage import budget_bar
from modelyard.platform.platform import Platform
from modelyard.platform.training.trajectories import summarize
from modelyard.protocols import Started

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


class Telling(TabularTrainer):
    """Says what a trainer of networks says of its jobs."""

    ABOUT: ClassVar[dict[str, Any]] = {
        "lora_rank": 12,
        "lora_alpha": 24.0,
        "trained_parameters": 5,
        "rows": 1234,
        "tokens": 4321,
        "longest": 77,
        "truncated": 0,
        "dropped": 3,
        "device": "cpu",
        "dtype": "float32",
        "memory": {"estimate": 1000, "limit": 2000},
    }

    def train(self, *args: Any) -> Iterator[Any]:
        for item in super().train(*args):
            yield attrs.evolve(item, about=self.ABOUT) if isinstance(item, Started) else item


class TickingClock(SystemClock):
    """A second later whenever it is asked."""

    def __init__(self) -> None:
        self._seconds = count()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=next(self._seconds))


ROWS = [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]}] * 4


def shown_facts(text: str) -> dict[str, str]:
    pairs = re.findall(r"<dt[^>]*>(.*?)</dt>\s*<dd[^>]*>(.*?)</dd>", text, re.DOTALL)
    return {name: re.sub("<[^>]*>", "", value) for name, value in pairs}


def test_a_checkpoint_says_what_it_was_trained_on_and_how_fast_and_its_scores_stand_above_its_metrics() -> None:
    with open_platform(trainers=[Telling()], clock=TickingClock()) as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        job = platform.training.sft(model, ROWS, batch_size=2)
        made = job.result()
        platform.evaluations.run("quiz", "local/p/m:step1", TASKS, "exact_match", project="p")
        text = page(platform, "models", model.id, 1)
        told = shown_facts(text)
        assert told["base model"] == "tabular-mini"
        assert told["adapter"] == "rank 12, alpha 24"
        assert (told["rows"], told["tokens"]) == ("1,234, 3 dropped", "4,321 to train an epoch; the longest row has 77")
        assert "sha256 " in told["data"]
        assert told["on"] == "cpu, float32"
        begun, *steps = [one for one in job.events() if one.type in ("training_started", "gradient_step")]
        tokens = sum(one.data["num_trainable_tokens"] for one in steps)
        speed = tokens / (steps[-1].created_at - begun.created_at).total_seconds()
        assert told["speed"] == f"{speed:.3g} trained tokens a second"
        assert f"{made.metrics['loss']:.4g}" == told["loss"]
        assert text.index("Evaluated by") < text.index("Metrics of the last step") < text.index("<dt>loss")
        job_page = page(platform, "jobs", job.id)
        assert "about (lora_rank 12, lora_alpha 24.0," in job_page
        assert "memory (estimate 1000, limit 2000))" in job_page
        of_job = shown_facts(job_page)
        assert {name: of_job[name] for name in ("adapter", "rows", "speed")} == {
            name: told[name] for name in ("adapter", "rows", "speed")
        }
        of_model = page(platform, "models", model.id)
        assert of_model.index("Evaluated by") < of_model.index("Metrics by checkpoint")
        untouched = shown_facts(page(platform, "models", model.id, 0))
        assert (untouched["base model"], "speed" in untouched) == ("tabular-mini", False)


def test_the_score_before_the_first_round_is_in_the_plot_of_a_loop(platform: Platform) -> None:
    loop, *_ = platform.training.list()
    first = platform.training.job(loop.id).metrics()[0]
    text = page(platform, "jobs", loop.id)
    assert (first.step, "held_out" in first.values) == (0, True)
    drawn = text[text.index("<title>reward and held_out</title>") :]
    assert re.search(r">\s*0\s*<", drawn[: drawn.index("</svg>")]), "the axis begins at 0"
    start = re.search(r"<tr>(?:(?!</tr>).)*>start<.*?</tr>", text, re.DOTALL)
    assert start is not None
    assert f"{first.values['held_out']:.4g}" in start[0]


def test_a_run_shows_the_turns_that_were_asked() -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    with open_platform() as platform:
        found = platform.evaluations.run(
            "quiz", "echo", [{"messages": turns, "expected": "4"}], "exact_match", project="p"
        )
        text = page(platform, "runs", found.run.id)
        assert "system: Be brief.\nuser: 2 + 2?\nexpected: 4" in text
        assert "{&quot;content" not in text


def test_scores_of_models_have_intervals(platform: Platform) -> None:
    text = page(platform, "runs")
    assert "Scores of these models" in text
    assert " to " in text[text.index("Scores of these models") :]


def test_scores_of_different_scorers_are_in_no_column_and_no_order_together() -> None:
    with open_platform(project="demo") as platform:
        rows = [{"prompt": str(number), "expected": str(number)} for number in range(4)]
        first = platform.evaluations.run("quiz", "echo", rows, "exact_match").run
        platform.evaluations.run("quiz", "tabular-mini", rows, "exact_match")
        platform.evaluations.rescore(first.id, {"short": lambda output, row: float(row["prompt"])})
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


def test_evaluations_of_deleted_checkpoints_stay_on_the_page_of_their_model() -> None:
    rows = [{"prompt": "a", "expected": "b"}]
    examples = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    with open_platform(project="bots") as platform:
        model = platform.models.create("m", base_model="tabular-mini")
        for _ in range(2):
            platform.training.sft(model, examples).wait()
        for step in (1, 2):
            platform.evaluations.run("quiz", f"bots/m:step{step}", rows, "exact_match")
        platform.models.delete_checkpoints(model, [1])
        text = page(platform, "models", model.id)
    shown = text.partition("Evaluated by")[2].partition("</section>")[0]
    assert [step for step in ("step 2<", "step 1, deleted<") if step in shown] == ["step 2<", "step 1, deleted<"]


@pytest.mark.parametrize(
    ("limit", "said"), [("2.50", "nearly used up"), ("2.40", "used up"), ("2.53", "nearly used up"), ("2.54", "")]
)
def test_a_budget_that_is_next_to_used_up_says_so(limit: str, said: str) -> None:
    text = budget_bar(Budget("acme", "acme", Decimal(limit), spent=Decimal("2.41")))
    assert re.findall('chip worse">([^<]*)<', text) == ([said] if said else [])


def test_budgets_of_keys_and_projects_of_every_entity_are_shown_page_by_page() -> None:
    with open_platform() as platform:
        key = platform.keys.create("acme", name="web").key
        platform.usage.set_budget("5", entity="acme", key_id=key.id)
        platform.usage.set_budget("6", entity="acme", project="desk")
        assert "project desk" in page(platform, "usage")
        assert "key " in page(platform, "usage")
        for number in range(60):
            platform.usage.set_budget("7", entity=f"tenant-{number:02}")
        first = page(platform, "usage")
        (after,) = re.findall(r"budgets_after=([^\"&]+)", first)
        second = page(platform, "usage", query=f"budgets_after={after}")
        shown = {*re.findall(r"tenant-\d\d", first + second)}
        assert len(shown) == 60
