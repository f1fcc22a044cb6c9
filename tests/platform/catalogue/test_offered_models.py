"""Trained models as catalogue entries: priced by the entry, answered by what the name refers to, and not removed."""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Pricing
from modelyard.domain.identity import Principal, Scope
from modelyard.domain.models import Checkpoint, Model
from modelyard.errors import Conflict, Forbidden, InvalidInput, ModelNotFound
from modelyard.platform.catalogue.service import Catalogue
from modelyard.platform.chat.service import Chat
from modelyard.platform.platform import Platform

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TENANT = Principal("tenant", "rival", Scope("rival"), "key-1")
DEAR = Pricing(prompt=Decimal(2), completion=Decimal(3))


class Trainable(EchoBackend):
    """A backend whose models can be taken away."""

    def take_away(self, model: str) -> None:
        self._entries = tuple(entry for entry in self._entries if entry.id != model)


@pytest.fixture
def backend() -> Trainable:
    return Trainable(("echo", "base"))


@pytest.fixture
def platform(backend: Trainable) -> Iterator[Platform]:
    with open_platform(entity="acme", backend=backend) as platform:
        train(platform, 0, 1, 2)
        platform.models.promote("p/m", 1)
        yield platform


def train(platform: Platform, *steps: int) -> None:
    """Store the model acme/p/m with checkpoints of these steps."""
    ids = platform._runtime.ids
    model = Model(ids(), "acme", "p", "m", "base", NOW)
    made = [Checkpoint(ids(), model.id, "acme", "p", step, NOW, "digest") for step in steps]
    platform._runtime.store.transact(lambda tx: [tx.add(record) for record in (model, *made)])


def offer(platform: Platform, answers_as: str | None, id: str = "support") -> None:
    entry = attrs.evolve(platform.catalogue.get("base"), id=id, name="Support", pricing=DEAR)
    platform.catalogue.register(entry, answers_as=answers_as)


def listed(platform: Platform) -> list[str]:
    return [entry.id for entry in platform.catalogue.list()]


def ask(platform: Platform, model: str = "support") -> Any:
    """Ask as another tenant. Returns the ledger's entry."""
    answer = Chat(platform._runtime, TENANT).complete(model=model, messages="two words", store=True)
    return platform.usage.get(answer.id)


# ---- what answers, and at what price -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers_as", "step"),
    [
        ("p/m:prod", 1),
        ("acme/p/m:prod", 1),
        ("modelyard:///acme/p/m:prod", 1),
        ("p/m:step0", 0),
        ("p/m", 2),
        ("p/m:latest", 2),
    ],
)
def test_another_tenant_uses_the_entry_at_its_price(platform: Platform, answers_as: str, step: int) -> None:
    offer(platform, answers_as)
    assert "support" in listed(platform)
    assert platform.catalogue.get("support").pricing == DEAR
    booked = ask(platform)
    assert (booked.model, booked.base_model, booked.checkpoint_step) == ("support", "base", step)
    assert booked.cost == 2 * DEAR.prompt + 2 * DEAR.completion
    assert Chat(platform._runtime, TENANT).lineage(booked.id).checkpoint_step == step
    with pytest.raises(Forbidden):
        ask(platform, "acme/p/m:prod")


def test_the_alias_is_followed_at_each_request(platform: Platform) -> None:
    offer(platform, "p/m:prod")
    steps = [ask(platform).checkpoint_step]
    platform.models.promote("p/m", 2)
    steps.append(ask(platform).checkpoint_step)
    platform.models.rollback("p/m")
    assert [*steps, ask(platform).checkpoint_step] == [1, 2, 1]


def test_an_entry_may_have_the_name_of_the_model_or_of_its_base(platform: Platform) -> None:
    offer(platform, None, id="acme/p/m")
    offer(platform, "p/m:prod", id="base")
    assert ask(platform, "acme/p/m").checkpoint_step == 2
    booked = ask(platform, "base")
    assert (booked.model, booked.base_model, booked.checkpoint_step) == ("base", "base", 1)


def test_an_entry_is_evaluated_under_its_own_name(platform: Platform) -> None:
    offer(platform, "p/m:prod", id="acme/p/m")
    rows = [{"prompt": "hi", "expected": "hi"}]
    report = platform.evaluations.run("exam", "acme/p/m", rows, project="p")
    assert report.run.model == "weave:///acme/p/object/acme_p_m"
    assert {entry.checkpoint_step for entry in platform.usage.list()} == {1}


@pytest.mark.parametrize("answers_as", ["p/m:best", "p/m:step9", "p/other", "q/m", "acme/p/m:", "m"])
def test_only_what_exists_can_be_offered(platform: Platform, answers_as: str) -> None:
    with pytest.raises(InvalidInput, match="answers_as"):
        offer(platform, answers_as)
    assert listed(platform) == ["base", "echo"]


def test_only_the_host_offers_a_model(platform: Platform) -> None:
    own = Catalogue(platform._runtime, Principal("own", "acme", Scope("acme"), "key-2"))
    with pytest.raises(Forbidden):
        own.register(attrs.evolve(own.get("base"), id="support"), answers_as="p/m:prod")


# ---- what is listed always answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answers_as", "remove"),
    [
        ("p/m", lambda models: models.delete("p/m")),
        ("p/m:prod", lambda models: models.remove_alias("p/m", "prod")),
        ("p/m:step2", lambda models: models.delete_checkpoints("p/m", [2])),
    ],
    ids=["model", "alias", "checkpoint"],
)
def test_what_an_entry_needs_stays_until_it_is_unregistered(
    platform: Platform, answers_as: str, remove: Callable[[Any], object]
) -> None:
    if answers_as != "p/m:prod":
        platform.models.remove_alias("p/m", "prod")
    offer(platform, answers_as)
    with pytest.raises(Conflict, match="the catalogue offers it as 'support'"):
        remove(platform.models)
    ask(platform)
    platform.catalogue.unregister("support")
    remove(platform.models)
    with pytest.raises(InvalidInput, match="answers_as"):
        offer(platform, answers_as)


def test_what_no_entry_needs_can_be_removed(platform: Platform) -> None:
    offer(platform, "p/m:step2")
    platform.models.remove_alias("p/m", "prod")
    platform.models.delete_checkpoints("p/m", [1])
    assert ask(platform).checkpoint_step == 2


def test_retention_keeps_the_step_that_an_entry_names(platform: Platform) -> None:
    offer(platform, "p/m:step1")
    platform.models.remove_alias("p/m", "prod")
    platform.models.set_retention("p/m", keep_last=1)
    assert platform.models.apply_retention("p/m") == ()
    platform.catalogue.unregister("support")
    assert platform.models.apply_retention("p/m") == (1,)


def test_deleting_an_entity_unregisters_what_its_models_answer(platform: Platform) -> None:
    offer(platform, "p/m:prod")
    offer(platform, "echo", id="parrot")
    platform.delete_entity("acme")
    assert listed(platform) == ["base", "echo", "parrot"]
    with pytest.raises(ModelNotFound):
        platform.catalogue.get("support")


def test_an_entry_whose_base_model_is_offered_no_more_is_neither_listed_nor_answered(
    platform: Platform, backend: Trainable
) -> None:
    offer(platform, "p/m:prod")
    before = platform.catalogue.version
    backend.take_away("base")
    assert (listed(platform), platform.catalogue.version != before) == (["echo"], True)
    with pytest.raises(ModelNotFound):
        ask(platform)
