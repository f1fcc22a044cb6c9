"""A step comes to the users of an alias in stages, goes on as it is not worse, and back as soon as it is."""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard import AtMost, NotWorse, Platform, open_platform
from modelyard.domain.usage import LedgerEntry
from modelyard.errors import Conflict, InvalidInput, NotFound
from modelyard.parts.rollouts import arms
from modelyard.parts.rollouts.mirror import drain
from modelyard.parts.rollouts.records import RolloutChange, RolloutState, Side, StagedRollout
from modelyard.parts.rollouts.upkeep import SETTLES
from modelyard.testing.clock import ManualClock
from rolled_out import ALIAS, GUARD, NAME, trained

CANARY = (0.4, 0.6, 1.0)


@pytest.fixture
def desk(platform: Platform) -> Platform:
    trained(platform)
    return platform


def start(desk: Platform, **options: Any) -> StagedRollout:
    return desk.rollouts.start(NAME, 1, **{"canary": CANARY, "guard": GUARD, "least": 5, **options})


def ask(desk: Platform, user: str | None) -> Any:
    return desk.chat.complete(model=ALIAS, messages="hello", user=user, max_tokens=2)


def settle(desk: Platform) -> None:
    clock: Any = desk._runtime.clock
    clock.advance(SETTLES.total_seconds())


def use(desk: Platform, rollout: StagedRollout, good: Callable[[Side, int], bool], users: range) -> dict[int, Side]:
    """Let users ask and score their answers; returns their arms."""
    arms = {}
    for user in users:
        answer = ask(desk, f"user {user}")
        arms[user] = desk.rollouts.answers(rollout.id, order="desc").page(1).items[0].side
        desk.rollouts.score(answer.id, good(arms[user], user))
    return arms


def pointed(desk: Platform) -> int:
    return next(one.step for one in desk.models.aliases(NAME) if one.name == "prod")


def test_what_is_not_worse_is_promoted_stage_after_stage(desk: Platform) -> None:
    rollout = start(desk)
    assert (rollout.state, rollout.stage, rollout.baseline, rollout.step) == (RolloutState.CANARY, 0, 0, 1)
    states = []
    for stage in range(3):
        settle(desk)
        use(
            desk,
            rollout,
            lambda side, user: side is Side.CANDIDATE or user % 2 == 0,
            range(60 * stage, 60 * stage + 60),
        )
        assert pointed(desk) == int(stage == 2)
        found = desk.rollouts.look(rollout.id)
        states.append((found.state, found.stage))
    assert states == [(RolloutState.CANARY, 1), (RolloutState.WATCH, 2), (RolloutState.PROMOTED, 2)]
    (moved,) = [one for one in desk.models.promotions(NAME) if one.step == 1]
    assert (moved.verdict["rollout"], moved.verdict["outcome"]) == (rollout.id, "not worse")
    assert moved.verdict["low"] > -0.3
    changes = [one.change for one in desk.rollouts.steps(rollout.id) if one.change is not RolloutChange.LOOKED]
    assert changes == ["started", "advanced", "advanced", "promoted"]
    assert ask(desk, "user 1").id not in [one.id for one in desk.rollouts.answers(rollout.id)]


def test_what_is_worse_goes_back_at_the_next_look(desk: Platform) -> None:
    rollout = start(desk)
    use(desk, rollout, lambda side, _: side is Side.BASELINE, range(60))
    found = desk.rollouts.look(rollout.id)
    assert (found.state, found.ended_at) == (RolloutState.ROLLED_BACK, found.since)
    assert found.reason.startswith("thumbs is worse by more than 0.3: by 0.")
    assert pointed(desk) == 0
    ask(desk, "user 1")
    assert len([*desk.rollouts.answers(rollout.id)]) == 60
    assert desk.rollouts.look(rollout.id) == found


def test_what_turns_out_worse_once_all_have_it_is_pointed_back(desk: Platform) -> None:
    rollout = start(desk, canary=[0.5, 1])
    use(desk, rollout, lambda *_: True, range(120))
    assert desk.rollouts.look(rollout.id).state is RolloutState.WATCH
    assert pointed(desk) == 1
    settle(desk)
    arms = use(desk, rollout, lambda *_: False, range(200, 220))
    assert {*arms.values()} == {Side.CANDIDATE}
    assert desk.rollouts.look(rollout.id).state is RolloutState.ROLLED_BACK
    assert pointed(desk) == 0
    assert [one.change.value for one in desk.models.promotions(NAME)] == ["promoted", "promoted", "rolled_back"]


