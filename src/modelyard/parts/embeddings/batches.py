"""The batches of a backend's embeddings: checked, counted and put together."""

import math
from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from modelyard.domain.embedding import EmbeddedBatch, EmbeddingInput
from modelyard.errors import BackendError
from modelyard.protocols import AsyncBackend, Backend

E = TypeVar("E", bound=Exception)
_SPENT = "spent_tokens"
LONG = 2**16
"""Bytes of inputs from which they are not embedded on an event loop, even by a backend that never waits."""

SPECIAL_TOKENS = 8
"""The most tokens that a tokenizer puts around an input."""


def most_tokens(given: EmbeddingInput, longest: int) -> int:
    """Return how many tokens an input has at most: a token has at least one byte."""
    return min(longest, SPECIAL_TOKENS + (len(given.encode()) if isinstance(given, str) else len(given)))


def estimated_tokens(most: int) -> int:
    """Return about how many tokens inputs have that can have so many: four bytes each."""
    return min(most, most // 4 + 1)


def as_streaming(backend: Any, size: int) -> Backend | AsyncBackend:
    """Return what streams the embeddings of so many bytes as the backend streams answers."""
    found: dict[str, Any] = {}
    if hasattr(backend, "embed"):
        found = {"stream": backend.embed, "blocking": getattr(backend, "blocking", True) or size > LONG}
    if hasattr(backend, "aembed"):
        found["astream"] = backend.aembed
    return cast(Backend, SimpleNamespace(**found))


def with_spent(error: E, tokens: int | None) -> E:
    """Note on an error how many tokens the answer has cost that cannot be used: see `BatchCollector.failed`."""
    if tokens:
        error.__dict__[_SPENT] = tokens
    return error


class BatchCollector:
    """Takes batches until there is a vector for each of `count` inputs. `produced` says whether any came."""

    def __init__(self, inputs: Sequence[EmbeddingInput], size: int, limits: Sequence[int]) -> None:
        self._count, self._size, self._limits = len(inputs), size, limits
        self.vectors: list[array[float]] = []
        self.tokens: int = 0
        self.estimated: bool = False

    @property
    def complete(self) -> bool:
        return len(self.vectors) == self._count

    def take(self, batch: Any) -> bool:
        """Add a batch; return True, so that the caller pauses after it. Raises `BackendError`."""
        if type(batch) is not EmbeddedBatch or not batch.vectors:
            raise BackendError(f"the backend gave a {type(batch).__name__} instead of embeddings")
        first, last = len(self.vectors), len(self.vectors) + len(batch.vectors)
        if last > self._count:
            raise BackendError(f"the backend gave more than {self._count} embeddings for as many inputs")
        vectors = [self._checked(vector) for vector in batch.vectors]
        self._count_tokens(batch.tokens, sum(self._limits[first:last]))
        self.vectors += vectors
        return True

    def failed(self, error: Exception) -> None:
        """Add what the backend says, on its error, of the cost of an answer that cannot be used."""
        spent = error.__dict__.get(_SPENT)
        if spent is not None:
            self._count_tokens(spent, sum(self._limits[len(self.vectors) :]))

    def _count_tokens(self, tokens: Any, most: int) -> None:
        """Add the tokens of some inputs, at most as many as were reserved for them."""
        if tokens is None:
            self.estimated = True
            tokens = estimated_tokens(most)
        elif type(tokens) is not int or tokens < 0:
            raise BackendError(f"the backend gave {tokens!r} as its number of tokens")
        self.tokens += min(tokens, most)

    def _checked(self, vector: Any) -> "array[float]":
        if len(vector) != self._size:
            raise BackendError(f"the backend gave an embedding of {len(vector)} numbers instead of {self._size}")
        kept = vector if type(vector) is array and vector.typecode == "f" else array("f", vector)
        if not math.isfinite(sum(kept)):  # a sum of 32-bit floats that are finite always is
            raise BackendError("the backend gave an embedding with a number that is not finite")
        return kept
