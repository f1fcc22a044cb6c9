"""What other training clients record with the key of an episode is the same as what the episode has."""

from typing import Any

import pytest

from modelyard import Platform
from modelyard.domain.training import SampledChoice, Trajectory
from modelyard.parts.episodes.handle import EpisodeGroupHandle, EpisodeHandle
from modelyard.parts.exchanges.reading import read_trajectory

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat_completions": ("/v1/chat/completions", {"logprobs": True}),
    "completions": ("/v1/completions", {"logprobs": 0}),
}
DETAILS = {"max_tokens": 6, "return_token_ids": True}


def begun(client: Any, name: str, size: int = 1) -> tuple[Platform, EpisodeGroupHandle]:
    name = f"{name}{client.asynchronous}".replace("_", "-").lower()
    owner = client.platform.acting_as(client.platform.keys.authenticate(client.key))
    owner.models.create(name, project="desk", entity="acme", base_model="tabular-mini")
    return owner, owner.episodes.group("recorded", model=f"desk/{name}", size=size)


def rolled_out(client: Any, episode: EpisodeHandle, kind: str, seed: int) -> dict[str, Any]:
    """A trajectory of two turns, as clients record it."""
    path, members = KINDS[kind]
    messages, prompt, exchanges = [{"role": "user", "content": "Where is my order?"}], [65, 66], []
    for turn in range(2):
        asked = {"messages": messages} if kind == "chat_completions" else {"prompt": prompt}
        request = {"model": episode.model, "seed": seed + turn, **asked, **members, **DETAILS}
        response = client.send("POST", path, request, key=episode.key, check=False).json
        exchanges.append({"request": request, "response": response, "start_time": f"2026-01-01T00:00:0{turn}"})
        (choice,) = response["choices"]
        if kind == "chat_completions":
            messages = [*messages, choice["message"], {"role": "user", "content": "And when?"}]
        else:
            prompt = [*prompt, *choice["token_ids"], 67]
    return {"exchanges": {kind: exchanges}, "reward": float(seed)}


def tokens_of(trajectory: Trajectory) -> list[Any]:
    """The tokens that each choice was asked with, and those that were sampled, with their log-probabilities."""
    items = [item for history in trajectory.histories for item in history.items if isinstance(item, SampledChoice)]
    return [(one.prompt_token_ids, one.token_ids, [it.logprob for it in one.logprobs or ()]) for one in items]


@pytest.mark.parametrize("kind", [*KINDS])
def test_a_trajectory_of_exchanges_is_the_trajectory_of_its_episode(client: Any, kind: str) -> None:
    owner, group = begun(client, kind, size=2)
    recorded = [rolled_out(client, episode, kind, seed) for seed, episode in enumerate(group)]
    for episode, one in zip(group, recorded, strict=True):
        episode.reward(one["reward"])
        assert [turn.id for turn in episode.turns()] == [it["response"]["id"] for it in one["exchanges"][kind]]
        assert [turn.turn.step for turn in episode.turns()] == [0, 0]
    trained = group.trajectories().trajectories
    theirs = [read_trajectory(one) for one in recorded]
    assert [one.reward for one in trained] == [one.reward for one in theirs]
    assert [tokens_of(one) for one in trained] == [tokens_of(one) for one in theirs]
    if kind == "chat_completions":  # the format of prompts has no bytes of tokens
        assert [one.histories for one in trained] == [one.histories for one in theirs]
    job = owner.training.rl(group.model, [group])
    client.platform.worker().run_until_idle()
    assert job.result().step == 1


def test_prompts_of_tokens_follow_each_other_and_other_prompts_are_not_the_same(client: Any) -> None:
    _, group = begun(client, "prompts")
    (episode,) = group
    rolled_out(client, episode, "completions", 1)
    for prompt in ([70, 71], [70, 72], [70, 72]):
        body = {"model": episode.model, "prompt": prompt, **DETAILS, "logprobs": 0}
        client.send("POST", "/v1/completions", body, key=episode.key, check=False)
    turns = episode.turns()
    assert [(turn.parent and turns.index(turn.parent), turn.why) for turn in turns] == [
        (None, "the first turn"),
        (0, ""),
        (None, "a prompt of its own"),
        (None, "a prompt of its own"),
        (None, "retry: the same was asked before"),
    ]
    assert [bool(turn.untrained) for turn in turns] == [False, False, False, True, False]
