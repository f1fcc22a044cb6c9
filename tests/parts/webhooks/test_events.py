"""Each event is posted once: whatever ends, whoever ends it, and through whichever door it comes."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import Platform, open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.schema import RECORDS
from modelyard.examples import support
from modelyard.parts.webhooks.records import WebhookEvent
from modelyard.protocols import Started, Step
from modelyard.stores.memory import MemoryStore
from modelyard.testing import ManualClock, RunTwiceStore

ROWS = [{"prompt": "yes", "expected": "yes"}, {"prompt": "no", "expected": "no"}]
OBJECTS = "weave:///local/p/object/"


@pytest.fixture(params=["once", "twice"])
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    store: Any = MemoryStore(RECORDS)
    store = RunTwiceStore(store) if request.param == "twice" else store
    with open_platform(store=store, clock=ManualClock()) as platform:
        platform.webhooks.add("https://hooks.example")
        yield platform


def posted(platform: Platform, type: WebhookEvent) -> list[dict[str, Any]]:
    bodies = [json.loads(one.body) for one in platform.webhooks.waiting()]
    return [body["data"] for body in bodies if body["type"] == type]


# ---- jobs and runs ---------------------------------------------------------------------------------------------------


def work(platform: Platform) -> None:
    """Have jobs of many kinds end in every way."""
    platform.models.create("support", base_model="tabular-mini")
    platform.training.sft("default/support", support().train)
    platform.jobs.cancel(platform.training.sft("default/support", support().train).id)
    platform.compat.responses.create(model="echo", input="hello", background=True)
    platform.jobs.cancel(platform.compat.responses.create(model="echo", input="hello", background=True).job_id)
    platform.chat.complete(model="echo", messages="a question", store=True)
    platform.traffic.submit("answers")
    line = json.dumps({"custom_id": "1", "method": "POST", "url": "/v1/embeddings", "body": {}}).encode()
    platform.compat.batches.create(
        platform.compat.files.create("a.jsonl", line, purpose="batch").id, endpoint="/v1/embeddings"
    )
    platform.evaluations.run("quiz", "echo", ROWS, project="p")
    platform.evaluations.submit("quiz", "echo", ROWS, project="p", shards=2)
    platform.evaluations.runs.cancel(platform.evaluations.submit("quiz", "echo", ROWS, project="p", shards=2).id)
    runs = platform.evaluations.runs
    for end in (runs.finish, runs.fail):
        end(runs.create(f"{OBJECTS}quiz", f"{OBJECTS}echo", project="p").id)
    platform.worker().run_until_idle()


@pytest.mark.slow
def test_each_end_is_posted_once(platform: Platform) -> None:
    work(platform)
    jobs = [*platform.jobs.list()]
    assert all(job.ended_at for job in jobs)
    assert len({job.kind for job in jobs}) >= 5
    assert {str(job.status) for job in jobs} >= {"succeeded", "cancelled"}
    assert Counter(one["id"] for one in posted(platform, WebhookEvent.JOB_ENDED)) == Counter(job.id for job in jobs)
    assert all(one["status"] == platform.jobs.get(one["id"]).status for one in posted(platform, WebhookEvent.JOB_ENDED))
    runs = [*platform.evaluations.runs.list(project="p")]
    assert {str(run.state) for run in runs} == {"completed", "failed", "cancelled"}
    assert Counter(one["id"] for one in posted(platform, WebhookEvent.RUN_ENDED)) == Counter(run.id for run in runs)


@pytest.mark.slow
def test_each_move_of_an_alias_is_posted_once(platform: Platform) -> None:
    platform.models.create("support", base_model="tabular-mini")
    for _ in range(2):
        platform.training.sft("default/support", support().train).wait()
    for step in (1, 2, 2):
        platform.models.promote("default/support", step, "prod")
    platform.models.rollback("default/support", "prod")
    moved = [(one["change"], one["from_step"], one["step"]) for one in posted(platform, WebhookEvent.ALIAS_MOVED)]
    assert moved == [("promoted", None, 1), ("promoted", 1, 2), ("rolled_back", 2, 1)]


# ---- budgets ---------------------------------------------------------------------------------------------------------

ASKED: dict[str, Callable[[Platform], object]] = {
    "complete": lambda platform: platform.chat.complete(model="echo", messages="hello"),
    "stream": lambda platform: list(platform.chat.stream(model="echo", messages="hello")),
    "n": lambda platform: platform.chat.complete(model="echo", messages="hello", n=2),
    "response": lambda platform: platform.compat.responses.create(model="echo", input="hello"),
    "in the background": lambda platform: (
        platform.compat.responses.create(model="echo", input="hello", background=True),
        platform.worker().run_until_idle(),
    ),
    "evaluation": lambda platform: platform.evaluations.run("quiz", "echo", ROWS, project="p"),
    "evaluation in a job": lambda platform: (
        platform.evaluations.submit("quiz", "echo", ROWS, project="p"),
        platform.worker().run_until_idle(),
    ),
}


@pytest.mark.parametrize("door", ASKED)
def test_a_budget_warns_once_whoever_spends_it(door: str, platform: Platform) -> None:
    priced = attrs.evolve(platform.catalogue.get("echo"), pricing=Pricing(request=Decimal(1)))
    platform.catalogue.register(priced)
    platform.usage.set_budget(100, warn_at="0.02")
    for _ in range(3):
        ASKED[door](platform)
    assert len(posted(platform, WebhookEvent.BUDGET_WARNED)) == 1


@attrs.frozen
class Stubborn:
    """Trains one step that costs, and then fails."""

    def methods(self, base_model: str) -> tuple[str, ...]:
        return ("sft",)

    def train(self, *_: Any) -> Iterator[Any]:
        yield Started(3)
        yield Step(1, {"num_trainable_tokens": 80})
        raise ValueError("it cannot go on")


def test_a_budget_that_only_the_end_of_a_failed_job_spends_warns_too() -> None:
    """What a job has trained since its last saved state is booked when it ends."""
    with open_platform(clock=ManualClock(), trainers=[Stubborn()]) as platform:
        platform.webhooks.add("https://hooks.example")
        base = platform.catalogue.get("tabular-mini")
        platform.catalogue.register(attrs.evolve(base, pricing=Pricing(training=Decimal(1))))
        platform.models.create("support", base_model="tabular-mini")
        platform.usage.set_budget(100, warn_at="0.5")
        job = platform.training.sft("default/support", support().train)
        platform.worker().run_until_idle()
        assert platform.jobs.get(job.id).status == "failed"
        (warned,) = posted(platform, WebhookEvent.BUDGET_WARNED)
        assert Decimal(warned["spent"]) == 80
