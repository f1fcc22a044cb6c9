"""Versions, aliases, lineage and tenants, on each store."""

from typing import Any

import pytest

from modelyard import Platform, Principal, Scope, open_platform
from modelyard.errors import Conflict, Forbidden, InvalidInput, ModelNotFound, NotFound, UnsupportedParameter
from modelyard.parts.variants.naming import MAX_NAME, VariantName
from modelyard.parts.variants.service import MAX_NOTE, Variants
from modelyard.testing import ManualClock

NAME = "desk/support"


def published(platform: Platform, *systems: str, name: str = NAME) -> Variants:
    for system in systems:
        platform.variants.publish(name, model="echo", system=system)
    return platform.variants


def tenant(platform: Platform, entity: str, *projects: str) -> Variants:
    scope = Scope(entity, frozenset(projects) if projects else None)
    return platform.acting_as(Principal("key", entity, scope, "key-id")).variants


# ---- versions


def test_versions_are_numbered_never_change_and_say_where_they_come_from(platform: Platform) -> None:
    variants = published(platform, "a", "b", "c")
    made = list(variants.versions(NAME))
    assert [(one.number, one.content.system, one.parent, one.by) for one in made] == [
        (1, "a", None, "host"),
        (2, "b", 1, "host"),
        (3, "c", 2, "host"),
    ]
    assert len({one.digest for one in made}) == 3
    back = variants.publish(NAME, model="echo", system="a", note="it was better", parent=1)
    assert (back.number, back.parent, back.note, back.digest) == (4, 1, "it was better", made[0].digest)
    assert list(variants.versions(NAME))[:3] == made
    assert [one.number for one in variants.lineage(f"{NAME}@4").parents] == [1]
    assert [one.number for one in variants.lineage(f"{NAME}@3").parents] == [2, 1]
    assert variants.get(NAME).last_number == 4


def test_what_is_published_again_is_the_version_that_is_there(platform: Platform) -> None:
    variants = published(platform, "a", "b")
    again = variants.publish(NAME, model="echo", system="b", note="another note")
    assert (again.number, again.note) == (2, "")
    assert variants.read_file(variants.file(NAME)) == again
    assert variants.get(NAME).last_number == 2
    assert variants.read_file(variants.file(f"{NAME}@1")).number == 3


def test_a_name_means_a_number_an_alias_or_the_newest(platform: Platform) -> None:
    variants = published(platform, "a", "b", "c")
    variants.promote(NAME, 2)
    for name, number in ((NAME, 3), (f"{NAME}@latest", 3), (f"{NAME}@1", 1), (f"{NAME}@prod", 2)):
        for prefix in ("", "variants/", "local/", "variants/local/"):
            assert variants.version(prefix + name).number == number
    for name in (f"{NAME}@4", f"{NAME}@0", f"{NAME}@beta", "desk/other", f"desk/{NAME}x"):
        with pytest.raises((NotFound, Forbidden)):
            variants.version(name)
    for name in ("support", "", "a/b/c/d", f"{NAME}@", f"{NAME}@A", f"{NAME}:3", f"{NAME}@1@2", "ä/b"):
        with pytest.raises(InvalidInput):
            variants.version(name)
    assert variants.get(variants.get(NAME).id) == variants.get(NAME)


@pytest.mark.parametrize(
    ("changes", "error", "place"),
    [
        ({"name": "support"}, InvalidInput, "name"),
        ({"name": f"{NAME}@3"}, InvalidInput, "name"),
        ({"name": "desk/.."}, InvalidInput, "name"),
        ({"name": "desk/" + "a" * (MAX_NAME + 1)}, InvalidInput, "name"),
        ({"model": "nothing"}, ModelNotFound, ""),
        ({"model": "desk/untrained"}, ModelNotFound, ""),
        ({"model": "variants/desk/first"}, InvalidInput, "model"),
        ({"note": "x" * (MAX_NOTE + 1)}, InvalidInput, "note"),
        ({"parent": 7}, NotFound, ""),
        ({"model": "tabular-mini", "parameters": {"reasoning_effort": "low"}}, UnsupportedParameter, "parameters"),
    ],
)
def test_what_cannot_be_published_is_refused_and_leaves_nothing(
    platform: Platform, changes: dict[str, Any], error: type[Exception], place: str
) -> None:
    published(platform, "a", name="desk/first")
    with pytest.raises(error) as caught:
        platform.variants.publish(**{"name": NAME, "model": "echo", **changes})
    if isinstance(caught.value, InvalidInput):
        assert caught.value.problems[0].loc[0] == place
    assert [one.name for one in platform.variants.list()] == ["first"]


def test_a_trained_model_is_pinned_to_its_checkpoint(platform: Platform) -> None:
    platform.models.create("agent", project="desk", base_model="tabular-mini")
    for model in ("desk/agent", "local/desk/agent", "desk/agent:latest", "wandb-artifact:///local/desk/agent:step0"):
        made = platform.variants.publish(f"desk/{len(list(platform.variants.list()))}", model=model)
        assert made.content.model == "desk/agent:step0"
    found = platform.variants.lineage("desk/0")
    assert found.checkpoint is not None
    assert (found.checkpoint.model.name, found.checkpoint.checkpoint.step) == ("agent", 0)


def test_two_versions_are_compared(platform: Platform) -> None:
    variants = published(platform, "Be brief.\nBe kind.")
    variants.publish(NAME, model="echo", system="Be brief.\nBe exact.", parameters={"max_tokens": 9})
    found = variants.diff(f"{NAME}@1", NAME)
    assert (found.before.number, found.after.number, found.changed) == (1, 2, ("parameters", "system"))
    assert '-Be kind."""' in found.text.splitlines()
    assert '+Be exact."""' in found.text.splitlines()
    same = variants.diff(NAME, NAME)
    assert (same.changed, same.text) == ((), "")


