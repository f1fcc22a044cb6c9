"""The newest public RL client, unmodified, against a served platform: it records requests, and trains on them."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from modelyard.domain.training import SampledChoice
from modelyard.parts.exchanges.reading import read_trajectory

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # or importing the client asks the network for prices
art = pytest.importorskip("art", reason="the newest RL client has a lane of its own: tests/clients/lanes.py art-newest")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings"),
]

QUESTIONS = ("How do I pay?", "Where is my order?")
PAIRS = (("How do I pay?", "By card."), ("Where is my order?", "On its way."))
Ask = Callable[[Any, Any, str, int], Awaitable[str]]


async def by_chat(served: Any, model: Any, question: str, seed: int) -> str:
    answer = await model.openai_client().chat.completions.create(
        model=model.get_inference_name(),
        messages=[{"role": "user", "content": question}],
        max_tokens=12,
        seed=seed,
        logprobs=True,
    )
    return str(answer.choices[0].message.content)


async def by_prompt(served: Any, model: Any, question: str, seed: int) -> str:
    answer = await model.openai_client().completions.create(
        model=model.get_inference_name(),
        prompt=question,
        max_tokens=12,
        seed=seed,
        logprobs=0,
        extra_body={"return_token_ids": True},
    )
    return str(answer.choices[0].text)


async def by_response(served: Any, model: Any, question: str, seed: int) -> str:
    answer = await model.openai_client().responses.create(
        model=model.get_inference_name(),
        input=question,
        max_output_tokens=16,
        include=["message.output_text.logprobs"],
    )
    return str(answer.output_text)


async def by_message(served: Any, model: Any, question: str, seed: int) -> str:
    """Ask without a client of the format: what the newest one sends by is not recorded."""
    asked = {"max_tokens": 12, "messages": [{"role": "user", "content": question}]}
    async with httpx.AsyncClient(base_url=served.root, headers={"x-api-key": served.key}) as client:
        answer = await client.post("/v1/messages", json={"model": model.get_inference_name(), **asked})
    return "".join(block["text"] for block in answer.raise_for_status().json()["content"])


@pytest.fixture
def live(served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Runs a coroutine with the client's backend and a registered model."""
    monkeypatch.delenv("WANDB_API_KEY", raising=False)

    def run(name: str, life: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def whole() -> Any:
            backend = art.ServerlessBackend(api_key=served.key, base_url=f"{served.root}/v1")
            model = art.TrainableModel(
                name=name, run_name=name, project="proj", base_model="tabular-mini", base_path=str(tmp_path)
            )
            await model.register(backend)
            try:
                return await life(backend, model)
            finally:
                await model.openai_client().close()
                await backend.close()

        return asyncio.run(whole())

    return run


async def rolled_out(served: Any, model: Any, ask: Ask, round_: int = 0) -> list[Any]:
    async def one(question: str, seed: int) -> Any:
        with art.Trajectory(reward=0.0) as trajectory:
            text = await ask(served, model, question, seed)
        trajectory.reward = float("you" in text.split())
        return trajectory

    return [
        art.TrajectoryGroup([await one(question, 100 * round_ + seed) for seed in range(8)]) for question in QUESTIONS
    ]


@pytest.mark.parametrize("ask", [by_chat, by_prompt, by_response])
def test_what_is_recorded_is_trained(live: Any, served: Any, ask: Ask) -> None:
    async def life(backend: Any, model: Any) -> None:
        groups = await rolled_out(served, model, ask)
        assert all(trajectory.exchanges for group in groups for trajectory in group.trajectories)
        for group in groups:  # whatever was said, so that there is something to learn
            group.trajectories[0].reward, group.trajectories[1].reward = 1.0, 0.0
        result = await backend.train(model, groups, learning_rate=5e-5)
        assert (result.step, await model.get_step()) == (1, 1)

    live(ask.__name__.replace("_", "-"), life)


def test_what_is_recorded_with_the_key_of_an_episode_is_its_turns(served: Any) -> None:
    owner = served.platform.acting_as(served.platform.keys.authenticate(served.key))
    owner.models.create("recorded", project="proj", entity="acme", base_model="tabular-mini")
    group = owner.episodes.group("recorded", model="proj/recorded", size=2, url=served.root)

    async def rolled_out(episode: Any) -> Any:
        async with openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.key) as client:
            messages: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
            with art.Trajectory(reward=float(episode.place)) as trajectory:
                for seed in range(2):
                    answer = await client.chat.completions.create(
                        model=episode.model,
                        messages=messages,
                        max_tokens=8,
                        seed=seed,
                        logprobs=True,
                        extra_body={"return_token_ids": True},
                    )
                    said = {"role": "assistant", "content": answer.choices[0].message.content}
                    messages = [*messages, said, {"role": "user", "content": QUESTIONS[1]}]
        return trajectory

    for episode in group:
        trajectory = asyncio.run(rolled_out(episode))
        episode.reward(trajectory.reward)
        data = trajectory.model_dump(mode="json")
        ids = [one["response"]["id"] for one in data["exchanges"]["chat_completions"]]
        assert [turn.id for turn in episode.turns()] == ids
        logged = read_trajectory(data)
        (trained,) = (one for one in group.trajectories().trajectories if one.metadata["place"] == episode.place)
        assert tokens_of(logged) == tokens_of(trained)


