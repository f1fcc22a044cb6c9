"""Prompts that are continued as they are: the same tokens as in a chat, and the model's own log-probabilities."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from local_models import answered, engine_of, requested
from transformers import AutoModelForCausalLM

from modelyard import Platform, open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.torch.serving import prompt_scores

CHAT = [{"role": "user", "content": "Where is my order?"}]


@pytest.fixture(scope="module")
def folder(folders: Any) -> Path:
    found: Path = folders("nano")
    return found


@pytest.fixture(scope="module")
def platform(folder: Path) -> Iterator[Platform]:
    with open_platform() as opened:
        opened.add_base_model(folder, id="tiny")
        yield opened


def reference(folder: Path, ids: list[int]) -> list[float]:
    """The log-probability of each token but the first, by transformers."""
    with torch.no_grad():
        found = AutoModelForCausalLM.from_pretrained(folder)(torch.tensor([ids])).logits[0].log_softmax(-1)
    return [found[at, token].item() for at, token in enumerate(ids[1:])]


def test_the_tokens_of_a_chat_are_answered_as_the_chat_is(platform: Platform) -> None:
    asked: Any = {"model": "tiny", "seed": 3, "max_tokens": 6, "return_token_ids": True, "n": 2}
    chat = platform.chat.complete(messages=CHAT, **asked)
    prompt = platform.compat.completions.tokenize(model="tiny", messages=CHAT)
    same = platform.compat.completions.complete(prompt=prompt, **asked)
    assert prompt == chat.choices[0].prompt_token_ids
    assert [choice.token_ids for choice in same.choices] == [choice.token_ids for choice in chat.choices]
    assert chat.usage.cached_tokens == 0
    assert same.usage == attrs.evolve(chat.usage, cached_tokens=len(prompt) - 1)


@pytest.mark.parametrize("at_once", [1, 7, 2**25])
def test_a_prompt_has_the_log_probabilities_of_transformers(
    platform: Platform, folder: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(prompt_scores, "LOGITS", at_once * 259 if at_once < 10 else at_once)
    ids = [72, 73, 74, 2, 75, 200, 72, 73, 74]
    asked: Any = {"model": "tiny", "max_tokens": 0, "prompt_logprobs": 3}
    for prompt in (ids, ids[:5], ids):  # what is read of one would be copied by the next
        (choice,) = platform.compat.completions.complete(prompt=prompt, **asked).choices
        scored = choice.prompt_logprobs
        assert [entry.id for entry in scored] == prompt[1:]
        assert [entry.logprob for entry in scored] == pytest.approx(reference(folder, prompt), abs=1e-4)
        for entry in scored:
            assert [other.logprob for other in entry.top] == sorted((one.logprob for one in entry.top), reverse=True)
            better = sum(other.logprob > entry.logprob for other in entry.top)
            assert entry.rank is not None
            assert entry.rank == better + 1 if better < 3 else entry.rank > 3


def test_prompts_that_are_scored_share_a_pass_with_others_and_survive_a_failed_one(folder: Path) -> None:
    engine = engine_of(folder, memory=2**22)
    prompt = [5, 6, 7, 8, 9]
    plain, scored, again = (requested(prompt, 4, top_of_prompt=count) for count in (None, 1, 0))
    read, broken = engine._passes.read, [True]

    def once(new: Any) -> Any:
        found = read(new)
        if broken and len(new) > 1:
            broken.clear()
            raise RuntimeError
        return found

    engine._passes.read = once  # type: ignore[method-assign]
    answers = answered(engine, plain, scored, again)
    assert answers[0] == answers[1] == answers[2]
    assert plain.scored == []
    expected = reference(folder, prompt)
    for one in (scored, again):
        assert [entry.token for entry in one.scored] == prompt[1:]
        assert [entry.logprob for entry in one.scored] == pytest.approx(expected, abs=1e-4)


def test_text_is_read_by_the_models_tokenizer(platform: Platform) -> None:
    text = "hello <|im_end|> é"
    ids = platform.compat.completions.tokenize(model="tiny", prompt=text)
    assert 2 in ids  # in a prompt, unlike in a message, the name of a special token is the token
    assert platform.compat.completions.detokenize(model="tiny", tokens=ids) == text
    by_text, by_ids = (
        platform.compat.completions.complete(model="tiny", prompt=prompt, seed=1, max_tokens=3, return_token_ids=True)
        for prompt in (text, ids)
    )
    assert by_text.choices[0].token_ids == by_ids.choices[0].token_ids
    with pytest.raises(InvalidInput, match="259 is not a token id"):
        platform.compat.completions.complete(model="tiny", prompt=[1, 259])