def test_a_user_stays_on_one_arm_and_shares_grow(desk: Platform) -> None:
    rollout = start(desk, guard=NotWorse("thumbs", margin=0.9))
    first = use(desk, rollout, lambda *_: True, range(80))
    assert first == use(desk, rollout, lambda *_: True, range(80))
    assert 8 < sum(side is Side.CANDIDATE for side in first.values()) < 56
    desk.rollouts.look(rollout.id)
    assert desk.rollouts.get(rollout.id).stage == 1
    assert first == use(desk, rollout, lambda *_: True, range(80)), "the new share counts once every process knows it"
    settle(desk)
    second = use(desk, rollout, lambda *_: True, range(80))
    assert all(second[user] is Side.CANDIDATE for user, side in first.items() if side is Side.CANDIDATE)
    assert second != first
    answers = [*desk.rollouts.answers(rollout.id)]
    assert {(one.stage, one.side, one.propensity) for one in answers} == {
        (0, Side.CANDIDATE, 0.4),
        (0, Side.BASELINE, 0.6),
        (1, Side.CANDIDATE, 0.6),
        (1, Side.BASELINE, 0.4),
    }


def test_without_a_user_the_key_counts(desk: Platform) -> None:
    rollout = start(desk)
    for _ in range(4):
        ask(desk, None)
    assert len({(one.user, one.side) for one in desk.rollouts.answers(rollout.id)}) == 1


def test_arm_and_propensity_are_stored_with_the_answer_under_the_id_in_the_ledger(desk: Platform) -> None:
    rollout = start(desk)
    sent = [ask(desk, f"user {user}") for user in range(12)]
    kept = {one.id: one for one in desk.rollouts.answers(rollout.id)}
    with_ledger = desk._runtime.store.read(lambda snapshot: [snapshot.get(LedgerEntry, one.id) for one in sent])
    assert [kept[one.id].step for one in sent] == [one.checkpoint_step for one in with_ledger]
    assert {one.checkpoint_step for one in with_ledger} == {0, 1}
    assert {one.model for one in sent} == {ALIAS}
    streamed = desk.chat.stream(model=ALIAS, messages="hello", user="user 1", max_tokens=2)
    assert [*streamed]
    assert streamed.completion is not None
    last = next(one for one in desk.rollouts.answers(rollout.id, order="desc"))
    assert attrs.evolve(kept[sent[1].id], id=streamed.completion.id, cost=last.cost) == last


def test_a_user_counts_once_in_a_stage_and_a_score_stays(desk: Platform) -> None:
    rollout = start(desk)
    one, other = ask(desk, "ann"), ask(desk, "ann")
    first = desk.rollouts.score(one.id, True)
    assert (first.value, first.counted) == (1.0, True)
    assert desk.rollouts.score(one.id, 1.0) == first
    with pytest.raises(Conflict, match="has thumbs 1 already, which stays"):
        desk.rollouts.score(one.id, False)
    assert not desk.rollouts.score(other.id, False).counted
    assert not desk.rollouts.score(one.id, 0.5, "stars").counted
    found = desk.rollouts.standing(rollout.id)
    assert found.baseline.scores + found.candidate.scores == 1
    with pytest.raises(NotFound, match="Answer under a rollout"):
        desk.rollouts.score("nothing", True)


@each_case("value", [1.5, -0.1, "yes", None, float("nan")])
def test_a_score_is_yes_no_or_a_share(value: Any) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match="must be true or false, or a number from 0"):
        platform.rollouts.score("one", value)


def test_lower_may_be_better(desk: Platform) -> None:
    rollout = start(desk, guard=NotWorse("retries", margin=0.3, lower_is_better=("retries",)))
    for user in range(80):
        answer = ask(desk, f"user {user}")
        side = desk.rollouts.answers(rollout.id, order="desc").page(1).items[0].side
        desk.rollouts.score(answer.id, side is Side.BASELINE, "retries")
    found = desk.rollouts.standing(rollout.id)
    assert found.difference == 1.0
    assert desk.rollouts.look(rollout.id).stage == 1


