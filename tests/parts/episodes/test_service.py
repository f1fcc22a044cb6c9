"""Groups and their episodes: keys, rewards, deadlines, and that a group is trained once."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from modelyard import Platform, Principal, Scope, open_platform
from modelyard.errors import (
    BudgetExceeded,
    Conflict,
    Forbidden,
    InvalidInput,
    JobFailed,
    ModelNotFound,
    NotFound,
    Unauthenticated,
)
from modelyard.parts.episodes.handle import EpisodeGroupHandle, EpisodeHandle
from modelyard.platform.training.service import Training
from modelyard.testing import ManualClock

ASKED = "Where is my refund?"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def platform(clock: ManualClock) -> Iterator[Platform]:
    with open_platform(clock=clock) as platform:
        for name in ("support", "other"):
            platform.models.create(name, project="desk", base_model="tabular-mini")
        yield platform


def group_of(platform: Platform, size: int = 2, **options: object) -> EpisodeGroupHandle:
    return platform.episodes.group("refunds", model="desk/support", size=size, **options)  # type: ignore[arg-type]


def program(platform: Platform, episode: EpisodeHandle) -> Platform:
    return platform.acting_as(platform.keys.authenticate(episode.key))


def ask(platform: Platform, episode: EpisodeHandle, model: str = "anything", tokens: int = 3) -> str:
    return program(platform, episode).chat.complete(model=model, messages=ASKED, max_tokens=tokens).text


def test_a_group_is_trained_once_by_one_job(platform: Platform) -> None:
    with group_of(platform) as group:
        for episode in group:
            ask(platform, episode)
            episode.reward(episode.place)
    job = platform.training.rl("desk/support", [group])
    assert platform.training.rl("desk/support", [group]).id == job.id
    checkpoint = job.result()
    assert checkpoint.step == 1
    assert checkpoint.metrics["importance_ratio"] == pytest.approx(1)
    assert checkpoint.metrics["kl_div"] == pytest.approx(0)
    assert platform.training.rl("desk/support", group).id == job.id
    assert group.refresh().job_id == job.id
    assert [episode.state for episode in group] == ["trained", "trained"]
    with pytest.raises(Conflict, match=f"trained by job {job.id}"):
        group[0].reward(5)
    with group_of(platform, 1) as other:
        other[0].reward(1)
    with pytest.raises(Conflict, match="a group is trained once"):
        platform.training.rl("desk/support", [other, group])
    assert not other.refresh().job_id


def test_a_group_whose_job_failed_can_be_trained_again(platform: Platform) -> None:
    with group_of(platform) as group:
        for episode in group:
            ask(platform, episode)
            episode.reward(episode.place)
    first = platform.training.rl("desk/support", [group])
    platform.training.cancel(first.id)
    assert group[0].state == "rewarded"
    group[0].reward(7)
    second = platform.training.rl("desk/support", [group])
    assert second.id != first.id
    assert group.trajectories().trajectories[0].reward == 7
    second.result()


def test_a_reward_that_comes_while_its_group_is_queued_is_trained(
    platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group_of(platform) as group:
        for episode in group:
            ask(platform, episode)
            episode.reward(episode.place)
    keep, late = Training._keep, [9.0]

    def meanwhile(training: Training, rows: Any, data: Any) -> Any:
        if late:
            group[0].reward(late.pop())
        return keep(training, rows, data)

    monkeypatch.setattr(Training, "_keep", meanwhile)
    job = platform.training.rl("desk/support", [group])
    assert job.result().metrics["reward"] == pytest.approx(5)
    assert [one.reward for one in group.trajectories().trajectories] == [9, 1]


def test_other_trajectories_are_trained_beside_a_group(platform: Platform) -> None:
    with group_of(platform) as group:
        for episode in group:
            ask(platform, episode)
            episode.reward(episode.place)
    values = group.trajectories()
    job = platform.training.rl("desk/support", [group, values])
    assert platform.training.get(job.id).config
    job.result()


def test_the_last_reward_before_training_counts(platform: Platform) -> None:
    group = group_of(platform, 1)
    group[0].reward(0.25)
    group[0].reward(True)
    assert group[0].refresh().reward == 1
    group[0].fail("the program crashed")
    assert (group[0].state, group[0].refresh().failure) == ("failed", "the program crashed")
    group[0].reward(-2)
    assert (group[0].state, group[0].refresh().failure, group[0].refresh().reward) == ("rewarded", "", -2)


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), 1e101, pytest.param(10**400, id="a huge int"), "1", None, [1]]
)
def test_what_is_not_a_number_is_no_reward(platform: Platform, value: object) -> None:
    with pytest.raises(InvalidInput, match="reward: must be a number"):
        group_of(platform, 1)[0].reward(value)  # type: ignore[arg-type]


def test_its_keys_begin_as_a_client_insists(platform: Platform) -> None:
    group = platform.episodes.group("g", model="desk/support", size=2, prefix="tml-")
    assert all(one.key.startswith("tml-") for one in group)
    assert all(one.key.startswith("my_") for one in group_of(platform, 1))
    for wrong in ("", "much too long", "a b", None, 3):
        with pytest.raises(InvalidInput, match="prefix: must be 1 to 8 letters"):
            platform.episodes.group("g", model="desk/support", size=1, prefix=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", None, 3, b"http://host"])
def test_an_address_is_one_of_a_server(platform: Platform, url: Any) -> None:
    with pytest.raises(InvalidInput, match="url: must be the address of the server"):
        platform.episodes.group("g", model="desk/support", size=1, url=url)


def test_an_open_group_waits_for_its_rewards_and_a_closed_one_fails_those_without(platform: Platform) -> None:
    group = group_of(platform, 3)
    for episode in group:
        ask(platform, episode)
    group[1].reward(1)
    with pytest.raises(Conflict, match="no reward for its episodes 0, 2"):
        platform.training.rl("desk/support", [group])
    group.close()
    group[2].reward(0)
    trained = group.trajectories()
    assert [one.reward for one in trained.trajectories] == [1, 0]
    assert [(one.type, one.message) for one in trained.exceptions] == [
        ("NoReward", "episode 0: no reward came in time")
    ]
    platform.training.rl("desk/support", [group]).result()
    assert [episode.state for episode in group] == ["failed", "trained", "trained"]


def test_a_deadline_ends_the_keys_and_fails_what_has_no_reward(platform: Platform, clock: ManualClock) -> None:
    group = group_of(platform, deadline=timedelta(minutes=5))
    ask(platform, group[0])
    group[0].reward(1)
    clock.advance(301)
    for episode in group:
        with pytest.raises(Unauthenticated):
            ask(platform, episode)
    assert [episode.state for episode in group] == ["rewarded", "failed"]
    with pytest.raises(Conflict, match="deadline of this episode is over"):
        group[1].reward(1)
    group[0].reward(0.5)
    with pytest.raises(JobFailed, match=r"nothing was trained: .*; 1 of 2 attempts failed, the first with .*episode 1"):
        platform.training.rl("desk/support", [group]).wait()


def test_a_closed_group_has_no_keys(platform: Platform) -> None:
    with group_of(platform) as group:
        ask(platform, group[0])
    with pytest.raises(Unauthenticated):
        ask(platform, group[0])
    group[0].reward(1)
    assert group.close().closed_at is not None


def test_an_episode_has_a_budget_of_its_own(platform: Platform) -> None:
    group = group_of(platform, budget="0.000005")
    ask(platform, group[0])
    with pytest.raises(BudgetExceeded):
        [ask(platform, group[0]) for _ in range(50)]
    assert ask(platform, group[1])
    booked = platform.usage.total(by=("key",))
    assert {one.key: one.requests for one in booked} == {
        episode.refresh().key_id: len(episode.turns()) for episode in group
    }


def test_a_name_that_no_model_has_means_the_trained_one(platform: Platform) -> None:
    group = group_of(platform, 1)
    for name in ("gpt-4o", "anthropic/claude-opus", "meta/llama/3", "desk/support", "local/desk/support:step0"):
        ask(platform, group[0], name)
    ask(platform, group[0], "echo")
    ask(platform, group[0], "desk/other")
    turns = group[0].turns()
    assert "'desk/other' answered" in turns[-1].untrained
    assert "'echo' answered" in turns[-2].untrained
    assert {one.turn.model_id for one in turns[:5]} == {platform.models.get("desk/support").id}
    with pytest.raises(ModelNotFound):
        platform.chat.complete(model="gpt-4o", messages=ASKED)


def test_the_key_of_an_episode_rewards_its_own_alone(platform: Platform) -> None:
    group = group_of(platform)
    own = program(platform, group[0])
    own.episodes.episode(group[0].id).reward(1)
    assert group[0].state == "rewarded"
    with pytest.raises(NotFound):
        own.episodes.episode(group[1].id)
    for call in (
        lambda: own.episodes.get(group.id).close(),
        lambda: own.episodes.delete(group.id),
        lambda: own.episodes.group("more", model="desk/support", size=1),
    ):
        with pytest.raises(Forbidden, match="the key of an episode"):
            call()


def test_others_see_nothing_of_it(platform: Platform) -> None:
    group = group_of(platform)
    stranger = platform.acting_as(Principal("s", "acme", Scope("acme")))
    narrow = platform.acting_as(Principal("n", "local", Scope("local", frozenset({"other"}))))
    for view in (stranger, narrow):
        assert not view.episodes.list()
        for call in (
            lambda view=view: view.episodes.get(group.id),
            lambda view=view: view.episodes.episode(group[0].id),
            lambda view=view: view.episodes.delete(group.id),
        ):
            with pytest.raises(NotFound):
                call()


def test_a_group_is_listed_found_and_deleted(platform: Platform) -> None:
    group = group_of(platform)
    ask(platform, group[0])
    other = platform.episodes.group("o", model="desk/other", size=1)
    assert [one.id for one in platform.episodes.list()] == [group.id, other.id]
    assert [one.id for one in platform.episodes.list(model="desk/other", order="desc")] == [other.id]
    again = platform.episodes.get(group.id, url="http://127.0.0.1:8000/")
    assert [one.id for one in again] == [one.id for one in group]
    assert (again[0].key, again[0].base_url) == ("", "http://127.0.0.1:8000/inference/v1")
    assert again[0].environment["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8000"
    assert len(again[0].turns()) == 1
    platform.episodes.delete(group.id)
    assert [one.id for one in platform.episodes.list()] == [other.id]
    with pytest.raises(NotFound):
        group[0].turns()
    with pytest.raises(Unauthenticated):
        ask(platform, group[0])
    assert platform.usage.total()[0].requests == 1


def test_what_cannot_be_a_group_is_refused(platform: Platform) -> None:
    for options, place in (
        ({"size": 0}, "size"),
        ({"size": True}, "size"),
        ({"deadline": timedelta(0)}, "deadline"),
        ({"budget": "much"}, "budget"),
        ({"url": "127.0.0.1"}, "url"),
    ):
        with pytest.raises(InvalidInput, match=place):
            group_of(platform, **{"size": 1, **options})  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        platform.episodes.group("x", model="desk/none", size=1)
    group = group_of(platform, 1)
    group[0].reward(1)
    with pytest.raises(InvalidInput, match=r"model: group 'refunds' was sampled to train local/desk/support"):
        platform.training.rl("desk/other", [group])
    with pytest.raises(InvalidInput, match="a group twice"):
        platform.training.rl("desk/support", [group, group])


def test_turns_that_are_asked_for_at_once_have_one_parent(platform: Platform) -> None:
    group = group_of(platform, 1)
    chat = program(platform, group[0]).chat
    history: list[dict[str, str]] = [{"role": "user", "content": ASKED}]
    first = chat.complete(model="m", messages=history, max_tokens=4, seed=1)
    history.append({"role": "assistant", "content": first.text})
    for question in ("when?", "where?", "why?"):
        chat.complete(model="m", messages=[*history, {"role": "user", "content": question}], max_tokens=4)
    turns = group[0].turns()
    assert [one.parent and one.parent.id for one in turns] == [None, *[turns[0].id] * 3]
    assert [one.why for one in turns] == ["the first turn", "", *["fork: another turn follows the same one"] * 2]
    (trajectory,) = _rewarded(group)
    assert [len(history.items) for history in trajectory.histories] == [4, 4, 4]
    trained = [sum(hasattr(item, "token_ids") for item in history.items) for history in trajectory.histories]
    assert trained == [2, 1, 1]


def _rewarded(group: EpisodeGroupHandle) -> tuple[object, ...]:
    for episode in group:
        episode.reward(1)
    return group.trajectories().trajectories


def test_an_answer_that_the_program_left_is_booked_and_no_turn(platform: Platform) -> None:
    group = group_of(platform, 1)
    stream = program(platform, group[0]).chat.stream(model="m", messages=ASKED, max_tokens=200, min_tokens=200)
    next(stream)
    stream.close()
    assert group[0].turns() == []
    (booked,) = platform.usage.list()
    assert booked.key_id == group[0].refresh().key_id


def test_of_a_request_that_is_sent_again_the_last_is_trained_or_the_one_that_goes_on(platform: Platform) -> None:
    group = group_of(platform, 1)
    chat = program(platform, group[0]).chat
    history: list[dict[str, str]] = [{"role": "user", "content": ASKED}]
    answers = [chat.complete(model="m", messages=history, max_tokens=6, seed=seed).text for seed in (1, 2, 3)]
    assert [bool(one.untrained) for one in group[0].turns()] == [True, True, False]
    history += [{"role": "assistant", "content": answers[1]}, {"role": "user", "content": "and?"}]
    chat.complete(model="m", messages=history, max_tokens=6)
    assert [bool(one.untrained) for one in group[0].turns()] == [True, False, True, False]


def test_several_choices_of_one_request_are_all_trained(platform: Platform) -> None:
    group = group_of(platform, 1)
    program(platform, group[0]).chat.complete(model="m", messages=ASKED, max_tokens=4, n=3)
    turns = group[0].turns()
    assert [one.untrained for one in turns] == ["", "", ""]
    assert len({one.id for one in turns}) == 3
    assert len([*platform.usage.list()]) == 1
