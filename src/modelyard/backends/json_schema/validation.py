"""Validation of a JSON value against a schema: one test per keyword, for the keywords of `schemas`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from modelyard import safe_regex
from modelyard.backends.json_schema.schemas import Document, Loc, Schema, listed, same


def fits(document: Document, value: Any, schema: Any, loc: Loc, hops: int = 0) -> bool:
    """Return whether the value is valid under the schema. Raises `InvalidInput` if that cannot be decided."""
    node = document.node(schema, loc, hops)
    here = (loc, hops + 1)
    tests = (_ANY, _BY_KIND.get(kind_of(value), {}))
    return all(test(document, value, node, here) for table in tests for word, test in table.items() if word in node)


def kind_of(value: Any) -> str:
    """Return the JSON type of a value; whole numbers are numbers too."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    if isinstance(value, str | int | float):
        return "string" if isinstance(value, str) else "number"
    return "object" if isinstance(value, Mapping) else "array"


Here = tuple[Loc, int]
_Test = Callable[[Document, Any, Schema, Here], bool]


def _has_type(document: Document, value: Any, node: Schema, here: Here) -> bool:
    kind, types = kind_of(value), listed(node["type"])
    return kind in types or (kind == "number" and "integer" in types and float(value).is_integer())


def _count_fitting(document: Document, value: Any, schemas: Sequence[Any], here: Here) -> int:
    return sum(fits(document, value, schema, *here) for schema in schemas)


def _fits_target(document: Document, value: Any, node: Schema, here: Here) -> bool:
    return fits(document, value, document.target(node["$ref"], here[0]), *here)


def _fits_pattern(document: Document, value: str, node: Schema, here: Here) -> bool:
    return safe_regex.matches(document.pattern(node["pattern"], here[0]), value, document.spend)


def _fits_properties(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    known = node["properties"]
    return all(fits(document, value[name], known[name], *here) for name in value if name in known)


def _fits_additional(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    rest = [value[name] for name in value if name not in node.get("properties", {})]
    return all(fits(document, member, node["additionalProperties"], *here) for member in rest)


def _fits_items(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    rest = value[len(node.get("prefixItems", ())) :]
    return all(fits(document, item, node["items"], *here) for item in rest)


def _fits_prefix(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    pairs = zip(value, node["prefixItems"], strict=False)
    return all(fits(document, item, schema, *here) for item, schema in pairs)


def _is_unique(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    document.spend(len(value) ** 2)
    return not node["uniqueItems"] or not any(same(one, two) for at, one in enumerate(value) for two in value[:at])


def _is_multiple(document: Document, value: Any, node: Schema, here: Here) -> bool:
    unit = node["multipleOf"]
    return not value % unit if isinstance(unit, int) else float(value / unit).is_integer()


_ANY: Mapping[str, _Test] = {
    "type": _has_type,
    "enum": lambda document, value, node, here: any(same(value, allowed) for allowed in node["enum"]),
    "const": lambda document, value, node, here: same(value, node["const"]),
    "$ref": _fits_target,
    "allOf": lambda document, value, node, here: all(fits(document, value, part, *here) for part in node["allOf"]),
    "anyOf": lambda document, value, node, here: any(fits(document, value, part, *here) for part in node["anyOf"]),
    "oneOf": lambda document, value, node, here: _count_fitting(document, value, node["oneOf"], here) == 1,
}

_BY_KIND: Mapping[str, Mapping[str, _Test]] = {
    "object": {
        "required": lambda document, value, node, here: set(node["required"]) <= value.keys(),
        "properties": _fits_properties,
        "additionalProperties": _fits_additional,
        "minProperties": lambda document, value, node, here: len(value) >= node["minProperties"],
        "maxProperties": lambda document, value, node, here: len(value) <= node["maxProperties"],
    },
    "array": {
        "prefixItems": _fits_prefix,
        "items": _fits_items,
        "minItems": lambda document, value, node, here: len(value) >= node["minItems"],
        "maxItems": lambda document, value, node, here: len(value) <= node["maxItems"],
        "uniqueItems": _is_unique,
    },
    "string": {
        "minLength": lambda document, value, node, here: len(value) >= node["minLength"],
        "maxLength": lambda document, value, node, here: len(value) <= node["maxLength"],
        "pattern": _fits_pattern,
    },
    "number": {
        "minimum": lambda document, value, node, here: value >= node["minimum"],
        "maximum": lambda document, value, node, here: value <= node["maximum"],
        "exclusiveMinimum": lambda document, value, node, here: value > node["exclusiveMinimum"],
        "exclusiveMaximum": lambda document, value, node, here: value < node["exclusiveMaximum"],
        "multipleOf": _is_multiple,
    },
}