def test_an_alias_that_somebody_moves_stops_its_rollout(desk: Platform) -> None:
    rollout = start(desk)
    desk.models.promote(NAME, 1)
    found = desk.rollouts.get(rollout.id)
    assert (found.state, found.reason) == (RolloutState.STOPPED, "the alias was pointed to step 1 by host")
    desk.models.rollback(NAME)
    again = start(desk)
    desk.models.remove_alias(NAME, "prod")
    assert desk.rollouts.get(again.id).reason == "the alias was removed by host"


def test_one_runs_on_an_alias_and_holds_its_candidate(desk: Platform) -> None:
    rollout = start(desk)
    assert desk.models.checkpoint(NAME, 1).pinned
    with pytest.raises(Conflict, match=f"rollout {rollout.id} runs on 'prod'; stop it first"):
        start(desk)
    with pytest.raises(Conflict, match="runs; stop it first"):
        desk.rollouts.delete(rollout.id)
    stopped = desk.rollouts.stop(rollout.id)
    assert (stopped.state, stopped.reason) == (RolloutState.STOPPED, "stopped by host")
    assert (stopped.share, attrs.evolve(stopped, state=RolloutState.PROMOTED).share) == (0.0, 1.0)
    assert desk.rollouts.stop(rollout.id, "again") == stopped
    assert not desk.models.checkpoint(NAME, 1).pinned
    assert desk.models.roll_out(NAME, 1).id != rollout.id
    desk.rollouts.delete(rollout.id)
    assert [one.id for one in desk.rollouts.list(model=NAME)] != [rollout.id]


def test_scores_are_looked_at_when_there_are_enough(desk: Platform) -> None:
    rollout = start(desk, least=1000)
    use(desk, rollout, lambda *_: True, range(200))
    found = desk.rollouts.look(rollout.id)
    assert (found.state, found.stage) == (RolloutState.CANARY, 0)
    assert desk.rollouts.standing(rollout.id).low > -0.3


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"canary": [0.5]}, "canary: must be 2 to 20 shares"),
        ({"canary": [0.5, 0.25, 1]}, "canary: must be 2 to 20 shares"),
        ({"canary": [0.25, 0.5]}, "canary: must be 2 to 20 shares"),
        ({"guard": NotWorse("thumbs")}, "guard.margin: must be more than 0"),
        ({"guard": NotWorse("thumbs", metric="up", margin=0.1)}, "guard: must be NotWorse"),
        ({"least": 0}, "least: must be a whole number"),
        ({"also": {"speed": 1}}, "also: must be such as"),
        ({"also": ["errors"]}, "also: must be such as"),
        ({"also": "errors"}, "also: must be such as"),
        ({"also": [AtMost("errors", 0.1), AtMost("errors", 0.2)]}, "also: has two limits of one name"),
        ({"shadow": "soon"}, "shadow.lasts: must be a time such as 30m, 1h or 2d, of at most 90 days"),
        ({"shadow": "91d"}, "shadow.lasts: must be a time"),
        ({"shadow": ""}, "shadow.lasts: must be a time"),
        ({"shadow": "999999999w"}, "shadow.lasts: must be a time"),
        ({"also": {"errors": 2}}, "also.errors: must be more than 0 and less than 1"),
        ({"alias": "LATEST"}, "alias: must be a lower-case letter"),
    ],
)
def test_what_cannot_be_meant_is_refused(desk: Platform, options: dict[str, Any], match: str) -> None:
    with pytest.raises(InvalidInput, match=match):
        start(desk, **options)


def test_the_same_history_from_one_seed(desk: Platform) -> None:
    def history() -> list[Any]:
        from modelyard import open_platform

        with open_platform(clock=ManualClock(), randomness=lambda size: bytes(size)) as platform:
            trained(platform)
            rollout = start(platform)
            use(platform, rollout, lambda side, user: side is Side.CANDIDATE or user % 2 == 0, range(60))
            platform.rollouts.look(rollout.id)
            return [*platform.rollouts.steps(rollout.id), *platform.rollouts.answers(rollout.id)]

    assert history() == history()


def test_the_time_that_a_change_takes_to_settle_is_longer_than_a_process_takes_to_know() -> None:
    assert timedelta(seconds=1) < SETTLES


