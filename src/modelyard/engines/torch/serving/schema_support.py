"""What the library of grammars cannot keep of a JSON schema: named with its place, or left out where that is sound."""

import copy
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import attrs

from modelyard.errors import InvalidInput

Loc = tuple[str | int, ...]

_LEFT_OUT = frozenset({"uniqueItems"})
"""Keywords that no grammar can keep: what they ask for is left to the model."""

_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"const", "enum", "default", "examples"})


@attrs.frozen
class SchemaAt:
    """A JSON schema, and its place in the request."""

    loc: Loc
    schema: Mapping[str, Any]


def softened(place: SchemaAt, fault: str) -> SchemaAt:
    """Return the schema without what the fault is about, where an answer may do without it.

    An unknown `format` is an annotation. Raises `InvalidInput` at the keyword that the fault is about.
    """
    schema: dict[str, Any] = json.loads(json.dumps(place.schema, default=dict))
    unknown = re.search(r"Unimplemented keys: (\[.*?\])", fault)
    words = json.loads(unknown[1]) if unknown else []
    left_out = _LEFT_OUT.intersection(words)
    format_ = re.search(r"Unknown format: (.+)", fault)
    if not (left_out or format_):
        _refuse(place, schema, words, fault)
    for _, part in _parts(schema, ()):
        for word in left_out:
            part.pop(word, None)
        if format_ and part.get("format") == format_[1]:
            del part["format"]
    return SchemaAt(place.loc, schema)


def _refuse(place: SchemaAt, schema: dict[str, Any], words: list[str], fault: str) -> NoReturn:
    if words:
        at = next((loc for loc, part in _parts(schema, ()) if words[0] in part), ())
        raise InvalidInput.at(
            *place.loc, *at, words[0], msg="cannot be kept by this engine; leave it out, or use a simpler schema"
        )
    quoted = re.findall(r"'([^']+)'", fault)
    for loc, part in _parts(schema, ()):
        for word in quoted:
            if part.get("$ref") == f"#{word}":
                raise InvalidInput.at(*place.loc, *loc, "$ref", msg=f"cannot be kept: {fault}")
            if word in part:
                raise InvalidInput.at(*place.loc, *loc, word, msg=f"cannot be kept: {fault}")
    raise InvalidInput.at(*place.loc, msg=f"cannot be kept: {fault}")


def _parts(schema: dict[str, Any], loc: Loc) -> Iterator[tuple[Loc, dict[str, Any]]]:
    """Yield each schema within a schema, itself first, with its place."""
    yield loc, schema
    for name, value in copy.copy(schema).items():
        if name in _VALUES:
            continue
        if name in _SCHEMAS_BY_NAME and isinstance(value, dict):
            inner: list[tuple[Loc, Any]] = [((*loc, name, key), one) for key, one in value.items()]
        elif isinstance(value, list):
            inner = [((*loc, name, at), one) for at, one in enumerate(value)]
        else:
            inner = [((*loc, name), value)]
        for place, one in inner:
            if isinstance(one, dict):
                yield from _parts(one, place)
