"""What a scorer says of mirrored requests is kept for both arms, paid for by the purse, and shown."""

from decimal import Decimal
from typing import Any

import attrs
import pytest

from modelyard import Platform, Pricing
from modelyard.domain.evaluation.scorers import LlmJudge
from modelyard.errors import InvalidInput, ModelNotFound
from modelyard.parts.rollouts.mirror import drain
from modelyard.parts.rollouts.records import RolloutCursor, RolloutScore, RolloutState, Side, StagedRollout
from modelyard.platform.paging import iter_index_live

NAME, ALIAS = "variants/desk/support", "variants/desk/support@prod"
KIND = {"kind": {"type": "regular_expression", "pattern": "kind"}}


@pytest.fixture
def desk(platform: Platform) -> Platform:
    price = Pricing(prompt=Decimal("0.001"), completion=Decimal("0.002"))
    priced = attrs.evolve(platform.catalogue.get("echo"), id="priced", pricing=price)
    platform.catalogue.register(priced, answers_as="echo")
    for text in ("kind", "rude"):
        platform.variants.publish(
            "desk/support", model="priced", template=f"{text}: {{question}}", parameters={"max_tokens": 40}
        )
    platform.variants.promote("desk/support", 1)
    return platform


def start(desk: Platform, scorer: Any, **shadow: Any) -> StagedRollout:
    return desk.rollouts.start(NAME, 2, shadow={"answers": 500, "share": 1.0, "purse": "9", "scorer": scorer, **shadow})


def use(desk: Platform, users: range) -> set[str]:
    """Let users ask, and mirror what they ask. Returns the ids of what they got."""
    sent = set[str]()
    for user in users:
        sent.add(desk.chat.complete(model=ALIAS, messages="hello", user=f"user {user}").id)
        drain(desk._runtime)
    return sent


def scores(desk: Platform) -> list[RolloutScore]:
    return [*iter_index_live(desk._runtime, RolloutScore, "by_entity", "local")]


def spent(desk: Platform, rollout: StagedRollout) -> Decimal:
    return desk._runtime.store.read(lambda snapshot: snapshot.get(RolloutCursor, rollout.id)).spent


def test_both_answers_to_a_request_are_scored_once_and_one_pair_of_a_user_counts(desk: Platform) -> None:
    rollout = start(desk, KIND)
    use(desk, range(3))
    use(desk, range(1))
    found = scores(desk)
    assert [(one.metric, one.side, one.value) for one in found[:2]] == [
        ("kind", Side.BASELINE, 1.0),
        ("kind", Side.CANDIDATE, 0.0),
    ]
    assert (len(found), sum(one.counted for one in found)) == (8, 6)
    kept = {one.id: one for one in desk.rollouts.answers(rollout.id)}
    assert all(kept[one.answer_id].side is one.side for one in found)
    standing = desk.rollouts.standing(rollout.id)
    assert standing.judged is not None
    assert (standing.judged.pairs, standing.judged.baseline, standing.judged.candidate) == (3, 1.0, 0.0)
    assert (standing.baseline.scores, standing.candidate.scores) == (0, 0), "users say what users say"
    assert "kind: 1.0000 and 0.0000 of 3 mirrored requests, difference surely -1.0000 to " in str(standing)


def test_what_the_scorer_shows_to_be_worse_comes_to_no_user(desk: Platform) -> None:
    rollout = start(desk, KIND)
    use(desk, range(30))
    found = desk.rollouts.look(rollout.id)
    assert found.state is RolloutState.ROLLED_BACK
    assert found.reason.startswith("kind of mirrored answers is worse by more than 0.02: by 0.")
    assert {one.side for one in desk.rollouts.answers(rollout.id) if not one.shadow} == {Side.BASELINE}


def test_a_judge_is_paid_by_the_purse(desk: Platform) -> None:
    judge = LlmJudge("priced", "Say yes or no. {prompt} {output}: yes", options={"max_tokens": 40})
    rollout = start(desk, judge)
    before = {one.id for one in desk.usage.list()}
    users = use(desk, range(3))
    assert [one.value for one in scores(desk)] == [1.0] * 6
    paid = [one.cost for one in desk.usage.list() if one.id not in before | users]
    assert len(paid) == 9
    assert sum(paid, Decimal(0)) == spent(desk, rollout) > 0


def test_a_purse_that_has_no_more_stops_the_judge_and_the_rollout(desk: Platform) -> None:
    judge = LlmJudge("priced", "{output}: yes", options={"max_tokens": 40})
    purse = Decimal("0.5")
    again = start(desk, judge, purse=purse)
    before = {one.id for one in desk.usage.list()}
    users = use(desk, range(10, 30))
    paid = sum((one.cost for one in desk.usage.list() if one.id not in before | users), Decimal(0))
    assert 0 < paid <= purse
    assert desk.rollouts.get(again.id).state is RolloutState.STOPPED


@pytest.mark.parametrize(
    ("scorer", "error", "says"),
    [
        (lambda output, row: True, InvalidInput, "shadow.scorer: must be one declarative scorer"),
        ([*KIND.values(), "exact_match"], InvalidInput, "shadow.scorer: must be one declarative scorer"),
        ("nothing", InvalidInput, "shadow.scorer"),
        ("exact_match", InvalidInput, "asks for expected, which requests of users do not have"),
        (LlmJudge("no-such-model", "{output}?"), ModelNotFound, "no-such-model"),
    ],
)
def test_what_cannot_score_is_refused(desk: Platform, scorer: Any, error: Any, says: str) -> None:
    with pytest.raises(error, match=says):
        start(desk, scorer)