def test_versions_and_variants_are_read_in_pages_both_ways(platform: Platform) -> None:
    variants = published(platform, "a", "b", "c")
    published(platform, "a", name="desk/other")
    first = variants.versions(NAME).page(limit=2)
    assert ([one.number for one in first.items], first.has_more) == ([1, 2], True)
    assert [one.number for one in variants.versions(NAME).page(after=first.items[-1].id).items] == [3]
    assert [one.number for one in variants.versions(NAME, order="desc")] == [3, 2, 1]
    page = variants.list(project="desk").page(limit=1)
    assert [one.name for one in variants.list(project="desk").page(after=page.items[0].id).items] == ["other"]
    for foreign in (variants.version("desk/other").id, "nothing"):
        with pytest.raises(NotFound):
            variants.versions(NAME).page(after=foreign)


# ---- aliases


def test_an_alias_moves_and_goes_back_as_often_as_it_was_moved(platform: Platform) -> None:
    variants = published(platform, "a", "b", "c")
    for number in (1, 2, 3):
        variants.promote(NAME, number)
    assert variants.promote(NAME, 3).count == 3  # it is there already
    assert [variants.rollback(NAME).number for _ in range(2)] == [2, 1]
    with pytest.raises(Conflict, match="nothing before it"):
        variants.rollback(NAME)
    variants.promote(NAME, 3)
    assert variants.rollback(NAME).number == 1
    told = [(move.change, move.before, move.number) for move in variants.moves(NAME)]
    assert told[:4] == [("promoted", None, 1), ("promoted", 1, 2), ("promoted", 2, 3), ("rolled_back", 3, 2)]
    assert [move.count for move in variants.moves(NAME)] == list(range(1, 8))
    assert [(one.name, one.number, one.previous) for one in variants.aliases(NAME)] == [("prod", 1, None)]
    assert variants.remove_alias(NAME, "prod").number is None
    assert variants.aliases(NAME) == ()
    for ask in (variants.rollback, lambda name: variants.remove_alias(name, "prod")):
        with pytest.raises(NotFound):
            ask(NAME)
    for alias in ("latest", "step3", "v3", "3", "PROD"):
        with pytest.raises(InvalidInput):
            variants.promote(NAME, 1, alias)
    with pytest.raises(NotFound):
        variants.promote(NAME, 9)


def test_a_variant_goes_with_its_versions_unless_an_alias_points_to_one(platform: Platform) -> None:
    variants = published(platform, "a", "b")
    variants.promote(NAME, 2, "beta")
    with pytest.raises(Conflict, match="beta"):
        variants.delete(NAME)
    variants.remove_alias(NAME, "beta")
    variants.delete(NAME)
    for ask in (variants.get, variants.version, variants.file, variants.delete):
        with pytest.raises(NotFound):
            ask(NAME)
    assert published(platform, "new").version(NAME).number == 1


# ---- tenants


def test_tenants_and_projects_stay_apart(platform: Platform) -> None:
    mine, theirs = tenant(platform, "acme"), tenant(platform, "globex")
    mine.publish(NAME, model="echo", system="mine")
    theirs.publish(NAME, model="echo", system="theirs")
    assert [one.entity for one in mine.list()] == ["acme"]
    assert mine.version(NAME).content.system == "mine"
    for ask in (theirs.get, theirs.version, theirs.versions, theirs.file, theirs.lineage, theirs.delete):
        with pytest.raises((NotFound, InvalidInput)):
            ask(mine.get(NAME).id)
        with pytest.raises(Forbidden):
            ask(f"acme/{NAME}")
    other = tenant(platform, "acme", "lab")
    assert list(other.list()) == []
    for ask in (other.get, lambda name: other.publish(name, model="echo"), lambda name: other.promote(name, 1)):
        with pytest.raises(Forbidden):
            ask(NAME)
    assert platform.variants.version(f"acme/{NAME}").content.system == "mine"


def test_deleting_an_entity_takes_its_variants(platform: Platform) -> None:
    mine = tenant(platform, "acme")
    mine.publish(NAME, model="echo")
    mine.promote(NAME, 1)
    tenant(platform, "globex").publish(NAME, model="echo")
    platform.delete_entity("acme")
    assert [one.entity for one in platform.variants.list()] == ["globex"]


@pytest.mark.servers
def test_variants_in_postgresql(yard_address: str) -> None:
    with open_platform(yard_address, artifacts="memory://", clock=ManualClock()) as platform:
        test_versions_are_numbered_never_change_and_say_where_they_come_from(platform)
        variants = platform.variants
        variants.publish(NAME, model="echo", parameters={"temperature": 1.0, "top_p": 1, "logit_bias": {"7": -1e-7}})
        text = variants.file(NAME)
        assert "temperature = 1.0" in text
        assert variants.read_file(text) == variants.version(NAME)
        variants.promote(NAME, 2)
        assert platform.chat.complete(model=f"variants/{NAME}@prod", messages="hi", max_tokens=3).text
        assert variants.promote(NAME, 3).before == 2
        assert variants.rollback(NAME).number == 2
        platform.delete_entity("local")
        assert list(variants.list()) == []


@pytest.mark.parametrize("text", ["variants/desk/support@prod", "acme/desk/variants.support:v3"])
def test_both_forms_of_a_name_are_read(text: str) -> None:
    found = VariantName.parse(text, "acme")
    assert found is not None
    assert (found.entity, found.project, found.name) == ("acme", "desk", "support")
    assert (found.alias, found.number) in (("prod", None), (None, 3))
