"""The parts of a JSON schema that the library of grammars lacks: named with their place, or left out if sound."""

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
    loc: Loc
    schema: Mapping[str, Any]


def softened(place: SchemaAt, fault: str) -> SchemaAt:
    """Return the schema without what the fault is about, if an answer may do without it.

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
    """Raise the error of a schema at the keyword that the fault is about, or at the schema if that is not known."""
    says = (
        "cannot be kept by this engine; leave it out, or use a simpler schema" if words else f"cannot be kept: {fault}"
    )
    found = [(*loc, word) for loc, part in _parts(schema, ()) for word in _blamed(part, words, fault)]
    raise InvalidInput.at(*place.loc, *(found[0] if found else ()), msg=says)


def _blamed(part: Mapping[str, Any], words: list[str], fault: str) -> Iterator[str]:
    """Yield the keywords of a schema that the fault may be about."""
    quoted = re.findall(r"'([^']+)'", fault)
    kind = re.search(r"Invalid type: (\S+)", fault)
    for word, value in part.items():
        if words:
            blamed = word in words
        elif kind:
            blamed = word == "type" and kind[1] in (value if isinstance(value, list) else [value])
        elif word == "$ref":
            blamed = str(value).removeprefix("#") in quoted
        else:
            blamed = word in quoted or (word == "pattern" and "regex" in fault)
        if blamed:
            yield word


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
