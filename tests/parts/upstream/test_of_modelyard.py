"""modelyard as the upstream of modelyard: over HTTP it answers as it does in process."""

import asyncio
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import attrs
import pytest

from backends import AsynchronousFace
from modelyard import Platform, Pricing, ScriptedBackend, open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import COMMON, VLLM, UpstreamBackend, UpstreamModel, offer
from modelyard.backends.echo import EchoBackend
from modelyard.backends.router import Router
from modelyard.domain.completion import Completion
from modelyard.domain.events import CompletionBooked
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.parts.contracts.backend import BackendContract
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.upstream.fake_vllm.server import FakeVllm
from modelyard.protocols import AsyncBackend

TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}]
SCHEMA = {"type": "json_schema", "json_schema": {"name": "found", "schema": {"type": "integer", "minimum": 3}}}


Happenings = SimpleQueue[object]


@pytest.fixture(scope="module")
def happened() -> Happenings:
    """What the platform in this process tells its observer."""
    return SimpleQueue()


@pytest.fixture(scope="module")
def near(happened: Happenings) -> Iterator[Platform]:
    """The platform in this process."""
    with open_platform(backend=Router([EchoBackend(), TabularBackend()]), observer=happened.put) as platform:
        yield platform


@pytest.fixture(scope="module")
def upstream(near: Platform) -> Iterator[UpstreamBackend]:
    """The same one, asked over HTTP."""
    key = near.keys.create("acme").secret
    free = [attrs.evolve(entry, pricing=Pricing()) for entry in near.catalogue.list()]
    sampling = attrs.evolve(VLLM, forced_tools=False, json_mode=False, structured_outputs=False)
    can = {"echo": VLLM, "tabular-mini": sampling}
    models = [UpstreamModel(entry, can[entry.id]) for entry in free]
    with (
        asgi_server(asgi_app(near)) as server,
        UpstreamBackend(f"{server.url}/inference/v1", key, models=models) as backend,
    ):
        yield backend


@pytest.fixture(scope="module")
def behind_vllm() -> Iterator[Platform]:
    """A platform that has its answers from a double of a vLLM server with the same models."""
    fake = FakeVllm(Router([EchoBackend(), TabularBackend()]))
    models = [
        offer(model, context_length=8192, pricing=Pricing(), capabilities=VLLM) for model in ("echo", "tabular-mini")
    ]
    with fake.serve() as url, UpstreamBackend(f"{url}/v1", models=models) as backend:
        with open_platform(backend=backend) as platform:
            yield platform


@pytest.fixture(scope="module")
def far(upstream: UpstreamBackend) -> Iterator[Platform]:
    """A platform that has its answers from the other one."""
    with open_platform(backend=upstream) as platform:
        yield platform


class TestEchoFromAfar(BackendContract):
    @pytest.fixture
    def backend(self, upstream: UpstreamBackend) -> UpstreamBackend:
        return upstream


class TestSamplingFromAfarOnLoops(BackendContract):
    """Each answer on an event loop of its own."""

    @pytest.fixture
    def backend(self, upstream: UpstreamBackend) -> AsyncBackend:
        return AsynchronousFace(upstream)

    @pytest.fixture
    def model(self) -> str:
        return "tabular-mini"


QUESTIONS: list[dict[str, Any]] = [
    {"model": "echo", "messages": "hello there 🌊"},
    {"model": "echo", "messages": "a b c d", "n": 3, "max_tokens": 3},
    {"model": "echo", "messages": "one two three", "stop": [" three"], "logprobs": True},
    {"model": "echo", "messages": "x", "tools": TOOLS, "tool_choice": "required"},
    {
        "model": "echo",
        "messages": "x",
        "tools": TOOLS,
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    },
    {"model": "echo", "messages": "x", "response_format": SCHEMA},
    {"model": "echo", "messages": "", "max_tokens": 5},
    {"model": "echo", "messages": "one two", "reasoning_effort": "low", "logprobs": True},
    {"model": "echo", "messages": "one two", "reasoning_effort": "low", "max_tokens": 3, "n": 2},
    {"model": "tabular-mini", "messages": "say", "logprobs": True, "top_logprobs": 4, "return_token_ids": True},
    {"model": "tabular-mini", "messages": "say", "n": 2, "temperature": 0.5, "top_k": 40, "min_p": 0.01},
    {"model": "tabular-mini", "messages": "say", "logit_bias": {101: 50.0}, "repetition_penalty": 1.3, "top_p": 0.9},
]


def ask(platform: Platform, question: dict[str, Any]) -> Completion:
    return platform.chat.complete(**{"seed": 11, "max_tokens": 30, **question})


def ask_streaming(platform: Platform, question: dict[str, Any]) -> Completion:
    with platform.chat.stream(**{"seed": 11, "max_tokens": 30, **question}) as stream:
        assert list(stream)
    assert stream.completion is not None
    return stream.completion


def ask_on_loop(platform: Platform, question: dict[str, Any]) -> Completion:
    return asyncio.run(platform.chat.acomplete(**{"seed": 11, "max_tokens": 30, **question}))


