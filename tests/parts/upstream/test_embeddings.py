"""Embeddings of a server: attempts, time limits and refusals as of completions, answers held to what is offered."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from modelyard import open_platform
from modelyard.backends import EchoBackend, UpstreamBackend, offer
from modelyard.domain.catalogue import Pricing
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingRequest
from modelyard.errors import BackendError, ContextLengthExceeded, InvalidInput, Overloaded
from modelyard.parts.upstream.fake_vllm.server import EMBEDDINGS
from modelyard.parts.upstream.fallback import Fallback
from modelyard.protocols import Capabilities, ServedModel
from modelyard.testing import CutConnection, FakeVllm, Refuse
from upstream_asking import TIMEOUTS, Hurried, http

SECRET = "sk-very-secret"
CAN = Capabilities(embedding_size=256, embedding_dimensions=True, completions=False)


@pytest.fixture(scope="module")
def fake() -> FakeVllm:
    return FakeVllm(EchoBackend(context_length=1000), api_key=SECRET)


@pytest.fixture(scope="module")
def url(fake: FakeVllm) -> Iterator[str]:
    with fake.serve() as url:
        yield f"{url}/v1"


def made_by(url: str, clock: Hurried, can: Capabilities = CAN, name: str = "echo") -> UpstreamBackend:
    offered = offer("words", context_length=1000, pricing=Pricing(), capabilities=can, served_as=name)
    return UpstreamBackend(
        url, SECRET, models=[offered], clock=clock, timeouts=TIMEOUTS, jitter=lambda: 0.0, concurrency=2
    )


def blocking(backend: UpstreamBackend, inputs: Sequence[Any]) -> list[EmbeddedBatch]:
    (entry,) = backend.entries()
    return list(backend.embed(EmbeddingRequest("words", tuple(inputs)), ServedModel("words", entry)))


def on_a_loop(backend: UpstreamBackend, inputs: Sequence[Any]) -> list[EmbeddedBatch]:
    async def main() -> list[EmbeddedBatch]:
        (entry,) = backend.entries()
        request = EmbeddingRequest("words", tuple(inputs))
        return [batch async for batch in backend.aembed(request, ServedModel("words", entry))]

    return asyncio.run(main())


@pytest.fixture(params=[blocking, on_a_loop])
def ask(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_a_server_s_vectors_are_those_of_its_backend(fake: FakeVllm, url: str, ask: Any) -> None:
    with made_by(url, Hurried()) as backend, open_platform() as own:
        (batch,) = ask(backend, ["a cat", "two words"])
        assert [*batch.vectors] == [*own.embeddings.create(model="echo", input=["a cat", "two words"]).vectors]
    sent = fake.requests_to(EMBEDDINGS)[-1].body
    assert sent == {"model": "echo", "input": ["a cat", "two words"], "encoding_format": "base64"}
    assert batch.tokens == 4


@pytest.mark.parametrize("fault", [Refuse(500), Refuse(503), CutConnection()])
def test_what_may_pass_is_tried_again(fake: FakeVllm, url: str, ask: Any, fault: Any) -> None:
    clock = Hurried()
    fake.plan(fault, None, path=EMBEDDINGS)
    with made_by(url, clock) as backend:
        assert ask(backend, ["a"])[0].tokens == 1
        assert backend.retries == 1


@pytest.mark.parametrize(("status", "error"), [(500, BackendError), (503, Overloaded)])
def test_what_does_not_pass_is_reported(fake: FakeVllm, url: str, ask: Any, status: int, error: Any) -> None:
    fake.plan(*[Refuse(status)] * 3, path=EMBEDDINGS)
    with made_by(url, Hurried()) as backend, pytest.raises(error):
        ask(backend, ["a"])


def test_what_the_caller_did_wrong_is_told_at_the_inputs(url: str, ask: Any) -> None:
    with made_by(url, Hurried()) as backend:
        with pytest.raises(ContextLengthExceeded) as refused:
            ask(backend, ["a " * 1200])
        assert [problem.loc for problem in refused.value.problems] == [("input",)]
    with made_by(url, Hurried(), name="nothing") as backend, pytest.raises(BackendError, match="does not know this"):
        ask(backend, ["a"])


def test_an_answer_of_another_size_is_a_fault_of_the_server(url: str) -> None:
    backend = made_by(url, Hurried(), Capabilities(embedding_size=128, completions=False))
    with backend, open_platform(backend=backend) as platform:
        with pytest.raises(BackendError, match="256 numbers instead of 128"):
            platform.embeddings.create(model="words", input="a")
        with pytest.raises(InvalidInput, match="makes embeddings only"):
            platform.chat.complete(model="words", messages="hi")


ANSWER = {"object": "list", "data": [{"index": 0, "embedding": [1.0] * 256}], "usage": {"prompt_tokens": 3}}
USAGE, BARE = ANSWER["usage"], {name: one for name, one in ANSWER.items() if name != "usage"}


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        {"code": 0, "message": "OK", "data": ANSWER},
        {"success": True, "result": ANSWER},
        {"statusCode": 200, "body": json.dumps(ANSWER)},
        {"output": {**BARE, "usage": None}, "usage": USAGE},
        {"data": {"response": BARE, "usage": USAGE}},
        json.dumps(ANSWER),
    ],
    ids=lambda answer: "text" if isinstance(answer, str) else ", ".join(answer),
)
def test_embeddings_are_read_within_an_envelope(canned: Any, ask: Any, answer: Any) -> None:
    url = canned(http(json.dumps(answer).encode()))
    with made_by(url, Hurried()) as backend:
        (batch,) = ask(backend, ["hi"])
    assert (len(batch.vectors[0]), batch.tokens) == (256, 3)


@pytest.mark.parametrize("answer", [{"data": {}}, {"data": {"data": {"data": {}}}}, {"result": []}, {"data": "x"}])
def test_what_holds_no_embeddings_is_malformed(canned: Any, ask: Any, answer: Any) -> None:
    with made_by(canned(http(json.dumps(answer).encode())), Hurried()) as backend:
        with pytest.raises(BackendError, match="malformed"):
            ask(backend, ["hi"])


UNUSABLE = http(json.dumps({"data": [{"index": 0, "embedding": [1.0]}], "usage": {"prompt_tokens": 4}}).encode())
TOO_LONG = {"error": {"message": "maximum context length is 9 tokens"}, "usage": {"prompt_tokens": 4}}


class Wrapped:
    """What a host may put around a backend: it looks at every batch."""

    def __init__(self, backend: UpstreamBackend) -> None:
        self.inner, self.seen = backend, 0
        self.blocking, self.entries, self.capabilities = True, backend.entries, backend.capabilities

    def embed(self, request: EmbeddingRequest, model: ServedModel) -> Iterator[EmbeddedBatch]:
        for batch in self.inner.embed(request, model):
            self.seen += len(batch.vectors)
            yield batch

    async def aembed(self, request: EmbeddingRequest, model: ServedModel) -> AsyncIterator[EmbeddedBatch]:
        async for batch in self.inner.aembed(request, model):
            self.seen += len(batch.vectors)
            yield batch


def behind_one(backend: UpstreamBackend) -> Fallback:
    return Fallback([Wrapped(backend)])  # type: ignore[list-item]


@pytest.mark.parametrize("on_loop", [False, True])
@pytest.mark.parametrize("wrap", [Wrapped, behind_one])
@pytest.mark.parametrize("answer", [UNUSABLE, http(json.dumps(TOO_LONG).encode())], ids=["unusable", "too long"])
def test_what_an_answer_that_cannot_be_used_has_cost_is_booked_through_whatever_wraps_it(
    canned: Any, answer: bytes, wrap: Any, on_loop: bool
) -> None:
    with made_by(canned(answer), Hurried()) as backend, open_platform(backend=wrap(backend)) as platform:
        asked: Any = {"model": "words", "input": "a b c d e"}
        with pytest.raises((BackendError, ContextLengthExceeded)):
            asyncio.run(platform.embeddings.acreate(**asked)) if on_loop else platform.embeddings.create(**asked)
        assert [(one.prompt_tokens, one.estimated) for one in platform.usage.list()] == [(4, False)]


def test_every_batch_of_an_answer_that_cannot_be_used_has_vectors(canned: Any, ask: Any) -> None:
    with made_by(canned(UNUSABLE), Hurried()) as backend:
        wrapped = Wrapped(backend)
        with pytest.raises(BackendError, match="1 numbers instead of 256"):
            ask(wrapped, ["a"])
