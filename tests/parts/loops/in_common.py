"""What this part brings to the tests of all parts."""

from typing import Any

from modelyard import Platform

KEYED = ("/v1/preview/training-loops",)
TASKS = [{"prompt": "Where is my order?", "expected": "On Friday."}]


def fill(platform: Platform) -> None:
    """Store a loop of one round, which has ended."""
    model = platform.models.create("looped", project="p", base_model="tabular-mini")
    platform.training.loop(model, TASKS, "token_f1", held_out=TASKS, rounds=1, samples=2, max_tokens=4).wait()


def record(yard: Any, platform: Platform) -> None:
    platform.models.create("learner", project="loops", base_model="tabular-mini", entity="acme")
    model = platform.models.find("learner", project="loops", entity="acme")
    assert model is not None
    platform.worker().beat()
    body = {"tasks": TASKS, "reward": {"type": "token_f1"}, "held_out": TASKS, "config": {"rounds": 2}}
    yard.send("POST", "/v1/preview/training-loops", {"model_id": model.id, **body})
