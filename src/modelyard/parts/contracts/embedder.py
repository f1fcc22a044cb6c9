"""The contract of what makes embeddings, synchronously or asynchronously, to run on your own implementation:

    class TestMyEmbedder(EmbedderContract):
        @pytest.fixture
        def backend(self):
            return MyBackend()

It tests each law with one offered model: the first that declares an `embedding_size`, unless the fixture `model` names
another.
"""

import math
from collections.abc import Sequence
from typing import Any

import pytest

from modelyard.domain.catalogue import EMBEDDINGS
from modelyard.domain.embedding import EmbeddedBatch, EmbeddingInput, EmbeddingRequest
from modelyard.errors import ContextLengthExceeded
from modelyard.parts.contracts.backend_client import read_all, served
from modelyard.protocols import Capabilities

TEXTS = ("a cat sat", "the cat sat on the mat", "Größe ≠ 深さ 🌊", "a", "word " * 40)


def embed(backend: Any, model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None = None) -> EmbeddedBatch:
    request = EmbeddingRequest(model, tuple(inputs), dimensions)
    batches: list[EmbeddedBatch] = read_all(
        lambda: backend.embed(request, served(backend, model)),
        lambda: backend.aembed(request, served(backend, model)),
        hasattr(backend, "embed"),
    )
    counts = [batch.tokens for batch in batches if batch.tokens is not None]
    vectors = tuple(vector for batch in batches for vector in batch.vectors)
    return EmbeddedBatch(vectors, sum(counts) if len(counts) == len(batches) else None)


class EmbedderContract:
    """The laws of `modelyard.protocols.Embedder` and `AsyncEmbedder`, for the fixture `backend`."""

    @pytest.fixture
    def model(self, backend: Any) -> str:
        """Return the id of the tested model; override it to name another."""
        found: str = next(entry.id for entry in backend.entries() if backend.capabilities(entry.id).embedding_size)
        return found

    @pytest.fixture
    def can(self, backend: Any, model: str) -> Capabilities:
        found: Capabilities = backend.capabilities(model)
        return found

    def test_models_that_embed_are_listed_with_it(self, backend: Any) -> None:
        for entry in backend.entries():
            can = backend.capabilities(entry.id)
            assert (EMBEDDINGS in entry.output_modalities) == (can.embedding_size > 0)
            assert ("text" in entry.output_modalities) == can.completions

    def test_each_input_has_a_vector_of_the_declared_size(self, backend: Any, model: str, can: Capabilities) -> None:
        for inputs in (TEXTS, TEXTS[:1], [(5, 6, 7)], [(5,), (6, 7)]):
            vectors = embed(backend, model, inputs).vectors
            assert [len(vector) for vector in vectors] == [can.embedding_size] * len(inputs)
            assert all(math.isfinite(number) for vector in vectors for number in vector)

    def test_a_vector_does_not_depend_on_the_other_inputs(self, backend: Any, model: str) -> None:
        together = embed(backend, model, TEXTS).vectors
        alone = [embed(backend, model, [text]).vectors[0] for text in TEXTS]
        for one, other in zip(together, alone, strict=True):
            assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-5

    def test_different_texts_have_different_vectors(self, backend: Any, model: str) -> None:
        vectors = [tuple(vector) for vector in embed(backend, model, TEXTS).vectors]
        assert len(set(vectors)) == len(TEXTS)

    def test_tokens_are_counted_input_by_input(self, backend: Any, model: str) -> None:
        whole = embed(backend, model, TEXTS).tokens
        alone = [embed(backend, model, [text]).tokens for text in TEXTS]
        if whole is not None:
            assert whole == sum(count or 0 for count in alone)
            assert all(0 < (count or 0) <= len(text.encode()) + 8 for count, text in zip(alone, TEXTS, strict=True))

    def test_many_inputs_keep_their_order(self, backend: Any, model: str) -> None:
        inputs = [f"number {at}" for at in range(70)]
        vectors = embed(backend, model, inputs).vectors
        (last,) = embed(backend, model, inputs[-1:]).vectors
        assert len(vectors) == 70
        assert max(abs(a - b) for a, b in zip(vectors[-1], last, strict=True)) < 1e-5

    def test_fewer_dimensions_are_made_where_that_is_declared(
        self, backend: Any, model: str, can: Capabilities
    ) -> None:
        if not can.embedding_dimensions:
            pytest.skip("this backend does not declare dimensions")
        size = can.embedding_size // 2
        assert [len(vector) for vector in embed(backend, model, TEXTS, size).vectors] == [size] * len(TEXTS)

    def test_an_input_beyond_the_context_is_refused(self, backend: Any, model: str) -> None:
        longest = served(backend, model).entry.context_length
        with pytest.raises(ContextLengthExceeded):
            embed(backend, model, [(5,), (5,) * (longest + 1)])