@pytest.mark.parametrize("whole", [True, False], ids=["its history", "the answer before"])
def test_responses_recorded_with_the_key_of_an_episode_are_its_turns(served: Any, whole: bool) -> None:
    async def rolled_out(episode: Any) -> Any:
        async with openai.AsyncOpenAI(base_url=episode.base_url, api_key=episode.key) as client:
            with art.Trajectory(reward=1.0) as trajectory:
                asked: Any = [{"role": "user", "content": QUESTIONS[0]}]
                more: dict[str, Any] = {}
                for _ in range(3):
                    answer = await client.responses.create(
                        model=episode.model,
                        input=asked,
                        max_output_tokens=16,
                        include=["message.output_text.logprobs"],
                        **more,
                    )
                    again = {"role": "user", "content": QUESTIONS[1]}
                    if whole:
                        asked = [*asked, {"role": "assistant", "content": answer.output_text}, again]
                    else:
                        asked, more = [again], {"previous_response_id": answer.id}
        return trajectory

    recorded_as_turns(served, "responses", rolled_out)


def test_messages_recorded_with_the_key_of_an_episode_are_its_turns(served: Any) -> None:
    async def rolled_out(episode: Any) -> Any:
        messages: list[Any] = [{"role": "user", "content": QUESTIONS[0]}]
        async with httpx.AsyncClient(base_url=episode.root_url, headers={"x-api-key": episode.key}) as client:
            with art.Trajectory(reward=1.0) as trajectory:
                for _ in range(3):
                    asked = {"model": episode.model, "max_tokens": 12, "messages": messages}
                    answer = (await client.post("/v1/messages", json=asked)).raise_for_status().json()
                    said = {"role": "assistant", "content": answer["content"]}
                    messages = [*messages, said, {"role": "user", "content": QUESTIONS[1]}]
        return trajectory

    recorded_as_turns(served, "messages", rolled_out)


