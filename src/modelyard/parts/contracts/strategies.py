"""Hypothesis strategies for your own tests: records that a store must accept, requests that a backend must answer."""

import attrs
from hypothesis import strategies as st

from modelyard.domain.completion import CompletionRequest, Message, Role, Sampling
from modelyard.parts.contracts.store_values import items, json_values, specimens, texts
from modelyard.protocols import Capabilities

__all__ = ["conversations", "items", "json_values", "requests", "samplings", "sayings", "specimens", "texts"]

LIMIT = 16

_SAMPLING: dict[str, st.SearchStrategy[object]] = {
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0.01, 1),
    "top_k": st.none() | st.integers(1, 100),
    "min_p": st.floats(0, 1),
    "frequency_penalty": st.floats(-2, 2),
    "presence_penalty": st.floats(-2, 2),
    "repetition_penalty": st.floats(0.5, 2),
    "seed": st.integers(0, 2**31),
}


def sayings() -> st.SearchStrategy[str]:
    words = st.sampled_from(["hello", "world", "naïve", "深さ", "🌊", "1,5", "don't", "\n"])
    return st.lists(words, min_size=2, max_size=8).map(" ".join) | st.just("") | texts(max_size=20)


def conversations() -> st.SearchStrategy[tuple[Message, ...]]:
    turns = st.lists(st.tuples(sayings(), sayings()), max_size=2)
    return st.builds(_conversation, st.none() | sayings(), turns, sayings())


def _conversation(system: str | None, turns: list[tuple[str, str]], last: str) -> tuple[Message, ...]:
    before = [] if system is None else [Message(Role.SYSTEM, system)]
    for question, answer in turns:
        before += [Message(Role.USER, question), Message(Role.ASSISTANT, answer)]
    return (*before, Message(Role.USER, last))


def samplings(can: Capabilities) -> st.SearchStrategy[Sampling]:
    honoured = {name: _SAMPLING[name] for name in sorted(can.parameters & _SAMPLING.keys())}
    return st.builds(Sampling, **honoured)


def requests(model: str, can: Capabilities) -> st.SearchStrategy[CompletionRequest]:
    """Generate requests that the core may send to a backend with these capabilities. They ask for a few tokens of free
    text, after any conversation."""
    return st.builds(
        CompletionRequest,
        model=st.just(model),
        messages=conversations(),
        sampling=samplings(can),
        n=st.integers(1, 3) if can.choices else st.just(1),
        max_tokens=st.integers(1, LIMIT),
        logprobs=st.booleans() if can.logprobs else st.just(False),
        return_token_ids=st.booleans() if can.token_ids else st.just(False),
        streamed=st.booleans(),
    ).flatmap(lambda request: _with_alternatives(request, can))


def _with_alternatives(request: CompletionRequest, can: Capabilities) -> st.SearchStrategy[CompletionRequest]:
    most = can.top_logprobs if request.logprobs else 0
    return st.integers(0, most).map(lambda top: attrs.evolve(request, top_logprobs=top))
