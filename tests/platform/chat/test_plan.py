"""A plan is made once, and again by the next request after a setting has changed."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.backends import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import Completion
from modelyard.domain.identity import Limits, Principal, Scope
from modelyard.errors import BudgetExceeded, Forbidden, ModelNotFound, RateLimited, StoreClosed
from modelyard.platform.chat import plan as plans
from modelyard.platform.chat.plan import KeptPlans
from modelyard.platform.platform import Platform
from modelyard.stores.memory import MemoryStore


@pytest.fixture(params=["memory", "sqlite"])
def platform(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Platform]:
    backend = EchoBackend(("echo", "parrot"), pricing=Pricing(request="0.1"))
    with open_platform(None if request.param == "memory" else tmp_path / "yard.db", backend=backend) as opened:
        yield opened


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models for which a plan was made."""
    models: list[str] = []
    make = plans.make_plan

    def counted(runtime: Any, principal: Any, attribution: Any, model: str) -> Any:
        models.append(model)
        return make(runtime, principal, attribution, model)

    monkeypatch.setattr("modelyard.platform.chat.plan.make_plan", counted)
    return models


def ask(platform: Platform, model: str = "echo", **options: Any) -> Completion:
    return platform.chat.complete(model=model, messages="hi", **options)


def test_a_plan_is_made_once_for_each_model_and_project(platform: Platform, made: list[str]) -> None:
    for _ in range(3):
        ask(platform)
        ask(platform, "parrot")
        ask(platform, project="other")
    assert made == ["echo", "parrot", "echo"]


def test_bookings_of_others_do_not_end_it(platform: Platform, made: list[str]) -> None:
    other = platform.acting_as(Principal("other", "acme", Scope("acme"), "k"))
    ask(platform)
    ask(other)
    ask(platform)
    assert made == ["echo", "echo"]


def registered(price: str) -> Callable[[Platform], object]:
    return lambda platform: platform.catalogue.register(
        attrs.evolve(platform.catalogue.get("echo"), id="shop", pricing=Pricing(request=price)), answers_as="echo"
    )


def test_a_new_price_counts_from_the_next_request(platform: Platform) -> None:
    for price in ("1", "2", "5"):
        registered(price)(platform)
        ask(platform, "shop")
    assert [entry.cost for entry in platform.usage.list()] == [1, 2, 5]


def test_an_entry_answers_until_it_is_removed(platform: Platform) -> None:
    registered("1")(platform)
    ask(platform, "shop")
    platform.catalogue.unregister("shop")
    with pytest.raises(ModelNotFound):
        ask(platform, "shop")


def test_a_budget_counts_from_the_next_request_until_it_is_removed(platform: Platform) -> None:
    ask(platform)
    platform.usage.set_budget("0.05")
    with pytest.raises(BudgetExceeded):
        ask(platform)
    platform.usage.set_budget("0.15")
    ask(platform)
    with pytest.raises(BudgetExceeded):
        ask(platform)
    platform.usage.remove_budget()
    ask(platform)


def test_what_another_process_sets_counts_from_the_next_request(tmp_path: Path, made: list[str]) -> None:
    backend = EchoBackend(pricing=Pricing(request="0.1"))
    with open_platform(tmp_path / "a.db", backend=backend) as one, open_platform(tmp_path / "a.db") as other:
        ask(one)
        ask(other)
        ask(one)
        assert made == ["echo", "echo"]
        other.usage.set_budget("0.05")
        with pytest.raises(BudgetExceeded):
            ask(one)
        other.usage.remove_budget()
        ask(one)


def test_what_the_backend_offers_counts_at_once(platform: Platform) -> None:
    backend = platform._runtime.backend
    ask(platform, "parrot")
    only_echo = tuple(entry for entry in backend.entries() if entry.id == "echo")
    backend.entries = lambda: only_echo  # type: ignore[method-assign]
    with pytest.raises(ModelNotFound):
        ask(platform, "parrot")
    ask(platform)


def test_principals_have_plans_of_their_own(platform: Platform) -> None:
    ask(platform)
    few = platform.acting_as(Principal("few", "local", Scope("local"), "k", Limits(requests_per_minute=1)))
    ask(few)
    with pytest.raises(RateLimited):
        ask(few)
    narrow = platform.acting_as(Principal("narrow", "local", Scope("local", frozenset({"one"}))))
    ask(narrow, project="one")
    with pytest.raises(Forbidden):
        ask(narrow, project="two")


def test_a_closed_store_ends_it(platform: Platform) -> None:
    ask(platform)
    platform._runtime.store.close()
    with pytest.raises(StoreClosed):
        ask(platform)


def test_a_store_that_does_not_know_the_version_is_asked_each_time(
    made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryStore, "settings_version", lambda _: None)
    with open_platform() as opened:
        ask(opened)
        ask(opened)
    assert made == ["echo", "echo"]


def test_no_more_plans_are_kept_than_there_is_room_for(platform: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MOST_PLANS", 3)
    for number in range(10):
        ask(platform, project=f"p{number}")
    assert len(platform._runtime.cache.slot(KeptPlans)) <= 3


def test_an_alias_a_checkpoint_and_a_model_count_from_the_next_request() -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    with open_platform() as platform:
        model = platform.models.create("support", base_model="tabular-mini")

        def step(name: str) -> int | None:
            answer = platform.chat.complete(model=name, messages="a", max_tokens=2, temperature=0)
            return platform.usage.get(answer.id).checkpoint_step

        assert step("default/support") == 0
        platform.training.sft(model, [row] * 4).result()
        first, last = (checkpoint.step for checkpoint in platform.models.checkpoints(model))
        assert step("default/support") == last
        for pointed in (last, first):
            platform.models.promote(model, pointed, alias="prod")
            assert step("default/support:prod") == pointed
        platform.models.remove_alias(model, "prod")
        with pytest.raises(ModelNotFound):
            step("default/support:prod")
        platform.models.delete(model)
        with pytest.raises(ModelNotFound):
            step("default/support")
