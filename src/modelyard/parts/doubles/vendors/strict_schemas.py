"""The rules of schemas under which OpenAI promises an answer: the first that one breaks, in that vendor's words."""

from collections.abc import Iterator, Mapping
from typing import Any

NOT_PERMITTED = ("allOf", "not", "dependentRequired", "dependentSchemas", "if", "then", "else", "patternProperties")
"""Keywords that no strict schema may have."""

Place = tuple[str, ...]


def why_not_an_object(schema: object) -> str:
    """Return what is wrong with a schema that must be one of an object, strict or not; "" if nothing is."""
    if not isinstance(schema, dict) or schema.get("type") == "object":
        return ""
    if "type" not in schema and not schema.keys() & {"anyOf", "oneOf"}:
        return ""
    found = f'"{schema["type"]}"' if isinstance(schema.get("type"), str) else '"None"'
    return f"schema must be a JSON Schema of 'type: \"object\"', got 'type: {found}'."


def why_not_strict(schema: object) -> str:
    """Return the first thing that is wrong with a strict schema; "" if nothing is."""
    return why_not_an_object(schema) or next(_broken(schema, ()), "")


def _broken(schema: object, at: Place) -> Iterator[str]:
    if not isinstance(schema, dict):
        return
    for keyword in NOT_PERMITTED:
        if keyword in schema:
            yield _said(at, f"'{keyword}' is not permitted.")
    if _is_object(schema):
        yield from _broken_object(schema, at)
    for place, inner in _inner(schema):
        yield from _broken(inner, (*at, *place))


def _is_object(schema: Mapping[str, Any]) -> bool:
    type_ = schema.get("type")
    return type_ == "object" or (isinstance(type_, list) and "object" in type_) or "properties" in schema


def _broken_object(schema: Mapping[str, Any], at: Place) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield _said(at, "'additionalProperties' is required to be supplied and to be false.")
    properties, required = schema.get("properties"), schema.get("required")
    names = list(properties) if isinstance(properties, dict) else []
    listed = required if isinstance(required, list) else []
    if missing := [name for name in names if name not in listed]:
        wanted = "'required' is required to be supplied and to be an array including every key in properties."
        yield _said(at, f"{wanted} Missing '{missing[0]}'.")
    if extra := [name for name in listed if name not in names]:
        wanted = "'required' is required to be supplied and to be an array including every key in properties."
        yield _said(at, f"{wanted} Extra required key '{extra[0]}' supplied.")


def _inner(schema: Mapping[str, Any]) -> Iterator[tuple[Place, object]]:
    for keyword in ("properties", "$defs", "definitions"):
        named = schema.get(keyword)
        for name, inner in named.items() if isinstance(named, dict) else ():
            yield (keyword, name), inner
    several = schema.get("anyOf")
    for number, inner in enumerate(several if isinstance(several, list) else ()):
        yield ("anyOf", str(number)), inner
    yield ("items",), schema.get("items")


def _said(at: Place, what: str) -> str:
    return f"In context={at!r}, {what}"