def recorded_as_turns(served: Any, kind: str, rolled_out: Callable[[Any], Awaitable[Any]]) -> None:
    owner = served.platform.acting_as(served.platform.keys.authenticate(served.key))
    owner.models.create(kind, project="proj", entity="acme", base_model="tabular-mini", return_existing=True)
    group = owner.episodes.group("recorded", model=f"proj/{kind}", size=1, url=served.root)
    (episode,) = group
    trajectory = asyncio.run(rolled_out(episode))
    episode.reward(trajectory.reward)
    data = trajectory.model_dump(mode="json")
    exchanges, turns = data["exchanges"][kind], episode.turns()
    assert [one["response"]["id"].removeprefix("resp_") for one in exchanges] == [turn.id for turn in turns]
    assert [turn.parent for turn in turns] == [None, *turns[:-1]]
    (trained,) = group.trajectories().trajectories
    sampled = {ids: logprobs for _, ids, logprobs in tokens_of(trained)}
    logged = [item for history in read_trajectory(data).histories for item in history.items]
    answers = [item for item in logged if isinstance(item, SampledChoice)]
    assert len(answers) == len(exchanges) == len(turns) == 3
    for exchange, answer, turn in zip(exchanges, answers, turns, strict=True):
        assert answer.message.text == turn.choice.message.text
        assert exchange["response"]["usage"]["output_tokens"] == len(turn.ids)
        assert exchange["response"]["usage"]["input_tokens"] == len(turn.choice.prompt_token_ids)
        assert turn.turn.step == 0
        if kind == "responses":
            found = [one.logprob for one in answer.logprobs or ()]
            assert found == sampled[tuple(turn.ids)]
            assert len(found) == len(turn.ids)


def tokens_of(trajectory: Any) -> list[Any]:
    items = [item for history in trajectory.histories for item in history.items if isinstance(item, SampledChoice)]
    return [(one.prompt_token_ids, one.token_ids, [it.logprob for it in one.logprobs or ()]) for one in items]


def test_a_recorded_message_is_understood_and_not_trained_without_its_logprobs(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> None:
        groups = await rolled_out(served, model, by_message)
        await backend._client.models.log(model_id=model.id, trajectory_groups=groups, split="val")
        with pytest.raises(Exception, match="logprobs"):
            await backend.train(model, groups)

    live("by-message", life)


def test_the_reward_rises_step_by_step(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> list[float]:
        rewards = []
        for round_ in range(3):
            groups = await rolled_out(served, model, by_chat, round_)
            await backend.train(model, groups, learning_rate=1e-4)
            rewards.append(sum(trajectory.reward for group in groups for trajectory in group.trajectories))
        await model.delete_checkpoints()
        return rewards

    rewards = live("riser", life)
    assert rewards[-1] > rewards[0], rewards


def test_the_older_form_of_a_trajectory_trains_too(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> None:
        made = []
        for seed in range(4):
            messages = [{"role": "user", "content": QUESTIONS[0]}]
            answer = await model.openai_client().chat.completions.create(
                model=model.get_inference_name(), messages=messages, max_tokens=8, seed=seed
            )
            made.append(art.Trajectory(messages_and_choices=[*messages, answer.choices[0]], reward=float(seed)))
        assert (await backend.train(model, [art.TrajectoryGroup(made)])).step == 1

    live("older", life)


@pytest.fixture
def _uploads_here(served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import wandb
    from wandb.sdk import wandb_setup

    for name in ("HOME", "WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("WANDB_BASE_URL", served.root)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    wandb_setup.singleton().finish_all_active_runs()
    wandb.teardown()


@pytest.mark.usefixtures("_uploads_here")
def test_rows_are_uploaded_by_its_own_wandb_and_taught(live: Any, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def life(backend: Any, model: Any) -> str:
        monkeypatch.setenv("WANDB_API_KEY", served.key)
        rows = [
            art.Trajectory(
                messages_and_choices=[
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": answer},
                ]
            )
            for question, answer in PAIRS
        ]
        await model.train_sft(rows * 20, art.TrainSFTConfig(learning_rate=5e-4, batch_size=4))
        answer = await model.openai_client().chat.completions.create(
            model=model.get_inference_name(), messages=[{"role": "user", "content": PAIRS[0][0]}], temperature=0
        )
        return str(answer.choices[0].message.content)

    assert live("taught", life) == PAIRS[0][1]


def test_a_refusal_reaches_the_client(live: Any, served: Any) -> None:
    async def life(backend: Any, model: Any) -> None:
        with pytest.raises(openai.BadRequestError, match="banana"):
            await model.openai_client().chat.completions.create(
                model=model.get_inference_name(),
                messages=[{"role": "user", "content": "hi"}],
                extra_body={"banana": 1},
            )

    live("refused", life)
