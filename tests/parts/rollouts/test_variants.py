"""A version of a variant is rolled out as a step of a model is, with the same guarantees."""

from collections.abc import Callable
from typing import Any

import pytest

from modelyard import NotWorse, Platform
from modelyard.domain.identity import Principal, Scope
from modelyard.errors import Conflict, NotFound
from modelyard.parts.rollouts.mirror import drain
from modelyard.parts.rollouts.records import RolloutState, Side, StagedRollout
from modelyard.parts.rollouts.upkeep import SETTLES

NAME = "variants/desk/support"
ALIAS = f"{NAME}@prod"
GUARD = NotWorse("thumbs", margin=0.3)
SAYS = {"old": Side.BASELINE, "new": Side.CANDIDATE}


@pytest.fixture
def desk(platform: Platform) -> Platform:
    for text in SAYS:
        platform.variants.publish("desk/support", model="echo", template=f"{text}: {{question}}")
    platform.variants.promote("desk/support", 1)
    return platform


def start(desk: Platform, **options: Any) -> StagedRollout:
    return desk.models.roll_out(NAME, 2, **{"canary": [0.5, 1], "guard": GUARD, "least": 5, **options})


def use(desk: Platform, good: Callable[[Side], bool], users: range, model: str = ALIAS) -> dict[int, Side]:
    """Let users ask and score their answers; returns the arms that really answered."""
    arms = {}
    for user in users:
        answer = desk.chat.complete(model=model, messages="hello", user=f"user {user}")
        arms[user] = SAYS[answer.text.partition(":")[0]]
        desk.rollouts.score(answer.id, good(arms[user]))
    return arms


def settle(desk: Platform) -> None:
    clock: Any = desk._runtime.clock
    clock.advance(SETTLES.total_seconds())


def pointed(desk: Platform) -> int:
    return next(one.number for one in desk.variants.aliases("desk/support") if one.name == "prod")


def test_what_is_not_worse_is_promoted(desk: Platform) -> None:
    rollout = start(desk)
    assert (rollout.kind, rollout.baseline, rollout.step, rollout.model) == ("variant", 1, 2, "support")
    arms = use(desk, lambda _: True, range(120))
    assert {one.side for one in desk.rollouts.answers(rollout.id)} == {*Side} == {*arms.values()}
    assert [one.side for one in desk.rollouts.answers(rollout.id)] == [*arms.values()]
    assert {one.step for one in desk.rollouts.answers(rollout.id) if one.side is Side.CANDIDATE} == {2}
    found = desk.rollouts.look(rollout.id)
    assert (found.state, pointed(desk)) == (RolloutState.WATCH, 2)
    settle(desk)
    assert {*use(desk, lambda _: True, range(200, 210)).values()} == {Side.CANDIDATE}
    assert desk.rollouts.look(rollout.id).state is RolloutState.PROMOTED
    moved = desk.variants.moves("desk/support", order="desc").page(1).items[0]
    assert (moved.number, moved.before, moved.verdict["rollout"]) == (2, 1, rollout.id)


def test_what_is_worse_goes_back_and_what_turns_out_worse_too(desk: Platform) -> None:
    rollout = start(desk)
    use(desk, lambda side: side is Side.BASELINE, range(60))
    assert desk.rollouts.look(rollout.id).state is RolloutState.ROLLED_BACK
    assert (pointed(desk), len([*desk.variants.moves("desk/support")])) == (1, 1)
    again = start(desk)
    use(desk, lambda _: True, range(120))
    assert (desk.rollouts.look(again.id).state, pointed(desk)) == (RolloutState.WATCH, 2)
    settle(desk)
    use(desk, lambda _: False, range(200, 220))
    assert desk.rollouts.look(again.id).state is RolloutState.ROLLED_BACK
    assert pointed(desk) == 1
    assert [one.change.value for one in desk.variants.moves("desk/support")] == ["promoted", "promoted", "rolled_back"]


def test_a_user_stays_on_one_arm_under_every_name_and_streamed(desk: Platform) -> None:
    start(desk, guard=NotWorse("thumbs", margin=0.9))
    first = use(desk, lambda _: True, range(40))
    assert use(desk, lambda _: True, range(40), "variants/local/desk/support@prod") == first
    for user, side in first.items():
        asked: Any = {"model": ALIAS, "messages": "hello", "user": f"user {user}"}
        text = "".join(delta.text for delta in desk.chat.stream(**asked))
        assert SAYS[text.partition(":")[0]] is side
    fixed = desk.chat.complete(model=f"{NAME}@1", messages="hello", user="user 1")
    with pytest.raises(NotFound):
        desk.rollouts.score(fixed.id, True)


def test_a_version_is_mirrored_with_its_prompt(desk: Platform) -> None:
    rollout = start(desk, shadow={"answers": 3, "share": 1.0, "purse": "1"})
    use(desk, lambda _: True, range(3))
    drain(desk._runtime)
    shadows = [one for one in desk.rollouts.answers(rollout.id) if one.shadow]
    assert [one.step for one in shadows] == [2, 2, 2]
    assert desk.rollouts.look(rollout.id).state is RolloutState.CANARY


def test_who_moves_the_alias_stops_the_rollout(desk: Platform) -> None:
    rollout = start(desk)
    desk.variants.promote("desk/support", 2)
    found = desk.rollouts.get(rollout.id)
    assert (found.state, found.reason) == (RolloutState.STOPPED, "the alias was pointed to version 2 by host")
    desk.variants.rollback("desk/support")
    again = start(desk)
    with pytest.raises(Conflict, match="stop it first"):
        start(desk)
    desk.variants.remove_alias("desk/support", "prod")
    assert desk.rollouts.get(again.id).reason == "the alias was removed by host"
    assert {one.id for one in desk.rollouts.list(model=NAME)} == {rollout.id, again.id}
    desk.variants.delete("desk/support")
    assert not [*desk.rollouts.list()]


def test_what_is_not_there_is_not_rolled_out(desk: Platform) -> None:
    with pytest.raises(NotFound, match="variants/desk/support@9' not found; the newest is 2"):
        desk.models.roll_out(NAME, 9)
    with pytest.raises(NotFound, match="Alias 'variants/desk/support@next'"):
        desk.models.roll_out(NAME, 2, alias="next")
    with pytest.raises(NotFound, match="Variant 'desk/suport'"):
        desk.models.roll_out("variants/desk/suport", 2)
    with pytest.raises(Conflict, match="'prod' points to version 1 already"):
        desk.models.roll_out(NAME, 1)
    other = desk.acting_as(Principal("eve", "acme", Scope("acme")))
    with pytest.raises(NotFound):
        other.models.roll_out(NAME, 2)
    rollout = start(desk)
    with pytest.raises(NotFound):
        other.rollouts.get(rollout.id)


def test_what_is_printed_says_how_it_stands(desk: Platform) -> None:
    rollout = start(desk, also={"errors": 0.5})
    assert str(rollout) == f"{ALIAS}, version 1 to 2: canary, 50% of the users have version 2."
    assert "no scores of both yet; not known yet whether it is worse by more than 0.3" in str(
        desk.rollouts.standing(rollout.id)
    )
    use(desk, lambda side: side is Side.BASELINE, range(60))
    found = str(desk.rollouts.standing(desk.rollouts.look(rollout.id).id))
    assert "thumbs, 50% of the users: -1.0000, surely -1.0000 to " in found
    assert "; worse by more than 0.3\nversion 1: " in found
    assert "mean 1.0000; " in found
    assert "errors: surely 0 to " in found
