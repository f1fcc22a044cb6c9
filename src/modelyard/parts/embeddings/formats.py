"""Requests and answers in the embeddings format: read strictly, written, and the same for another server."""

import base64
import struct
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii as quoted
from typing import Any, ClassVar, Literal

import attrs

from modelyard.domain.embedding import (
    MAX_INPUTS,
    MAX_TOKENS,
    EmbeddingInput,
    EmbeddingRequest,
    EmbeddingResult,
)
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import LONGEST_MODEL_NAME, is_unicode
from modelyard.formats.constraints import Length, Within
from modelyard.formats.converter import structure_exactly
from modelyard.formats.json import dumps
from modelyard.parts.embeddings import fields

MOST_DIMENSIONS = 2**16
_TOKEN_IDS = range(2**31)
_SIZE = 4
"""Bytes of a 32-bit float."""

# ---- the shape ---------------------------------------------------------------------------------------------------

EmbeddedInput = str | tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...]
"""A text, texts, the token ids of one input, or those of several."""


def read_inputs(value: Any) -> tuple[EmbeddingInput, ...]:
    if isinstance(value, str):
        return (_text(value),)
    if type(value) is not list:
        raise fields.refused(
            "must be a string, a list of strings, a list of token ids or a list of such lists", "value_error"
        )
    if not value:
        raise fields.refused("must not be empty", "value_error")
    if type(value[0]) is int:
        return (_ids(value),)
    if len(value) > MAX_INPUTS:
        raise fields.refused(f"must have at most {MAX_INPUTS} items", "value_error")
    if isinstance(value[0], str):
        return fields.each(_text, value)
    read = fields.each(_ids, value)
    _check_total(sum(map(len, read)))
    return read


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise fields.refused("must be a string", "string_type")
    if not value:
        raise fields.refused("must not be empty", "value_error")
    if not is_unicode(value):
        raise fields.refused("holds a lone surrogate; send valid Unicode", "value_error")
    return value


def _ids(value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise fields.refused("must be a list of token ids", "list_type")
    if not value:
        raise fields.refused("must not be empty", "value_error")
    for at, token in enumerate(value):
        if type(token) is not int or token not in _TOKEN_IDS:
            raise InvalidInput.at(at, msg="must be a token id, a whole number from 0 to 2^31 - 1", type="int_type")
    _check_total(len(value))
    return tuple(value)


def _check_total(tokens: int) -> None:
    if tokens > MAX_TOKENS:
        raise fields.refused(f"has {tokens} tokens in all; send at most {MAX_TOKENS} at once", "value_error")


@attrs.define(kw_only=True)
class EmbeddingsBody:
    """The body of a request. Null means the same as leaving a parameter out."""

    CALLED: ClassVar[str] = "embeddings"

    model: str = attrs.field(validator=Length(1, LONGEST_MODEL_NAME))
    input: tuple[EmbeddingInput, ...] = attrs.field(metadata={"parser": read_inputs, "described_as": EmbeddedInput})
    dimensions: int | None = attrs.field(default=None, validator=Within(1, MOST_DIMENSIONS))
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = attrs.field(default=None, validator=Length(0, 1024))


@attrs.frozen
class EmbeddingObject:
    """The embedding of one input: its numbers, or their bytes as 32-bit little-endian floats in base64."""

    object: Literal["embedding"]
    index: int
    embedding: tuple[float, ...] | str


@attrs.frozen
class EmbeddingsUsage:
    """Tokens counted, over all inputs."""

    prompt_tokens: int
    total_tokens: int


@attrs.frozen
class EmbeddingsAnswer:
    """The embeddings of all inputs, in their order."""

    object: Literal["list"]
    data: tuple[EmbeddingObject, ...]
    model: str
    usage: EmbeddingsUsage


# ---- read and written for clients --------------------------------------------------------------------------------


@attrs.frozen
class ParsedEmbeddings:
    request: EmbeddingRequest
    in_base64: bool


def read_embeddings(body: object, *loc: str | int) -> ParsedEmbeddings:
    parsed = structure_exactly(EmbeddingsBody, body, *loc)
    request = EmbeddingRequest(parsed.model, parsed.input, parsed.dimensions, parsed.user)
    return ParsedEmbeddings(request, parsed.encoding_format == "base64")


def embeddings_json(made: EmbeddingResult, in_base64: bool) -> bytes:
    """Write an answer. Numbers have the nine digits that a 32-bit float needs."""
    write = _in_base64 if in_base64 else _in_digits
    data = ",".join(
        f'{{"object":"embedding","index":{at},"embedding":{write(vector)}}}' for at, vector in enumerate(made.vectors)
    )
    tokens = made.tokens
    rest = f'"model":{quoted(made.model)},"usage":{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}'
    return f'{{"object":"list","data":[{data}],{rest}}}'.encode("ascii")


def _in_digits(vector: Sequence[float]) -> str:
    return f"[{','.join([f'{number:.9g}' for number in vector])}]"


def _in_base64(vector: Sequence[float]) -> str:
    return f'"{base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")}"'


# ---- for another server ------------------------------------------------------------------------------------------


def embeddings_request(request: EmbeddingRequest, name: str, dimensions: int | None) -> bytes:
    """Write a request for a server that calls the model by this name; base64 is read twenty times as fast."""
    inputs = [one if isinstance(one, str) else list(one) for one in request.inputs]
    body: dict[str, Any] = {"model": name, "input": inputs, "encoding_format": "base64"}
    if dimensions is not None:
        body["dimensions"] = dimensions
    if request.user is not None:
        body["user"] = request.user
    return dumps(body)
