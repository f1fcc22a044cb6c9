"""What makes embeddings keeps the contract; feature hashing puts texts that share words near each other."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.backends import EchoBackend, Fallback, Router, ScriptedBackend, UpstreamBackend, offer
from modelyard.backends.echo import CERTAIN
from modelyard.backends.word_embedding import word_vector
from modelyard.domain.catalogue import Pricing
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingRequest
from modelyard.engines.tabular.backend import TabularBackend
from modelyard.errors import BackendError
from modelyard.parts.contracts.embedder import embed
from modelyard.protocols import AsyncEmbedder, Capabilities, Embedder, ServedModel
from modelyard.testing import EmbedderContract, FakeVllm

EMBEDDER = Capabilities(embedding_size=CERTAIN.embedding_size, embedding_dimensions=True, completions=False)
_is_an_embedder: type[Embedder] = EchoBackend
_is_both: tuple[type[Embedder], type[AsyncEmbedder]] = UpstreamBackend, UpstreamBackend


class OnLoop:
    """An echo that embeds on an event loop only."""

    def __init__(self) -> None:
        self.inner = EchoBackend()
        self.entries, self.capabilities = self.inner.entries, self.inner.capabilities

    async def aembed(self, request: EmbeddingRequest, model: ServedModel) -> AsyncIterator[EmbeddedBatch]:
        for batch in self.inner.embed(request, model):
            yield batch


class Broken(EchoBackend):
    """An echo that cannot embed now."""

    def embed(self, request: EmbeddingRequest, model: ServedModel) -> Iterator[EmbeddedBatch]:
        raise BackendError("broken")
        yield


class TestEcho(EmbedderContract):
    @pytest.fixture
    def backend(self) -> Any:
        return EchoBackend(("echo", "parrot"))


class TestScripted(EmbedderContract):
    @pytest.fixture
    def backend(self) -> Any:
        return ScriptedBackend([])


class TestOnLoop(EmbedderContract):
    @pytest.fixture
    def backend(self) -> Any:
        return OnLoop()


class TestFallback(EmbedderContract):
    @pytest.fixture
    def backend(self) -> Any:
        return Fallback([Broken(), EchoBackend()])


@pytest.fixture(scope="module")
def upstream() -> Iterator[UpstreamBackend]:
    """An embedder behind HTTP."""
    offered = offer("echo", context_length=131_072, pricing=Pricing(), capabilities=EMBEDDER)
    with FakeVllm(EchoBackend()).serve() as url, UpstreamBackend(f"{url}/v1", models=[offered]) as backend:
        yield backend


class TestUpstream(EmbedderContract):
    @pytest.fixture
    def backend(self, upstream: UpstreamBackend) -> Any:
        return upstream


class TestUpstreamOnLoop(EmbedderContract):
    @pytest.fixture
    def backend(self, upstream: UpstreamBackend) -> Any:
        class Face:
            entries, capabilities, aembed = upstream.entries, upstream.capabilities, upstream.aembed

        return Face()


def test_a_fallback_embeds_on_an_event_loop_too() -> None:
    class Face:
        inner = Fallback([Broken(), EchoBackend()])
        entries, capabilities, aembed = inner.entries, inner.capabilities, inner.aembed

    assert embed(Face(), "echo", ["a"]) == embed(EchoBackend(), "echo", ["a"])


def test_a_fallback_declares_no_embeddings_that_could_not_be_compared() -> None:
    class Longer(EchoBackend):
        def capabilities(self, model: str) -> Capabilities:
            return Capabilities(embedding_size=CERTAIN.embedding_size * 2)

    assert Fallback([EchoBackend(), EchoBackend()]).capabilities("echo").embedding_size == CERTAIN.embedding_size
    assert Fallback([EchoBackend(), Longer()]).capabilities("echo").embedding_size == 0


def test_a_router_leads_to_the_backend_that_embeds() -> None:
    router = Router([EchoBackend(), TabularBackend()])
    assert router.capabilities("echo").embedding_size == CERTAIN.embedding_size
    assert router.capabilities("tabular-mini").embedding_size == 0
    assert hasattr(router.backend_of("echo"), "embed")


def similarity(one: str, other: str, size: int = 256) -> float:
    return sum(a * b for a, b in zip(word_vector(one, size), word_vector(other, size), strict=True))


def test_texts_with_the_same_words_are_near() -> None:
    assert similarity("the cat sat on a mat", "A mat: the cat sat on!") > 0.999
    assert similarity("the cat sat on a mat", "the cat sat on a rug") > 0.7
    assert abs(similarity("the cat sat on a mat", "stocks fell sharply yesterday")) < 0.3


@examples(60)
@given(st.text(min_size=1), st.sampled_from([1, 2, 7, 256]))
def test_every_text_has_a_vector_of_length_1(text: str, size: int) -> None:
    assert abs(similarity(text, text, size) - 1) < 1e-5


def test_a_vector_is_the_same_on_every_machine() -> None:
    assert [(at, round(number, 4)) for at, number in enumerate(word_vector("one two", 256)) if number] == PINNED


PINNED = [(51, -0.7071), (120, 0.7071)]
