"""What people see of episodes: pages, commands, and what is said of a run's health."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest
from click.testing import CliRunner

from modelyard import Platform, open_platform
from modelyard.cli import main
from modelyard.domain.completion import FinishReason
from modelyard.http.message import Request
from modelyard.parts.episodes.handle import EpisodeGroupHandle
from modelyard.parts.episodes.health import GroupHealth, health_of
from modelyard.parts.episodes.records import Episode
from modelyard.parts.episodes.tree import TreeTurn


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform() as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        yield platform


def played(platform: Platform, rewards: Sequence[float | None]) -> EpisodeGroupHandle:
    with platform.episodes.group("refunds", model="desk/support", size=len(rewards)) as group:
        for episode, reward in zip(group, rewards, strict=True):
            chat = platform.acting_as(platform.keys.authenticate(episode.key)).chat
            history: list[dict[str, Any]] = [{"role": "user", "content": "<b>Where is it?</b>"}]
            text = chat.complete(model="m", messages=history, max_tokens=8, min_tokens=8, seed=1).text
            for more in ("when?", "why?"):
                after = [*history, {"role": "assistant", "content": text}, {"role": "user", "content": more}]
                chat.complete(model="m", messages=after, max_tokens=8, min_tokens=8, seed=1)
            if reward is not None:
                episode.reward(reward)
    return group


def test_pages_show_groups_episodes_and_turns(platform: Platform) -> None:
    site = platform.site(reader=platform._principal)

    def page(*path: str) -> str:
        request = Request("GET", "/".join(("/dashboard", *path)), "", [("host", "localhost")], iter([]))
        answer = site.handle(request)
        assert answer.status == 200, path
        return answer.body.decode() if isinstance(answer.body, bytes) else ""

    assert ">Episodes<" not in page("models")
    group = played(platform, [1.0, 3.0, None])
    assert ">Episodes<" in page("models")
    assert "refunds" in page("episodes")
    shown = page("episodes", group.id)
    assert "2 of 3" in shown
    assert "1 of 3 episodes have no reward." in shown
    assert ">-1<" in shown
    assert ">1<" in shown
    turns = page("episodes", group.id, group[0].id)
    assert "<b>Where" not in turns.replace("&lt;b&gt;Where", "")
    assert "fork: another turn follows the same one" in turns
    assert turns.count("8 sampled, step 0") == 3
    assert "sequence 1" in turns


def test_commands_list_show_and_replay(tmp_path: Path) -> None:
    store = str(tmp_path / "yard.db")
    with open_platform(store) as platform:
        platform.models.create("support", project="desk", base_model="tabular-mini")
        first, group = played(platform, [1.0]), played(platform, [1.0, 1.0])

    def run(*words: str) -> str:
        done = CliRunner().invoke(main, ["episodes", *words, "--store", store])
        assert done.exit_code == 0, done.output
        return done.output

    assert [one["id"] for one in json.loads(run("list", "--json"))] == [group.id, first.id]
    assert "Every reward is 1, so the group teaches nothing." in run("show", group.id)
    assert [one["reward"] for one in json.loads(run("show", group.id, "--json"))] == [1, 1]
    said = run("replay", group[0].id)
    assert said.count("answer") == 3
    assert "fork" in said


# ---- health ------------------------------------------------------------------------------------------------------


Attempts = list[tuple[Episode, list[TreeTurn]]]


def attempts_of(group: EpisodeGroupHandle) -> Attempts:
    return [(one.refresh(), one.turns()) for one in group]


def with_choices(attempts: Attempts, **changes: Any) -> Attempts:
    return [
        (one, [attrs.evolve(turn, choice=attrs.evolve(turn.choice, **changes)) for turn in turns])
        for one, turns in attempts
    ]


def said(health: GroupHealth) -> str:
    return " ".join(health.words)


def test_what_is_wrong_with_a_group_is_said_in_words(platform: Platform) -> None:
    healthy = with_choices(attempts_of(played(platform, [0.0, 1.0])), finish_reason=FinishReason.STOP)
    found = health_of(healthy, 0)
    assert found.words == ()
    assert (found.mean_reward, found.spread, found.tokens, found.length) == (0.5, 0.5, 48, 24)
    assert said(health_of(attempts_of(played(platform, [2.0, 2.0])), 0)).startswith("Every reward is 2, so")
    assert "No episode has a reward" in said(health_of(attempts_of(played(platform, [None])), 0))
    assert "50 % of the answers" not in said(found)
    assert "100 % of the answers were cut off" in said(
        health_of(with_choices(healthy, finish_reason=FinishReason.LENGTH), 0)
    )
    assert "100 % of the tokens were sampled before the last checkpoint" in said(health_of(healthy, 7))
    (_, (turn, *_)), *_ = healthy
    certain = tuple(attrs.evolve(entry, logprob=-0.001) for entry in turn.logprobs or ())
    assert "Entropy has collapsed" in said(health_of(with_choices(healthy, logprobs=certain), 0))
    before = attrs.evolve(found, length=12.0)
    assert "grown from 12 to 24" in said(health_of(healthy, 0, before))
    nothing = [(one, [attrs.evolve(turn, untrained="no ids") for turn in turns]) for one, turns in healthy]
    assert "No token of the trained model" in said(health_of(nothing, 0))