def content(completion: Completion) -> Any:
    """Return what an answer consists of, but for ids of tokens that were not requested, and names of stop strings."""

    def bare(entry: Any) -> Any:
        return attrs.evolve(entry, id=None, top=tuple(map(bare, entry.top)))

    choices = [
        attrs.evolve(choice, logprobs=choice.logprobs and tuple(map(bare, choice.logprobs)), stop_string=None)
        for choice in completion.choices
    ]
    return choices, completion.usage


@pytest.mark.parametrize("way", [ask, ask_streaming, ask_on_loop])
@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: ",".join(question))
def test_an_answer_from_afar_is_the_answer_in_process(
    near: Platform, far: Platform, question: dict[str, Any], way: Any
) -> None:
    assert content(way(far, question)) == content(ask(near, question))


@pytest.mark.parametrize("way", [ask, ask_streaming])
def test_a_vllm_shows_its_reasoning_under_its_own_name(behind_vllm: Platform, way: Any) -> None:
    completion = way(behind_vllm, {"model": "echo", "messages": "one two", "reasoning_effort": "low"})
    assert (completion.choices[0].message.reasoning, completion.text) == ("one two", "one two")


@pytest.mark.parametrize("reads", [False, True])
def test_a_server_is_sent_earlier_reasoning_only_for_a_model_that_reads_it(reads: bool) -> None:
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm"},
        {"role": "user", "content": "and?"},
    ]
    far = ScriptedBackend(lambda request: "ok", ["m"])
    can = attrs.evolve(COMMON, reasoning=reads)
    with FakeVllm(far).serve() as url:
        models = [offer("m", context_length=8192, pricing=Pricing(), capabilities=can)]
        with UpstreamBackend(f"{url}/v1", models=models) as backend, open_platform(backend=backend) as platform:
            ask(platform, {"model": "m", "messages": turns})
    (request,) = far.requests
    assert [message.reasoning for message in request.messages] == [None, "hm" if reads else None, None]


PROMPTS: list[dict[str, Any]] = [
    {"model": "echo", "prompt": "hello there 🌊"},
    {"model": "echo", "prompt": "a b c d", "n": 3, "max_tokens": 3, "stop": ["c"]},
    {"model": "tabular-mini", "prompt": [72, 101, 300], "n": 2, "logprobs": 0, "return_token_ids": True},
    {"model": "tabular-mini", "prompt": [72, 101, 300], "n": 2, "temperature": 0},
    {"model": "tabular-mini", "prompt": "It is", "prompt_logprobs": 2, "return_token_ids": True, "max_tokens": 1},
    {"model": "tabular-mini", "prompt": [72, 101, 300], "prompt_logprobs": 0, "max_tokens": 0},
]


@pytest.mark.parametrize("of", ["far", "behind_vllm"])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda prompt: ",".join(prompt))
def test_a_prompt_is_continued_from_afar_as_in_process(
    request: pytest.FixtureRequest, near: Platform, of: str, prompt: dict[str, Any]
) -> None:
    far = request.getfixturevalue(of)
    asked: Any = {"seed": 11, "max_tokens": 20, **prompt}
    here = near.compat.completions.complete(**asked)
    with far.compat.completions.stream(**asked) as stream:
        assert list(stream)
    for there in (far.compat.completions.complete(**asked), stream.completion):
        assert there is not None
        assert without_ids(there) == without_ids(here)


def without_ids(completion: Completion) -> Any:
    """Return what an answer consists of, but for what the format leaves out of log-probabilities."""

    def bare(entries: Any) -> Any:
        return entries and [(entry.token, round(entry.logprob, 9), entry.rank) for entry in entries]

    return completion.usage, [
        (choice.message, choice.finish_reason, choice.token_ids, bare(choice.logprobs), bare(choice.prompt_logprobs))
        for choice in completion.choices
    ]


FAULTS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "x " * 200_000}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"$ref": "#/nowhere"}}}},
    {"tools": [{"type": "function", "function": {"name": "not a name"}}]},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "no such"}}}},
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: next(iter(fault)))
def test_an_error_of_the_caller_is_the_same_over_http(near: Platform, far: Platform, fault: dict[str, Any]) -> None:
    question = {"model": "echo", "messages": "x", "max_tokens": None, **fault}
    with pytest.raises(InvalidInput) as reported:
        ask(far, question)
    try:
        ask(near, question)
    except ModelyardError as here:
        assert (reported.type, reported.value.code) == (type(here), here.code)
        message = str(reported.value).removesuffix(f" ({here.code})")  # which an answer over HTTP adds
        assert message.endswith(str(here).partition(": ")[2])


def test_who_goes_away_stops_the_work_two_servers_on(far: Platform, happened: Happenings) -> None:
    words = 60_000
    with far.chat.stream(model="echo", messages="w " * words, max_tokens=words) as stream:
        next(stream)
        while not happened.empty():
            happened.get()
    booked = happened.get(timeout=60)
    assert isinstance(booked, CompletionBooked)
    assert 0 < booked.completion_tokens < words
