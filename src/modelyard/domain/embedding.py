"""Embeddings: the request, the batches in which a backend answers it, and the result."""

import math
from array import array
from collections.abc import Iterable, Sequence

import attrs

from modelyard.errors import ContextLengthExceeded, InvalidInput, Problem

MAX_INPUTS = 2048
MAX_TOKENS = 300_000
EmbeddingInput = str | tuple[int, ...]


@attrs.frozen
class EmbeddingRequest:
    """A validated request. `model` is a catalogue id or the name of a trained model (see `domain.models.ModelName`).
    Each of the `inputs` is not empty. `dimensions` is how many numbers an embedding has; None means the model's own
    number. `user` names an end user of the caller."""

    model: str
    inputs: tuple[EmbeddingInput, ...]
    dimensions: int | None = None
    user: str | None = None


@attrs.frozen
class EmbeddedBatch:
    """The embeddings of the next inputs of a request, in order: one or more. `tokens` is how many tokens these inputs
    have; None means that the backend does not know."""

    vectors: tuple[Sequence[float], ...]
    tokens: int | None


@attrs.frozen
class EmbeddingResult:
    """The finished embeddings, one for each input, in order. `model` is the name that was requested.

    Each vector is an `array` of 32-bit floats. Vectors of echoes and of local models have length 1, so that the dot
    product of two is their cosine similarity; other servers may send other lengths. `tokens` counts all inputs, and is
    `estimated` if the backend does not know.
    """

    id: str
    model: str
    vectors: tuple[Sequence[float], ...]
    tokens: int
    estimated: bool = False


def normalized(numbers: Iterable[float]) -> "array[float]":
    given = [*numbers]
    length = math.hypot(*given)
    return array("f", [number / length for number in given])


def check_lengths(tokens: Sequence[int], longest: int) -> None:
    """Check the tokens of each input against the model's context, and their sum. Raises `ContextLengthExceeded`,
    `InvalidInput`."""
    for at, count in enumerate(tokens):
        if count > longest:
            msg = f"This model's maximum context length is {longest} tokens. However, input {at} has {count} tokens; "
            raise ContextLengthExceeded([Problem(("input",), msg + "shorten it.", ContextLengthExceeded.code)])
    if sum(tokens) > MAX_TOKENS:
        raise InvalidInput.at("input", msg=f"has {sum(tokens)} tokens in all; send at most {MAX_TOKENS} at once")
