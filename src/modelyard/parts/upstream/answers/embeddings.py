"""The embeddings in an answer of another server, wherever they stand, and the tokens that it counts.

As with completions, the answer is paid for: what is usable is read, and the rest is ignored.
"""

import base64
import binascii
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from modelyard.domain.embedding import EmbeddedBatch
from modelyard.errors import InvalidInput
from modelyard.parts.upstream.answers.envelopes import enclosed
from modelyard.parts.upstream.answers.usage import MAY_REPORT, UsageReader
from modelyard.parts.upstream.answers.values import index_of, object_of, objects_of

Vector = Sequence[float]

_NAMES = ("embedding", "embeddings", "data", "values", "float", "dense", "vector", "vectors")
"""Members that have vectors: of OpenAI, of Ollama, and of Gemini and Cohere, which put an object around each."""
_DEEPEST = 6
"""How many objects and lists may stand around a vector."""
_URL_SAFE = str.maketrans("-_", "+/")
_SIZE = 4
"""Bytes of a 32-bit float."""


def read_answer(value: Any, count: int, size: int) -> EmbeddedBatch:
    """Read the embeddings of so many inputs, each of so many numbers. Raises `InvalidInput`.

    Without numbers that tell them apart, they are in the order of the inputs. Of several with one number, as of a
    server that does not pool its tokens, none is the input's.
    """
    found = list(_vectors(value, None, _DEEPEST))
    if len(found) != count:
        raise InvalidInput.at("data", msg=f"has {len(found)} embeddings, and must have one for each of {count} inputs")
    other = next((len(vector) for _, vector in found if len(vector) != size), size)
    if other != size:
        raise InvalidInput.at("data", msg=f"has an embedding of {other} numbers instead of {size}")
    if len({at for at, _ in found} - {None}) == count:
        found.sort(key=lambda one: one[0] or 0)
    return EmbeddedBatch(tuple(vector for _, vector in found), counted_tokens(value))


def counted_tokens(value: Any) -> int | None:
    """Return the tokens that the server has counted, under whichever name; None if it has counted none."""
    usage = UsageReader()
    for owner in (answer := object_of(value), *enclosed(answer, MAY_REPORT)):
        usage.take(owner)
    return usage.usage(0, 0, 0).prompt_tokens or None


def _vectors(value: Any, at: int | None, deepest: int) -> Iterator[tuple[int | None, Vector]]:
    """Yield the vectors within a value, each with the number that stands next to it."""
    if isinstance(value, list) and value and not isinstance(value[0], list | Mapping):
        yield at, _numbers(value)
    elif isinstance(value, list):
        for one in value if deepest else ():
            yield from _vectors(one, at, deepest - 1)
    elif isinstance(value, Mapping) and deepest:
        for one in objects_of(value):
            yield from _within(one, at, deepest - 1)


def _within(owner: Mapping[str, Any], at: int | None, deepest: int) -> Iterator[tuple[int | None, Vector]]:
    number = at if (own := index_of(owner.get("index"))) is None else own
    given = next((owner[name] for name in _NAMES if owner.get(name)), None)
    if isinstance(given, str):
        yield number, _floats(given)
    elif given is not None:
        yield from _vectors(given, number, deepest)
    else:
        for one in enclosed(owner, frozenset(_NAMES), 1):
            yield from _vectors(one, number, deepest)


def _numbers(values: Sequence[Any]) -> Vector:
    try:
        numbers = array("f", map(float, values) if any(isinstance(one, str) for one in values) else values)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInput.at("embedding", msg="must be a list of numbers", type="list_type") from None
    return _finite(numbers)


def _finite(numbers: "array[float]") -> Vector:
    if not math.isfinite(sum(numbers)):  # a sum of 32-bit floats that are finite always is
        raise InvalidInput.at("embedding", msg="must be a list of finite numbers", type="finite_number")
    return numbers


def _floats(text: str) -> Vector:
    try:
        plain = text.rstrip("=").translate(_URL_SAFE)
        raw = base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True)
        return _finite(array("f", struct.unpack(f"<{len(raw) // _SIZE}f", raw)))
    except (binascii.Error, struct.error, ValueError):
        raise InvalidInput.at("embedding", msg="must be 32-bit floats in base64", type="value_error") from None
