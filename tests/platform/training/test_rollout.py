"""Rollouts: what was sampled is carried back exactly, and a failed attempt stays in its group."""

import asyncio
from typing import Any

import pytest

from modelyard import Message, Role, Rollout, SampledChoice, gather, open_platform
from modelyard.domain.training import RolloutError
from modelyard.errors import InvalidInput, ModelNotFound
from modelyard.parts.scripted.backend import ScriptedBackend

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]


def test_a_conversation_is_remembered_turn_by_turn() -> None:
    with open_platform() as platform:
        rollout = Rollout(platform.chat, model="echo", project="demo", max_tokens=5)
        first = rollout.ask("Hello there")
        second = rollout.ask([{"role": "user", "content": "And now?"}])
        assert (first.message.text, second.message.text) == ("Hello there", "And now?")

        (history,) = rollout.trajectory(1.0, {"turns": 2}).histories
        reply = [item.message if isinstance(item, SampledChoice) else item for item in history.items]
        assert [message.role for message in reply] == [Role.USER, Role.ASSISTANT] * 2
        assert platform.usage.total(by=("project",))[0].requests == 2
        assert platform.usage.total(by=("project",))[0].project == "demo"


def test_the_sampled_tokens_are_always_returned() -> None:
    with open_platform() as platform:
        rollout = Rollout(platform.chat, model="echo")
        rollout.ask("one two three")
        (history,) = rollout.trajectory(0.5).histories
        sampled = history.items[-1]
        assert isinstance(sampled, SampledChoice)
        assert sampled.logprobs is not None
        assert len(sampled.logprobs) == len(sampled.token_ids) == 3


def test_the_model_sees_all_that_was_said_before() -> None:
    backend = ScriptedBackend(["answer 1", "answer 2"])
    with open_platform(backend=backend) as platform:
        rollout = Rollout(platform.chat, model="scripted")
        rollout.ask("a")
        rollout.ask("b")
    assert [message.text for message in backend.requests[1].messages] == ["a", "answer 1", "b"]


def test_a_tool_is_called_and_answered_and_its_declaration_kept() -> None:
    with open_platform() as platform:
        rollout = Rollout(platform.chat, model="echo", tools=TOOLS)
        choice = rollout.ask("Where is it?", tool_choice="required")
        (call,) = choice.message.tool_calls
        rollout.ask([{"role": "tool", "tool_call_id": call.id, "content": "on its way"}])
        (history,) = rollout.trajectory(1.0).histories
        assert [tool.name for tool in history.tools] == ["look_up"]
        assert [item.role for item in history.items if isinstance(item, Message)] == [Role.USER, Role.TOOL]


def test_a_turn_that_fails_leaves_the_conversation_as_it_was() -> None:
    with open_platform() as platform:
        rollout = Rollout(platform.chat, model="echo")
        with pytest.raises(InvalidInput):
            rollout.ask("too hot", temperature=9)
        rollout.ask("fine")
        (history,) = rollout.trajectory(1.0).histories
        assert len(history.items) == 2


def test_it_works_on_an_event_loop_too() -> None:
    async def turns() -> str:
        async with open_platform() as platform:
            rollout = Rollout(platform.chat, model="echo")
            return (await rollout.aask("Hello")).message.text

    assert asyncio.run(turns()) == "Hello"


def test_a_group_keeps_the_attempts_that_failed() -> None:
    with open_platform() as platform:

        def attempt(model: str) -> Any:
            rollout = Rollout(platform.chat, model=model)
            return rollout.trajectory(float(len(rollout.ask("Hi").message.text)))

        group = gather(attempt, ["echo", "nobody", "echo"])
    assert [trajectory.reward for trajectory in group.trajectories] == [2.0, 2.0]
    (failure,) = group.exceptions
    assert isinstance(failure, RolloutError)
    assert failure.type == ModelNotFound.__name__
    assert "nobody" in failure.message


def test_a_rollout_trains_a_model() -> None:
    with open_platform() as platform:
        platform.models.create("polite", project="demo", base_model="tabular-mini")

        def attempt(seed: int) -> Any:
            rollout = Rollout(platform.chat, model="local/demo/polite", project="demo", max_tokens=8, seed=seed)
            return rollout.trajectory(reward=float(seed % 2)) if rollout.ask("Hello") else None

        job = platform.training.rl("demo/polite", [gather(attempt, range(4))])
        assert job.result().step == 1
        assert platform.training.get(job.id).metrics


def test_a_model_may_be_given_as_a_value_as_in_chats() -> None:
    with open_platform() as platform:
        model = platform.models.create("m", project="p", base_model="tabular-mini")
        platform.training.sft(model, [{"messages": [{"role": "user", "content": "a"}, ANSWER]}]).wait()
        for given in (model, platform.models.checkpoint(model, 1)):
            rollout = Rollout(platform.chat, model=given, max_tokens=2, temperature=0.0)
            answer = platform.chat.complete(model=given, messages="a", max_tokens=2, temperature=0.0)
            assert rollout.ask("a").message.text == answer.text


ANSWER = {"role": "assistant", "content": "b"}
