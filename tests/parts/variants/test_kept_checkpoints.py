"""The checkpoint of a version to which an alias points, or that is rolled out, is not deleted through any door."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from http_client import client_of
from modelyard import Platform, Principal, Scope, open_platform
from modelyard.errors import Conflict, ModelNotFound

NAME = "desk/support"
ROWS = [{"messages": [{"role": "user", "content": "ping"}, {"role": "assistant", "content": "pong"}]}] * 4


@pytest.fixture
def desk(platform: Platform) -> Platform:
    return prepared(platform)


def prepared(platform: Platform) -> Platform:
    """Return the platform with a model that has the steps 1 to 4, and a variant with versions of the first three."""
    platform.models.create("agent", project="desk", base_model="tabular-mini")
    for _ in range(4):
        platform.training.sft("desk/agent", ROWS, epochs=1)
    platform.worker().run_until_idle()
    for step in (1, 2, 3):
        platform.variants.publish(NAME, model=f"desk/agent:step{step}")
    return platform


def steps(platform: Platform) -> list[int]:
    return [one.step for one in platform.models.checkpoints("desk/agent")]


def retain(platform: Platform) -> list[int]:
    platform.models.set_retention("desk/agent", keep_last=1)
    platform.models.apply_retention("desk/agent")
    return steps(platform)


def refused(delete: Callable[[], object], words: str) -> None:
    with pytest.raises(Conflict, match=words):
        delete()


def test_what_an_alias_points_to_stays_until_it_moves_on(desk: Platform) -> None:
    desk.variants.promote(NAME, 1)
    why = "step 1 is kept: 'prod' of the variant desk/support points to version 1"
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [1, 3]), why)
    refused(lambda: desk.models.delete("desk/agent"), why)
    desk.models.unpin("desk/agent", 1)
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [1]), why)
    assert steps(desk) == [0, 1, 2, 3, 4]
    desk.variants.promote(NAME, 2)
    assert desk.models.delete_checkpoints("desk/agent", [1]).deleted_count == 1
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [2]), "version 2")
    desk.variants.remove_alias(NAME, "prod")
    assert desk.models.delete_checkpoints("desk/agent", [2]).deleted_count == 1
    assert desk.models.delete("desk/agent").deleted_checkpoints == 3


def test_retention_keeps_what_an_alias_points_to_and_where_a_rollback_leads(desk: Platform) -> None:
    desk.variants.promote(NAME, 1)
    assert retain(desk) == [0, 1, 4]
    desk.variants.publish(NAME, model="desk/agent:step4")
    desk.variants.promote(NAME, 4)
    assert retain(desk) == [0, 1, 4]
    desk.variants.publish(NAME, model="echo")
    desk.variants.promote(NAME, 5)
    assert retain(desk) == [0, 4]


def test_a_training_job_that_ends_keeps_it_too(desk: Platform) -> None:
    desk.variants.promote(NAME, 2)
    desk.models.set_retention("desk/agent", keep_last=1)
    desk.training.sft("desk/agent", ROWS, epochs=1)
    desk.worker().run_until_idle()
    assert steps(desk) == [0, 2, 5]


def test_each_of_several_aliases_and_variants_keeps_it_and_a_pin_is_left_alone(desk: Platform) -> None:
    desk.models.pin("desk/agent", 1)
    desk.variants.publish("desk/other", model="desk/agent:step1")
    desk.variants.promote("desk/other", 1)
    desk.variants.promote(NAME, 1)
    desk.variants.promote(NAME, 2)
    desk.variants.promote(NAME, 1, "beta")
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [1]), "pinned")
    desk.models.unpin("desk/agent", 1)
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [1]), "'beta' of the variant desk/support")
    desk.variants.remove_alias(NAME, "beta")
    desk.variants.remove_alias(NAME, "prod")
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [1]), "desk/other")
    assert retain(desk) == [0, 1, 4]
    desk.variants.remove_alias("desk/other", "prod")
    desk.models.pin("desk/agent", 1)
    desk.variants.delete("desk/other")
    assert retain(desk) == [0, 1, 4]
    desk.models.unpin("desk/agent", 1)
    assert retain(desk) == [0, 4]


def test_a_variant_of_another_entity_keeps_it_and_is_not_named(desk: Platform) -> None:
    desk.variants.publish("acme/secret/bot", model="local/desk/agent:step1")
    desk.variants.promote("acme/secret/bot", 1)
    with pytest.raises(Conflict) as error:
        desk.models.delete_checkpoints("desk/agent", [1])
    assert "a variant of another entity" in str(error.value)
    assert "secret" not in str(error.value)


def test_what_is_rolled_out_stays_until_the_rollout_has_ended(desk: Platform) -> None:
    desk.variants.promote(NAME, 1)
    rollout = desk.rollouts.start(f"variants/{NAME}", 3, canary=[0.5, 1])
    why = f"step 3 is kept: rollout {rollout.id} of the variant desk/support asks version 3; stop it first"
    refused(lambda: desk.models.delete_checkpoints("desk/agent", [3]), why)
    refused(lambda: desk.models.delete("desk/agent"), "rollout|prod")
    assert retain(desk) == [0, 1, 3, 4]
    desk.rollouts.stop(rollout.id)
    assert retain(desk) == [0, 1, 4]


def test_a_version_whose_checkpoint_was_deleted_says_so(desk: Platform) -> None:
    desk.variants.promote(NAME, 1)
    desk.variants.promote(NAME, 2)
    desk.variants.promote(NAME, 3, "beta")
    assert desk.chat.complete(model=f"variants/{NAME}@1", messages="ping").text  # who answers is known from now on
    desk.models.delete_checkpoints("desk/agent", [1])
    gone = "version 1 of desk/support asks desk/agent:step1, which was deleted; name another version, or publish one"
    for ask in (
        lambda: desk.chat.complete(model=f"variants/{NAME}@1", messages="ping"),
        lambda: next(iter(desk.chat.stream(model=f"variants/{NAME}@1", messages="ping"))),
        lambda: desk.evaluations.run("quiz", f"variants/{NAME}@1", [{"prompt": "a", "expected": "b"}], project="desk"),
    ):
        with pytest.raises(ModelNotFound, match=gone):
            ask()
    assert desk.variants.lineage(f"{NAME}@1").checkpoint is None
    for move in (
        lambda: desk.variants.promote(NAME, 1),
        lambda: desk.variants.rollback(NAME),
        lambda: desk.rollouts.start(f"variants/{NAME}", 1),
    ):
        refused(move, "version 1 of desk/support asks desk/agent:step1, which was deleted")
    assert desk.variants.version(f"{NAME}@prod").number == 2
    assert desk.chat.complete(model=f"variants/{NAME}@prod", messages="ping").text


def test_a_tenant_deletes_what_no_alias_of_its_variants_needs(desk: Platform) -> None:
    key: Any = desk.acting_as(Principal("key", "local", Scope("local"), "key-id"))
    desk.variants.promote(NAME, 1)
    refused(lambda: key.models.delete_checkpoints("desk/agent", [1]), NAME)
    assert key.models.delete_checkpoints("desk/agent", [2]).deleted_count == 1


@pytest.fixture
def acme() -> Iterator[Platform]:
    with open_platform(entity="acme") as platform:
        yield prepared(platform)


def test_over_http_it_is_a_conflict_and_a_version_without_it_is_not_found(acme: Platform) -> None:
    desk, client = acme, client_of(acme)
    desk.variants.promote(NAME, 1)
    of = f"/v1/preview/models/{desk.models.get('desk/agent').id}/checkpoints"
    kept = client.send("DELETE", of, {"steps": [1]})
    assert (kept.status, "the variant desk/support" in str(kept.json)) == (409, True)
    desk.variants.promote(NAME, 2)
    assert client.send("DELETE", of, {"steps": [1]}).status == 200
    for path, asked in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ping"}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "ping"}], "stream": True}),
        ("/v1/responses", {"input": "ping"}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "ping"}], "max_tokens": 9}),
        ("/v1/completions", {"prompt": "ping"}),
    ):
        gone = client.send("POST", path, {"model": f"variants/{NAME}@1", **asked})
        assert (gone.status, "asks desk/agent:step1, which was deleted" in str(gone.json)) == (404, True)
    moved = client.send("PUT", f"/v1/variants/{NAME}/aliases/prod", {"number": 1})
    assert (moved.status, "which was deleted" in str(moved.json)) == (409, True)
