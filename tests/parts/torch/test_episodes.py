"""Episodes on a local model: the rows that its trainer makes have the tokens that were sampled, by its own template."""

from collections.abc import Callable
from pathlib import Path

import pytest

from modelyard import open_platform
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


def _trained(row: TokenRow) -> list[tuple[int, float]]:
    return [(row.ids[place], float(known or 0)) for place, known in zip(row.places, row.logprobs, strict=True)]