def test_an_answer_is_counted_once_however_often_and_wherever_one_looks(desk: Platform) -> None:
    rollout = start(desk)
    for at in range(12):
        ask(desk, f"user {at}")
        desk.rollouts.look(rollout.id)
    found = desk.rollouts.standing(rollout.id)
    assert found.baseline.answers + found.candidate.answers == 12
    kept = [*desk.rollouts.answers(rollout.id)]
    assert found.baseline.cost + found.candidate.cost == sum(one.cost for one in kept)


def test_a_limit_that_is_broken_points_back(desk: Platform) -> None:
    rollout = start(desk, also={"cost": 1e-9, "errors": 0.5})
    for at in range(40):
        ask(desk, f"user {at}")
    found = desk.rollouts.look(rollout.id)
    assert (found.state, found.reason[:21]) == (RolloutState.ROLLED_BACK, "cost is above 1e-09: ")


def test_what_fails_by_no_fault_of_the_caller_counts(desk: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = start(desk, also={"errors": 0.05})

    def broken(*_: Any) -> Any:
        raise RuntimeError("the weights are gone")

    monkeypatch.setattr("modelyard.engines.tabular.backend.TabularBackend.stream", broken)
    for at in range(60):
        with pytest.raises(Exception, match=r".+"):
            ask(desk, f"user {at}")
    with pytest.raises(InvalidInput):
        desk.chat.complete(model=ALIAS, messages="hello", max_tokens=-1)
    found = desk.rollouts.look(rollout.id)
    standing = desk.rollouts.standing(rollout.id)
    assert standing.baseline.failed + standing.candidate.failed == 60
    assert (found.state, found.reason[:24]) == (RolloutState.ROLLED_BACK, "errors is above 0.05: 0.")


def test_an_answer_whose_beginning_was_forgotten_is_kept(desk: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of very many requests at once the oldest are forgotten; what was paid for is answered all the same."""
    rollout = start(desk)
    monkeypatch.setattr(arms.ProcessRollouts, "begin", lambda *_: None)
    sent = ask(desk, "ann")
    assert [one.id for one in desk.rollouts.answers(rollout.id)] == [sent.id]


def test_the_call_of_the_guide_does_what_each_word_of_it_says(desk: Platform) -> None:
    errors, p95, cost = AtMost("errors", 0.02), AtMost("p95", 8.0), AtMost("cost", 0.01)
    rollout = desk.models.roll_out(
        "desk/support",
        1,
        alias="prod",
        shadow="1h",
        canary=[0.05, 0.25, 1.0],
        guard=NotWorse("thumbs", margin=0.02),
        also=[errors, p95, cost],
    )
    assert (rollout.canary, rollout.metric, rollout.margin) == ((0.05, 0.25, 1.0), "thumbs", 0.02)
    assert rollout.limits == {"errors": 0.02, "p95": 8.0, "cost": 0.01}
    assert rollout.shadow == {"answers": 1, "share": 0.1, "purse": "1", "lasts": 3600.0}
    clock: Any = desk._runtime.clock
    for at in range(120):  # of which none is mirrored once in 300,000 times
        ask(desk, f"user {at}")
    drain(desk._runtime)
    assert any(one.shadow for one in desk.rollouts.answers(rollout.id))
    clock.advance(3599)
    assert desk.rollouts.look(rollout.id).state is RolloutState.SHADOW
    clock.advance(1)
    assert desk.rollouts.look(rollout.id).state is RolloutState.CANARY


def test_a_shadow_of_an_hour_waits_for_an_answer(desk: Platform) -> None:
    rollout = start(desk, shadow={"lasts": "1h", "share": 1.0})
    clock: Any = desk._runtime.clock
    clock.advance(7200)
    assert desk.rollouts.look(rollout.id).state is RolloutState.SHADOW
    ask(desk, "ann")
    drain(desk._runtime)
    assert desk.rollouts.look(rollout.id).state is RolloutState.CANARY


def test_answers_that_come_late_point_back(desk: Platform, monkeypatch: pytest.MonkeyPatch) -> None:
    rollout = start(desk, also=[AtMost("p95", 1.0)])
    clock: Any = desk._runtime.clock
    monkeypatch.setattr(clock, "monotonic", partial(next, count(0.0, 2.0)))
    for at in range(30):
        ask(desk, f"user {at}")
    found = desk.rollouts.look(rollout.id)
    assert (found.state, found.reason[:15]) == (RolloutState.ROLLED_BACK, "p95 is above 1:")
