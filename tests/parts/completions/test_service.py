"""`platform.compat.completions`: prompts as Python calls, and the laws that bind them to chats."""

import asyncio
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Platform, open_platform
from modelyard.errors import BudgetExceeded, InvalidInput, UnsupportedParameter
from modelyard.parts.scripted.backend import ScriptedBackend


@pytest.fixture(scope="module")
def platform() -> Iterator[Platform]:
    with open_platform() as opened:
        yield opened


TEXTS = st.text(st.characters(codec="utf-8"), max_size=40)
MESSAGES = st.lists(
    st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["user", "system"]), TEXTS),
    min_size=1,
    max_size=3,
)


@given(MESSAGES, st.integers(0, 9))
@examples(30)
def test_the_tokens_of_a_chat_are_answered_as_the_chat_is(platform: Platform, messages: Any, seed: int) -> None:
    asked = {"model": "tabular-mini", "seed": seed, "max_tokens": 5, "return_token_ids": True}
    chat = platform.chat.complete(messages=messages, **asked)
    prompt = platform.compat.completions.tokenize(model="tabular-mini", messages=messages)
    same = platform.compat.completions.complete(prompt=prompt, **asked)
    assert prompt == chat.choices[0].prompt_token_ids
    assert same.choices[0].token_ids == chat.choices[0].token_ids
    assert same.usage == chat.usage


@given(st.lists(st.sampled_from([*range(97, 123), 32, 256, 278, 300]), min_size=2, max_size=30))
@examples(30)
def test_a_prompt_scores_what_was_sampled_as_it_was_sampled(platform: Platform, prompt: list[int]) -> None:
    made = platform.compat.completions.complete(
        model="tabular-mini", prompt=prompt, seed=1, max_tokens=4, logprobs=2, return_token_ids=True
    ).choices[0]
    whole = [*prompt, *made.token_ids]
    scored = platform.compat.completions.complete(model="tabular-mini", prompt=whole, max_tokens=0, prompt_logprobs=2)
    tail = scored.choices[0].prompt_logprobs[-len(made.token_ids) :]
    assert len(scored.choices[0].prompt_logprobs) == len(whole) - 1
    assert [entry.id for entry in tail] == list(made.token_ids)
    assert [attrs.evolve(entry, rank=None) for entry in tail] == list(made.logprobs)


@given(TEXTS.filter(bool))
@examples(30)
def test_an_echo_of_ids_has_these_ids(platform: Platform, text: str) -> None:
    chat = platform.chat.complete(model="echo", messages=text, return_token_ids=True).choices[0]
    made = platform.compat.completions.complete(
        model="echo", prompt=chat.prompt_token_ids, max_tokens=1000, return_token_ids=True
    )
    assert made.choices[0].token_ids == chat.token_ids == made.choices[0].prompt_token_ids
    assert platform.compat.completions.complete(model="echo", prompt=text, max_tokens=1000).text == text


def test_a_prompt_is_streamed_and_awaited(platform: Platform) -> None:
    asked: Any = {"model": "echo", "prompt": "one two", "entity": "acme", "project": "p"}
    with platform.compat.completions.stream(**asked) as stream:
        assert [delta.text for delta in stream] == ["one", " two"]

    async def both() -> tuple[str, list[str]]:
        whole = await platform.compat.completions.acomplete(**asked)
        async with platform.compat.completions.astream(**asked) as stream:
            return whole.text, [delta.text async for delta in stream]

    assert asyncio.run(both()) == ("one two", ["one", " two"])
    (total,) = platform.usage.total(entity="acme")
    assert total.requests == 3


def test_a_form_is_kept_to(platform: Platform) -> None:
    chosen = {"choice": ["red", "green"]}
    made = platform.compat.completions.complete(model="echo", prompt="which?", structured_outputs=chosen)
    assert made.text in chosen["choice"]


def test_what_is_for_http_or_for_several_prompts_is_refused(platform: Platform) -> None:
    for wrong in ({"echo": True}, {"stream": True}, {"prompt": ["a", "b"]}, {"prompt": []}, {"suffix": "x"}):
        with pytest.raises(InvalidInput):
            platform.compat.completions.complete(**{"model": "echo", "prompt": "a", **wrong})
    for wrong in ({}, {"prompt": "a", "messages": "b"}):
        with pytest.raises(InvalidInput, match="not both"):
            platform.compat.completions.tokenize(model="echo", **wrong)


def test_a_backend_without_tokenizer_says_so() -> None:
    with open_platform(backend=ScriptedBackend(["a"])) as platform:
        with pytest.raises(UnsupportedParameter, match="has no tokenizer"):
            platform.compat.completions.detokenize(model="scripted", tokens=[1])
        with pytest.raises(UnsupportedParameter, match="takes messages only"):
            platform.compat.completions.complete(model="scripted", prompt="a")


def test_budgets_bound_prompts_as_they_bound_chats() -> None:
    with open_platform() as platform:
        platform.usage.set_budget("0.000001", entity="acme")
        with pytest.raises(BudgetExceeded):
            platform.compat.completions.complete(model="tabular-mini", prompt="a" * 100, max_tokens=9, entity="acme")


def test_what_cannot_be_read_in_python_is_reported_as_a_chat_is() -> None:
    happened: list[Any] = []
    wrong: list[Any] = [{"temperature": 9}, {"temprature": 1}, {"stream": True}, {"prompt": ["a", "b"]}]
    with open_platform(observer=happened.append) as platform:
        for one in wrong:
            for method in (platform.compat.completions.complete, platform.compat.completions.stream):
                with pytest.raises(InvalidInput):
                    method(**{"model": "echo", "prompt": "a", "project": "p", **one})
    assert {(event.entity, event.project, event.model, event.code) for event in happened} == {
        ("local", "p", "echo", "invalid_input")
    }
    assert len(happened) == 2 * len(wrong)
