"""Each member of a chat that is accepted is sent on to the server, or honoured here, or listed with its reason."""

from collections.abc import Iterator
from typing import Any

import attrs
import httpx
import pytest

from modelyard import Pricing, open_platform
from modelyard.backends import VLLM, Timeouts, UpstreamBackend, offer
from modelyard.domain.completion import ANSWER_EXTRAS
from modelyard.formats.chat.hints import WITHOUT_EFFECT
from modelyard.formats.chat.request import ChatRequest
from modelyard.testing import HttpxTransport, OddServer, odd_server

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in "fg"]
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "x"}], "seed": 7}
SENT: dict[str, Any] = {
    "temperature": 0.25,
    "top_p": 0.25,
    "top_k": 3,
    "min_p": 0.25,
    "frequency_penalty": 0.25,
    "presence_penalty": 0.25,
    "repetition_penalty": 1.25,
    "logit_bias": {"5": 1},
    "seed": 3,
    "min_tokens": 1,
    "ignore_eos": True,
    "stop_token_ids": [3],
    "n": 2,
    "stop": ["x"],
    "response_format": {"type": "json_object"},
    "structured_outputs": {"json": {"type": "object"}},
    "guided_json": {"type": "object"},
    "guided_choice": ["a"],
    "guided_regex": "a",
    "stream": True,
    "user": "u",
    "max_tokens": 7,
    "max_completion_tokens": 8,
    "top_logprobs": 2,
    "tools": TOOLS,
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "verbosity": "low",
    "safety_identifier": "s",
    "service_tier": "auto",
    "prompt_cache_key": "k",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "prediction": {"type": "content", "content": "x"},
}
"""Members that the server is sent, with a value that is not its default."""
HERE = {
    "model": "the name is the server's own",
    "messages": "they are always sent",
    "logprobs": "they are always asked for, where the server has them",
    "return_token_ids": "they are always asked for, where the server has them",
    "stream_options": "the usage is always asked for",
    "return_tokens_as_token_ids": "the answer is written so here",
    "modalities": "text is all there is",
    "metadata": "it is kept with the completion",
    "store": "the completion is kept here",
}
"""Members that are honoured here."""
NEEDED = {"top_logprobs": {"logprobs": True}, "tool_choice": {"tools": TOOLS}, "parallel_tool_calls": {"tools": TOOLS}}


@pytest.fixture
def server() -> Iterator[OddServer]:
    with odd_server() as server:
        yield server


def asked_of(server: OddServer, body: dict[str, Any]) -> dict[str, Any]:
    """What the server is asked for this body."""
    can = attrs.evolve(VLLM, parameters=VLLM.parameters | set(ANSWER_EXTRAS))
    model = offer("m", context_length=4096, pricing=Pricing(), capabilities=can)
    timeouts = Timeouts(retries=0)
    with (
        UpstreamBackend(server.url, models=[model], timeouts=timeouts) as backend,
        open_platform(backend=backend) as yard,
    ):
        headers = {"authorization": f"Bearer {yard.keys.create().secret}"}
        with httpx.Client(transport=HttpxTransport(yard), base_url="http://x", headers=headers) as client:
            answer = client.post("/v1/chat/completions", json=body)
    assert answer.status_code != 400, answer.text
    return server.requests[-1]


@pytest.mark.parametrize("name", SENT)
def test_a_member_changes_what_the_server_is_asked(server: OddServer, name: str) -> None:
    base = {**ASKED, **NEEDED.get(name, {})}
    assert asked_of(server, {**base, name: SENT[name]}) != asked_of(server, base)


def test_the_others_are_honoured_here_or_listed_with_their_reason() -> None:
    fields = {field.name: field for field in attrs.fields(ChatRequest)}
    listed = {name for name, field in fields.items() if "without_effect" in field.metadata}
    refused = {name for name, field in fields.items() if type(field.validator).__name__ == "Unsupported"}
    assert fields.keys() == {*SENT, *HERE, *refused, *listed}
    assert listed - {*WITHOUT_EFFECT} == {"nvext"}
