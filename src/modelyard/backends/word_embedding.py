"""Deterministic embeddings by feature hashing: each word adds 1 or -1 to a number that its hash chooses. Texts that
share words are near, whatever their order and case, on every machine; texts without a common word are nearly
orthogonal. A token id counts as a word."""

import re
from array import array
from collections.abc import Callable, Iterator
from zlib import crc32

from modelyard.domain.embedding import EmbeddedBatch, EmbeddingInput, EmbeddingRequest, check_lengths, normalized
from modelyard.protocols import ServedModel

AT_ONCE = 16
"""Inputs between two points at which the work can be stopped."""

_WORD = re.compile(r"\w+")


def embedded(
    request: EmbeddingRequest, model: ServedModel, size: int, count: Callable[[str], int]
) -> Iterator[EmbeddedBatch]:
    """Yield the embeddings of a request, of `size` numbers unless it asks for fewer. `count` counts the tokens of a
    text. Raises `ContextLengthExceeded`."""
    counts = [count(one) if isinstance(one, str) else len(one) for one in request.inputs]
    check_lengths(counts, model.entry.context_length)
    for first in range(0, len(counts), AT_ONCE):
        inputs = request.inputs[first : first + AT_ONCE]
        vectors = tuple(word_vector(one, request.dimensions or size) for one in inputs)
        yield EmbeddedBatch(vectors, sum(counts[first : first + AT_ONCE]))


def word_vector(given: EmbeddingInput, size: int) -> "array[float]":
    words = _WORD.findall(given.casefold()) if isinstance(given, str) else [str(token) for token in given]
    numbers = [0.0] * size
    for word in words:
        _add(numbers, word)
    if not any(numbers):  # it has no words, or they cancel each other out
        _add(numbers, repr(given))
    return normalized(numbers)


def _add(numbers: list[float], word: str) -> None:
    drawn = crc32(word.encode("utf-8", "surrogatepass"))
    numbers[(drawn >> 1) % len(numbers)] += 1.0 if drawn & 1 else -1.0
