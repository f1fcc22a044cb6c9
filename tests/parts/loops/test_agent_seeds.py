"""A loop is repeated by its seed, with an agent and without: the same turns, rewards, metrics and checkpoints."""

from pathlib import Path
from typing import Any

import pytest

import loop_agents
from loop_outcomes import Outcome, outcome
from modelyard import Platform, open_platform
from modelyard.domain.job import Job
from modelyard.errors import InvalidInput

pytestmark = pytest.mark.slow

TASKS = [{"question": f"question {number}"} for number in range(4)]
SMALL: dict[str, Any] = {"rounds": 2, "samples": 3, "tasks_per_round": 2, "learning_rate": 1e-3}


def begun(platform: Platform, agent: Any, seed: int | None, **more: Any) -> Any:
    platform.models.create("m", project="p", base_model="tabular-mini")
    options = {"held_out": TASKS[:1], **SMALL, **more}
    return platform.training.loop("p/m", TASKS[1:], loop_agents.length, agent=agent, seed=seed, **options)


def made(store: Path | str | None, agent: Any, seed: int | None, **more: Any) -> Outcome:
    with open_platform(store) if store else open_platform() as platform:
        job = begun(platform, agent, seed, **more)
        job.wait()
        return outcome(platform, job)


def seed_of(platform: Platform, job: Any) -> int:
    return int(platform._runtime.store.read(lambda snapshot: snapshot.get(Job, job.id)).spec["seed"])


AGENTS = [loop_agents.talks, loop_agents.uses_a_tool, loop_agents.asks_at_once, loop_agents.asks_every_route]


@pytest.mark.parametrize("agent", AGENTS)
def test_the_same_seed_gives_the_same_in_any_store_whatever_runs_at_a_time(agent: Any, tmp_path: Path) -> None:
    first = made(None, agent, 7, concurrency=1)
    assert made(tmp_path / "yard.db", agent, 7, concurrency=4) == first
    other = made(None, agent, 8, concurrency=4)
    assert other.attempts != first.attempts
    assert other.checkpoints[1:] != first.checkpoints[1:]


@pytest.mark.servers
def test_the_same_seed_gives_the_same_in_postgresql(yard_address: str, tmp_path: Path) -> None:
    with open_platform(yard_address, artifacts=tmp_path) as platform:
        job = begun(platform, loop_agents.asks_at_once, 7)
        job.wait()
        assert outcome(platform, job) == made(None, loop_agents.asks_at_once, 7)


def test_no_two_attempts_are_sampled_alike() -> None:
    with open_platform() as platform:
        begun(platform, loop_agents.asks_every_route, 7, samples=6, learning_rate=1e-9).wait()
        groups = [[*platform.episodes.get(group.id)] for group in platform.episodes.list()]
        said = [[tuple(turn.ids for turn in one.turns()) for one in group] for group in groups]
    assert len({attempt for group in said for attempt in group}) == sum(map(len, said))


def test_the_seed_that_a_program_names_is_kept() -> None:
    with open_platform() as platform:
        begun(platform, loop_agents.names_a_seed, 7, learning_rate=1e-9, held_out=None).wait()
        for group in platform.episodes.list():
            asked = platform.chat.complete(
                model="p/m:step0",
                messages=platform.episodes.get(group.id)[0].turns()[0].messages[0].text,
                max_tokens=6,
                seed=5,
            )
            said = {turn.choice.message.text for one in platform.episodes.get(group.id) for turn in one.turns()}
            assert said == {asked.text}


def test_a_loop_that_draws_its_seed_is_repeated_with_it(tmp_path: Path) -> None:
    with open_platform(tmp_path / "yard.db") as platform:
        job = begun(platform, loop_agents.talks, None)
        job.wait()
        first, seed = outcome(platform, job), seed_of(platform, job)
    assert made(None, loop_agents.talks, seed) == first
    assert made(None, loop_agents.talks, None).attempts != first.attempts


def test_rounds_that_are_sampled_ahead_ask_with_the_same_seeds(tmp_path: Path) -> None:
    """What they are answered depends on the checkpoint that there is when they ask; here all of them answer alike."""
    options: dict[str, Any] = {"max_steps_off_policy": 2, "rounds": 3, "learning_rate": 1e-9}
    first = made(None, loop_agents.talks, 7, concurrency=1, **options)
    assert made(tmp_path / "yard.db", loop_agents.talks, 7, concurrency=4, **options).attempts == first.attempts


def test_a_loop_without_an_agent_takes_the_seed_too(tmp_path: Path) -> None:
    def loop(store: Path | None, seed: int, concurrency: int) -> Outcome:
        with open_platform(store) if store else open_platform() as platform:
            platform.models.create("m", project="p", base_model="tabular-mini")
            tasks = [{"prompt": one["question"]} for one in TASKS]
            options: dict[str, Any] = {**SMALL, "max_tokens": 6, "seed": seed, "concurrency": concurrency}
            job = platform.training.loop("p/m", tasks[1:], loop_agents.length, held_out=tasks[:1], **options)
            job.wait()
            return outcome(platform, job)

    first = loop(None, 7, 1)
    assert loop(tmp_path / "yard.db", 7, 4) == first
    assert loop(None, 8, 4).checkpoints[1:] != first.checkpoints[1:]


@pytest.mark.parametrize("seed", [-1, 2**63, True, 0.5])
def test_a_seed_is_a_whole_number_that_every_store_keeps(seed: Any) -> None:
    with open_platform() as platform, pytest.raises(InvalidInput, match="seed: "):
        begun(platform, loop_agents.talks, seed)
