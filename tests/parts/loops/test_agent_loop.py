"""Loops that train an agent: each attempt is an episode, and each group is trained once."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from decimal import Decimal
from functools import partial
from random import Random
from typing import Any

import pytest

import loop_agents
from modelyard import NotWorse, Platform, Pricing, open_platform
from modelyard.domain.job import JobStatus
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.errors import Conflict, InvalidInput, JobFailed
from modelyard.http.message import Request
from modelyard.parts.episodes.records import Episode, EpisodeGroup

pytestmark = pytest.mark.slow

TASKS = [{"question": f"question {number}"} for number in range(3)]
HELD_OUT = [{"question": f"exam {number}"} for number in range(2)]
SMALL: dict[str, Any] = {"rounds": 2, "samples": 2, "tasks_per_round": 2, "learning_rate": 1e-5}


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(randomness=Random(1).randbytes) as opened:
        opened.models.create("m", project="p", base_model="tabular-mini")
        yield opened


def loop(platform: Platform, agent: Any = loop_agents.talks, reward: Any = loop_agents.length, **more: Any) -> Any:
    return platform.training.loop("p/m", TASKS, reward, agent=agent, **{**SMALL, **more})


def groups(platform: Platform) -> list[EpisodeGroup]:
    return list(platform.episodes.list())


def episodes(platform: Platform) -> list[Episode]:
    return [one for group in groups(platform) for one in platform.episodes.episodes(group.id)]


def rounds_of(job: Any) -> list[Mapping[str, Any]]:
    return [event.data for event in job.events() if event.type == "training_round"]


def test_each_round_is_groups_of_attempts_that_one_job_trains(platform: Platform) -> None:
    job = loop(platform)
    assert job.result().step == 2
    found = groups(platform)
    assert [one.name for one in found] == [f"round-{number}-task-{task}" for number in (1, 2) for task in (0, 1)]
    trained = [one.id for one in platform.training.list() if one.loop_id == job.id]
    assert [one.job_id for one in found] == [trained[0]] * 2 + [trained[1]] * 2
    for group in found:
        for episode in platform.episodes.get(group.id):
            assert episode.state == "trained"
            turns = episode.turns()
            assert [one.parent for one in turns] == [None, turns[0]]
            assert {one.turn.step for one in turns} == {int(group.name[6]) - 1}
            assert episode.refresh().reward == len(" ".join(one.choice.message.text for one in turns)) / 100
    first, second = rounds_of(job)
    assert (first["checkpoint"], second["checkpoint"]) == (1, 2)
    assert (first["stale_tokens"], first["steps_off_policy"], first["failed_rollouts"]) == (0, 0, 0)
    with pytest.raises(Conflict, match="is trained by job"):
        platform.training.rl("p/m", [platform.episodes.get(found[0].id)])


def test_no_key_is_left(platform: Platform) -> None:
    loop(platform).wait()
    assert all(one.revoked_at is not None for one in platform.keys.list())
    assert all(one.closed_at is not None for one in groups(platform))


@pytest.mark.parametrize(
    ("agent", "reward"),
    [
        (loop_agents.talks_later, loop_agents.length),
        (loop_agents.says_nothing, loop_agents.length),
        (loop_agents.rates_itself, None),
        (partial(loop_agents.rates_itself, scale=0.5), None),
        (loop_agents.talks, {"type": "token_f1", "expected": "question"}),
    ],
    ids=["a coroutine", "one that returns nothing", "one that rates itself", "with arguments", "a declarative reward"],
)
def test_kinds_of_agents_and_rewards(platform: Platform, agent: Any, reward: Any) -> None:
    job = loop(platform, agent, reward, rounds=1)
    job.wait()
    assert all(one.reward is not None for one in episodes(platform))
    if isinstance(agent, partial):
        for one in episodes(platform):
            said = " ".join(turn.choice.message.text for turn in platform.episodes.episode(one.id).turns())
            assert one.reward == len(said) * 0.5


def test_an_attempt_that_fails_is_part_of_its_group(platform: Platform) -> None:
    job = loop(platform, loop_agents.fails_at_times, samples=6, rounds=1)
    job.wait()
    failed = [one for one in episodes(platform) if one.failure]
    assert 0 < len(failed) < 12
    assert {one.failure for one in failed} == {"ValueError: cannot read that"}
    assert rounds_of(job)[0]["failed_rollouts"] == len(failed)


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (loop_agents.fails, "RuntimeError: the agent is broken$"),
        (loop_agents.leaves, "SystemExit: 2$"),
        (loop_agents.fails_in_lines, "^RuntimeError: Command failed: docker compose Usage: docker$"),
        (loop_agents.times_out, "^TimeoutError$"),
        (loop_agents.rates_itself_nan, "^the score is nan$"),
    ],
)
def test_a_round_in_which_all_fails_fails_the_loop_with_the_reason(platform: Platform, agent: Any, reason: str) -> None:
    job = loop(platform, agent, None if agent is loop_agents.rates_itself_nan else loop_agents.length)
    with pytest.raises(JobFailed, match="nothing was sampled in round 1: "):
        job.wait()
    assert all(re.search(reason, one.failure) for one in episodes(platform))
    assert all(one.revoked_at is not None for one in platform.keys.list())


def test_an_attempt_that_runs_for_too_long_fails_and_the_loop_goes_on(platform: Platform) -> None:
    loop_agents.WAITS.clear()
    try:
        job = loop(platform, loop_agents.hangs, rounds=1, tasks_per_round=1, deadline=timedelta(milliseconds=50))
        with pytest.raises(JobFailed, match=r"it has run for longer than 0:00:00\.05"):
            job.wait()
    finally:
        loop_agents.WAITS.set()


def test_a_reward_that_comes_while_the_agent_runs_is_kept(platform: Platform) -> None:
    loop_agents.WAITS.clear()
    try:
        job = loop(platform, loop_agents.hangs, rounds=1, tasks_per_round=1)
        turns = job._follow(None)
        while len(episodes(platform)) < 2:
            next(turns)
        for one in episodes(platform):
            platform.episodes.episode(one.id).reward(one.place + 0.5)
    finally:
        loop_agents.WAITS.set()
    for _ in turns:
        pass
    assert [one.reward for one in episodes(platform)] == [0.5, 1.5]


# ---- held-out tasks


def test_the_held_out_tasks_are_attempted_at_each_checkpoint(platform: Platform) -> None:
    job = loop(platform, held_out=HELD_OUT)
    best = job.result()
    (started,) = [event.data for event in job.events() if event.type == "training_started"]
    scores = [started["held_out"], *(one["held_out"] for one in rounds_of(job))]
    found = [one for one in groups(platform) if one.name.startswith("held-out")]
    assert [(one.name, one.model) for one in found] == [(f"held-out-step-{n}", f"local/p/m:step{n}") for n in range(3)]
    for group, score in zip(found, scores, strict=True):
        attempts = platform.episodes.get(group.id)
        rewards = [one.refresh().reward for one in attempts]
        assert score == pytest.approx(sum(filter(None, rewards)) / 2)
        asked = [one.turns()[0].messages[0].text for one in attempts]
        assert sorted(asked) == [row["question"] for row in HELD_OUT]
        assert {turn.turn.step for one in attempts for turn in one.turns()} == {int(group.name[-1])}
        assert group.job_id == ""
    assert scores[best.step] == max(scores)


def test_of_a_held_out_group_nothing_is_said_of_what_it_teaches(platform: Platform) -> None:
    """Every attempt has the same reward, so the groups that are trained teach nothing."""
    loop(platform, reward=loop_agents.one, held_out=HELD_OUT, rounds=1).wait()
    site, held_out = platform.site(reader=platform._principal), set[bool]()
    for group in groups(platform):
        body = site.handle(
            Request("GET", f"/dashboard/episodes/{group.id}", "", [("host", "localhost")], iter([]))
        ).body
        assert isinstance(body, bytes)
        held_out.add(group.held_out)
        said = b"Every reward is 1, so the group teaches nothing" in body, b"by one checkpoint, to measure it" in body
        assert said == (not group.held_out, group.held_out)
    assert held_out == {True, False}


def test_it_stops_early(platform: Platform) -> None:
    job = loop(platform, held_out=HELD_OUT, stop_when={"score": 0.0})
    job.wait()
    assert rounds_of(job) == []
    assert job.refresh().stop_reason.startswith("score: ")


# ---- how old tokens may be


def test_rounds_are_sampled_ahead_as_far_as_they_may_be_off_policy(platform: Platform) -> None:
    job = loop(platform, rounds=4, max_steps_off_policy=2)
    job.wait()
    behind = [one["steps_off_policy"] for one in rounds_of(job)]
    assert behind[0] == 0
    assert max(behind) in (1, 2)
    assert all(one["stale_tokens"] == 0 for one in rounds_of(job))
    versions = {
        (int(group.name[6]) - 1) - (turn.turn.step or 0)
        for group in groups(platform)
        for episode in platform.episodes.get(group.id)
        for turn in episode.turns()
    }
    assert versions <= {0, 1, 2}
    assert len(groups(platform)) == 8


def train_between(platform: Platform) -> None:
    rows = [{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}]
    platform.training.sft("p/m", rows, learning_rate=1e-6).wait()


@pytest.mark.parametrize("bound", [0, 1])
def test_what_is_too_old_is_dropped_counted_and_sampled_again(platform: Platform, bound: int) -> None:
    """Another job trains the model when the first round has been sampled."""
    job = loop(platform, rounds=1, max_steps_off_policy=bound)
    turns = job._follow(None)
    while not groups(platform) or any(one.closed_at is None for one in groups(platform)):
        next(turns)
    before = groups(platform)
    tokens = sum(len(turn.ids) for one in before for it in platform.episodes.get(one.id) for turn in it.turns())
    train_between(platform)
    for _ in turns:
        pass
    (round_,) = rounds_of(job)
    if bound:
        assert (round_["stale_tokens"], round_["steps_off_policy"]) == (0, 1)
        assert len(groups(platform)) == 2
        return
    assert (round_["stale_tokens"], round_["steps_off_policy"]) == (tokens, 0)
    assert [bool(one.job_id) for one in groups(platform)] == [False, False, True, True]
    assert len({one.seed for one in groups(platform)}) == 4


# ---- refused, cancelled, continued


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"agent": lambda base_url, api_key, task: ""}, r"agent: .* cannot be imported by another process"),
        ({"agent": loop_agents.length}, r"agent: must be a function of base_url, api_key, task"),
        ({"agent": partial(loop_agents.talks, "http://x")}, r"agent: must be a function"),
        ({"agent": partial(loop_agents.rates_itself, scale=object())}, r"agent"),
        ({"max_steps_off_policy": -1}, "max_steps_off_policy"),
        ({"max_steps_off_policy": True}, "max_steps_off_policy"),
        ({"temperature": 0.5}, "temperature: is up to the agent"),
        ({"max_tokens": 5}, "max_tokens: is up to the agent"),
        ({"url": "ftp://x"}, "url"),
        ({"deadline": timedelta(0)}, "deadline"),
        ({"budget": "much"}, "budget"),
        ({"held_out": [{"question": "x"}] * 1001}, "held_out: has more than 1000"),
        ({"reward": ["token_f1", "exact_match"]}, "reward: must be one scorer"),
        ({"tasks": []}, "tasks: has no rows"),
    ],
)
def test_what_does_not_fit_is_named(platform: Platform, options: dict[str, Any], place: str) -> None:
    asked: dict[str, Any] = {"tasks": TASKS, "reward": "token_f1", "agent": loop_agents.talks, **options}
    with pytest.raises(InvalidInput, match=place):
        platform.training.loop("p/m", **asked)
    assert list(platform._runtime.artifacts.names()) == []


def test_its_options_need_an_agent(platform: Platform) -> None:
    with pytest.raises(TypeError, match="max_steps_off_policy"):
        platform.training.loop("p/m", [{"prompt": "x"}], "token_f1", max_steps_off_policy=1)
    with pytest.raises(InvalidInput, match="reward: must be one scorer"):
        platform.training.loop("p/m", [{"prompt": "x"}])


def test_a_cancelled_loop_leaves_no_key_and_no_open_attempt(platform: Platform) -> None:
    job = loop(platform)
    turns = job._follow(None)
    while not episodes(platform):
        next(turns)
    job.cancel()
    for _ in turns:
        pass
    assert job.status is JobStatus.CANCELLED
    assert all(one.revoked_at is not None for one in platform.keys.list())
    assert all(one.failure or one.reward is not None for one in episodes(platform))


def test_a_budget_ends_the_loop_which_continues_with_the_groups_that_it_has() -> None:
    backend = TabularBackend(pricing=Pricing(completion=Decimal("0.01")))
    with open_platform(backend=backend, trainers=[TabularTrainer()], randomness=Random(1).randbytes) as platform:
        platform.models.create("m", project="p", base_model="tabular-mini")
        platform.usage.set_budget("0.3", entity="local")
        job = loop(platform, concurrency=1)
        with pytest.raises(JobFailed, match="budget"):
            job.wait()
        begun = {one.id for one in groups(platform)}
        settled = {one.id for one in episodes(platform) if one.reward is not None}
        assert settled
        platform.usage.set_budget("100000", entity="local")
        continued = platform.training.resume(job.id)
        continued.wait()
        assert begun <= {one.id for one in groups(platform)}
        assert len(groups(platform)) == 4
        assert settled < {one.id for one in episodes(platform) if one.reward is not None}
        assert sum(one.reward is not None for one in episodes(platform)) == 8
        turns = [it.id for one in groups(platform) for ep in platform.episodes.get(one.id) for it in ep.turns()]
        booked = [one.id for one in platform.usage.list() if one.completion_tokens]
        assert sorted(turns) == sorted(booked)


def test_the_gate_decides_by_what_the_held_out_attempts_were_rewarded(platform: Platform) -> None:
    job = loop(platform, held_out=HELD_OUT, rounds=1, evaluation="exam")
    job.wait()
    validated = [group for group in groups(platform) if group.name.startswith("held-out")]
    for group in validated:
        run = platform.evaluations.runs.get(group.id)
        kept = [*platform.episodes.episodes(group.id)]
        assert run.summary is not None
        assert run.summary["mean"] == pytest.approx(sum(one.reward or 0 for one in kept) / len(kept))
    assert len(validated) == 2
    platform.models.promote("p/m", step=0)
    made = platform.models.promote("p/m", step=1, require=NotWorse("exam", margin=1000))
    assert made.verdict["candidate_run"] in {group.id for group in validated}
    assert made.verdict["metrics"]["reward"]["rows"] == len(HELD_OUT)


def test_held_out_attempts_that_failed_are_rows_on_which_the_model_failed(platform: Platform) -> None:
    with pytest.raises(JobFailed, match=r"no attempt at the held-out tasks has a reward \(\w+: .+\); look at"):
        loop(platform, agent=loop_agents.fails, held_out=HELD_OUT).wait()
    (group,) = (one for one in groups(platform) if one.name.startswith("held-out"))
    summary = platform.evaluations.runs.get(group.id).summary
    assert summary is not None
    assert summary["model_errors"] == len(HELD_OUT)
