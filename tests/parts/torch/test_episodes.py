"""Episodes on a local model: the rows that its trainer makes have the tokens that were sampled, by its own template."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import loop_agents
from loop_outcomes import Outcome, outcome
from modelyard import open_platform
from modelyard.domain.job import Job
from modelyard.parts.torch.tokenizer import ChatTokenizer
from modelyard.parts.torch.training.examples import TokenRow, trajectory_rows

QUESTIONS = ("Where is my refund?", "And when?", "Why so late?")


@pytest.mark.slow
def test_rows_of_an_episode_train_each_sampled_token_once(folders: Callable[..., Path], tmp_path: Path) -> None:
    folder = folders("micro")
    chat = ChatTokenizer(folder)
    with open_platform(tmp_path / "yard.db") as platform:
        platform.add_base_model(folder, id="micro")
        platform.models.create("support", project="desk", base_model="micro")
        with platform.episodes.group("refunds", model="desk/support", size=3) as group:
            for episode in group:
                program = platform.acting_as(platform.keys.authenticate(episode.key)).chat
                told: list[dict[str, str]] = []
                for question in QUESTIONS:
                    told.append({"role": "user", "content": question})
                    text = program.complete(model="gpt-4o", messages=told, max_tokens=6).text
                    told.append({"role": "assistant", "content": text})
                program.complete(model="gpt-4o", messages=[*told[:2], told[0]], max_tokens=6)
                episode.reward(episode.place)
        for episode, trajectory in zip(group, group.trajectories().trajectories, strict=True):
            turns = episode.turns()
            assert not any(turn.untrained for turn in turns)
            trained = [token for row in trajectory_rows(chat, trajectory, False) for token in _trained(row)]
            assert sorted(trained) == sorted(
                (token, entry.logprob)
                for turn in turns
                for token, entry in zip(turn.ids, turn.logprobs or (), strict=True)
            )
        metrics = platform.training.rl("desk/support", [group]).result().metrics
        assert metrics["importance_ratio"] == pytest.approx(1, abs=1e-3)
        assert metrics["num_trainable_tokens"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("agent", [None, loop_agents.talks])
def test_a_loop_is_repeated_by_its_seed(folders: Callable[..., Path], tmp_path: Path, agent: Any) -> None:
    def made(store: str, **options: Any) -> tuple[Outcome, int]:
        with open_platform(tmp_path / store) as platform:
            platform.add_base_model(folders("micro"), id="micro")
            platform.models.create("m", project="p", base_model="micro")
            tasks = [{"question": question, "prompt": question} for question in QUESTIONS]
            more = {"max_tokens": 6} if agent is None else {"agent": agent}
            job = platform.training.loop(
                "p/m",
                tasks,
                loop_agents.length,
                rounds=2,
                samples=3,
                concurrency=1,
                learning_rate=1e-2,
                **more,
                **options,
            )
            job.wait()
            spec = platform._runtime.store.read(lambda snapshot: snapshot.get(Job, job.id)).spec
            return outcome(platform, job), spec["seed"]

    first, drawn = made("1.db")
    assert made("2.db", seed=drawn) == (first, drawn)
    assert made("3.db", seed=drawn + 1)[0].checkpoints[1:] != first.checkpoints[1:]


def _trained(row: TokenRow) -> list[tuple[int, float]]:
    return [(row.ids[place], float(known or 0)) for place, known in zip(row.places, row.logprobs, strict=True)]
