"""What an improvement may spend: its own budget, and those of who asks for it, whichever road is gone."""

from collections.abc import Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pytest

from modelyard import Platform, Pricing, open_platform
from modelyard.domain.usage import Budget
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer

WORDS = ("sea", "grass", "fire", "sun", "ice", "sand", "moss", "dawn", "rain", "wood")
SAID = [{"prompt": f"Say {word}.", "expected": f"The {word}."} for word in WORDS]
HAS = Decimal("0.1")


@pytest.fixture
def host() -> Iterator[Platform]:
    pricing = Pricing(completion=Decimal("0.001"), training=Decimal("0.0001"))
    backend = TabularBackend(pricing=pricing)
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as opened:
        opened.variants.publish("desk/support", model="tabular-mini", system="Say.")
        yield opened


def roads_of(platform: Platform) -> dict[str, Any]:
    sampled: dict[str, Any] = {"rounds": 9, "samples": 4, "max_tokens": 12}
    return {
        "prompt": platform.improve.prompt(reflection="tabular-mini", calls=400, max_tokens=12, concurrency=1),
        "sft": platform.improve.sft(learning_rate=1e-4, epochs=60),
        "rl": platform.improve.rl(learning_rate=1e-4, **sampled),
        "distil": platform.improve.distil(teacher="tabular-mini", **sampled),
    }


@pytest.mark.parametrize("of", ["key", "project", "entity"])
@pytest.mark.parametrize("road", ["prompt", "sft", "rl", "distil"])
def test_the_budgets_of_who_asks_hold_on_every_road(host: Platform, road: str, of: str) -> None:
    key = host.keys.create("local", name="theirs").key
    whose: dict[str, Any] = {"key": {"key_id": key.id}, "project": {"project": "desk"}, "entity": {}}[of]
    host.usage.set_budget(HAS, entity="local", **whose)
    theirs = host.acting_as(key.principal())
    asked = theirs.improve("desk/support", SAID, "token_f1", roads=[roads_of(host)[road]], seed=1, budget="5")
    host.worker().run_until_idle()
    spent = host.usage.get_budget(entity="local", **whose).spent
    booked = [one for one in host.usage.list() if not one.model.startswith("variants/")]
    assert Decimal(0) < spent <= HAS
    assert {one.key_id for one in booked} == {key.id}
    assert sum((one.cost for one in host.usage.list()), Decimal(0)) == spent
    assert asked.stored().ended


def test_what_a_road_spends_is_of_the_key_that_asks(host: Platform) -> None:
    key = host.keys.create("local", name="theirs").key
    host.usage.set_budget("50", entity="local", key_id=key.id)
    roads = [road for kind, road in roads_of(host).items() if kind != "prompt"]
    asked = host.acting_as(key.principal()).improve("desk/support", SAID, "token_f1", roads=roads, seed=1, budget="0.3")
    result = asked.result()
    assert all(Decimal(0) < one.spent <= Decimal("0.1") for one in result.roads)
    assert {one.key_id for one in host.usage.list()} == {key.id}
    total = sum((one.cost for one in host.usage.list()), Decimal(0))
    assert host.usage.get_budget(entity="local", key_id=key.id).spent == total
    ids = [road["budget_id"] for road in asked.stored().spec["roads"]]
    purses = host._runtime.store.read(lambda snapshot: [snapshot.get(Budget, one) for one in ids])
    assert [one.spent for one in purses] == [one.spent for one in result.roads]


def test_a_key_that_is_revoked_ends_what_it_has_asked_for(host: Platform) -> None:
    key = host.keys.create("local", name="theirs").key
    roads = [roads_of(host)["rl"]]
    asked = host.acting_as(key.principal()).improve("desk/support", SAID, "token_f1", roads=roads, seed=1, budget="5")
    host.keys.revoke(key.id)
    host.worker().run_until_idle()
    assert asked.stored().status == "failed"
    assert not list(host.usage.list())
