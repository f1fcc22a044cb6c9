"""Validation of a JSON value against a schema: one test per keyword, for the keywords of `schemas`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from modelyard import safe_regex
from modelyard.backends.json_schema.schemas import Document, Loc, Schema, is_list, listed, same


def fits(document: Document, value: Any, schema: Any, loc: Loc, hops: int = 0) -> bool:
    """Return whether the value is valid under the schema. Raises `InvalidInput` if that cannot be decided."""
    node = document.node(schema, loc, hops)
    here = (loc, hops + 1)
    for tests in (_ANY, _BY_KIND.get(kind_of(value), {})):
        for word, test in tests.items():  # a loop, as a generator would halve the depth of what can be judged
            if word in node and not test(document, value, node, here):
                return False
    return True


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
    return kind in types or (kind == "number" and "integer" in types and (type(value) is int or value.is_integer()))


def _fitting(document: Document, value: Any, schemas: Iterable[Any], here: Here) -> list[Any]:
    return [schema for schema in schemas if fits(document, value, schema, *here)]


def _are_all(document: Document, value: Any, schemas: Sequence[Any], here: Here) -> bool:
    return len(_fitting(document, value, schemas, here)) == len(schemas)


def _fits_targets(document: Document, value: Any, node: Schema, here: Here) -> bool:
    return _are_all(document, value, document.targets(node, here[0]), here)


def _fits_condition(document: Document, value: Any, node: Schema, here: Here) -> bool:
    branch = "then" if fits(document, value, node["if"], *here) else "else"
    return fits(document, value, node.get(branch, True), *here)


def _fits_pattern(document: Document, value: str, node: Schema, here: Here) -> bool:
    return safe_regex.matches(document.pattern(node["pattern"], here[0]), value, document.spend)


def _are_fit(document: Document, pairs: Iterable[tuple[Any, Any]], here: Here) -> bool:
    """Return whether the members of a value fit their schemas: other values, for which branches are counted anew."""
    for member, schema in pairs:  # noqa: SIM110 - as in `fits`
        if not fits(document, member, schema, here[0]):
            return False
    return True


def _fits_properties(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    known = node["properties"]
    return _are_fit(document, [(value[name], known[name]) for name in value if name in known], here)


def by_pattern(document: Document, name: str, node: Schema, loc: Loc) -> list[Any]:
    """Return the schemas of the `patternProperties` that are about a name."""
    given = node.get("patternProperties", {}).items()
    patterns = [(document.pattern(text, (*loc, "patternProperties")), schema) for text, schema in given]
    return [schema for pattern, schema in patterns if safe_regex.matches(pattern, name, document.spend)]


def _fits_patterns(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    pairs = [(value[name], schema) for name in value for schema in by_pattern(document, name, node, here[0])]
    return _are_fit(document, pairs, here)


def _further(document: Document, value: Schema, node: Schema, here: Here) -> list[str]:
    known = node.get("properties", {})
    return [name for name in value if name not in known and not by_pattern(document, name, node, here[0])]


def _fits_additional(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    further = _further(document, value, node, here)
    return _are_fit(document, [(value[name], node["additionalProperties"]) for name in further], here)


def _fits_names(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    return _are_fit(document, [(name, node["propertyNames"]) for name in value], here)


def _has_dependents(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    return all(set(names) <= value.keys() for name, names in node["dependentRequired"].items() if name in value)


def _fits_dependents(document: Document, value: Schema, node: Schema, here: Here) -> bool:
    parts = [part for name, part in node["dependentSchemas"].items() if name in value]
    return _are_all(document, value, parts, here)


def _fits_items(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    rest = value[len(node.get("prefixItems", ())) :]
    return _are_fit(document, [(item, node["items"]) for item in rest], here)


def _fits_prefix(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    return _are_fit(document, zip(value, node["prefixItems"], strict=False), here)


def _contained(document: Document, value: Sequence[Any], node: Schema, here: Here) -> set[int]:
    return {at for at, item in enumerate(value) if fits(document, item, node["contains"], here[0])}


def _contains(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    found = len(_contained(document, value, node, here))
    return bool(node.get("minContains", 1) <= found <= node.get("maxContains", found))


def _is_unique(document: Document, value: Sequence[Any], node: Schema, here: Here) -> bool:
    document.spend(len(value))
    return not node["uniqueItems"] or len(set(map(_key, value))) == len(value)


def _key(value: Any) -> Any:
    """Return what two values share if and only if they are the same JSON value."""
    if isinstance(value, Mapping):
        return "object", frozenset((name, _key(member)) for name, member in value.items())
    if is_list(value):
        return "array", tuple(map(_key, value))
    return (type(value), value) if isinstance(value, bool) else value


# ---- what nothing was said of ----------------------------------------------------------------------------------------


def _in_place(document: Document, value: Any, node: Schema, here: Here) -> list[Any]:
    """Return the schemas for the same value that a node stands on, of those that may fail the ones that hold."""
    found = [*document.targets(node, here[0]), *node.get("allOf", ())]
    found += _fitting(document, value, (*node.get("anyOf", ()), *node.get("oneOf", ())), here)
    if "if" in node:
        holds = fits(document, value, node["if"], *here)
        found += [node["if"], node.get("then", True)] if holds else [node.get("else", True)]
    if isinstance(value, Mapping):
        found += [part for name, part in node.get("dependentSchemas", {}).items() if name in value]
    return found


def _names_evaluated(document: Document, value: Schema, node: Schema, here: Here) -> set[str]:
    if "additionalProperties" in node:
        return {*value}
    return {*value}.difference(_further(document, value, node, here))


def _items_evaluated(document: Document, value: Sequence[Any], node: Schema, here: Here) -> set[int]:
    if "items" in node:
        return {*range(len(value))}
    contained = _contained(document, value, node, here) if "contains" in node else set()
    return contained | {*range(len(node.get("prefixItems", ())))}


_Evaluated = Callable[[Document, Any, Schema, Here], set[Any]]


def _evaluated(
    own: _Evaluated, word: str, document: Document, value: Any, node: Schema, here: Here
) -> Iterator[set[Any]]:
    """Yield the members that a node says something of, then those that the schemas which it stands on do."""
    yield own(document, value, node, here)
    for schema in _in_place(document, value, node, here):
        part = document.node(schema, *here)
        if word in part:
            yield {*value} if isinstance(value, Mapping) else {*range(len(value))}
        yield from _evaluated(own, word, document, value, part, (here[0], here[1] + 1))


def _fits_unevaluated(own: _Evaluated, word: str) -> _Test:
    def test(document: Document, value: Any, node: Schema, here: Here) -> bool:
        members = value.items() if isinstance(value, Mapping) else enumerate(value)
        known = set().union(*_evaluated(own, word, document, value, node, here))
        return _are_fit(document, [(member, node[word]) for at, member in members if at not in known], here)

    return test


def _is_multiple(document: Document, value: Any, node: Schema, here: Here) -> bool:
    unit = node["multipleOf"]
    try:
        return not value % unit if isinstance(unit, int) else float(value / unit).is_integer()
    except OverflowError:
        return not Fraction(value) % Fraction(unit)


_ANY: Mapping[str, _Test] = {
    "type": _has_type,
    "enum": lambda document, value, node, here: any(same(value, allowed) for allowed in node["enum"]),
    "const": lambda document, value, node, here: same(value, node["const"]),
    "$ref": _fits_targets,
    "$dynamicRef": _fits_targets,
    "allOf": lambda document, value, node, here: _are_all(document, value, node["allOf"], here),
    "anyOf": lambda document, value, node, here: any(fits(document, value, part, *here) for part in node["anyOf"]),
    "oneOf": lambda document, value, node, here: len(_fitting(document, value, node["oneOf"], here)) == 1,
    "not": lambda document, value, node, here: not fits(document, value, node["not"], *here),
    "if": _fits_condition,
}

_BY_KIND: Mapping[str, Mapping[str, _Test]] = {
    "object": {
        "required": lambda document, value, node, here: set(node["required"]) <= value.keys(),
        "properties": _fits_properties,
        "patternProperties": _fits_patterns,
        "additionalProperties": _fits_additional,
        "propertyNames": _fits_names,
        "dependentRequired": _has_dependents,
        "dependentSchemas": _fits_dependents,
        "minProperties": lambda document, value, node, here: len(value) >= node["minProperties"],
        "maxProperties": lambda document, value, node, here: len(value) <= node["maxProperties"],
        "unevaluatedProperties": _fits_unevaluated(_names_evaluated, "unevaluatedProperties"),
    },
    "array": {
        "prefixItems": _fits_prefix,
        "items": _fits_items,
        "minItems": lambda document, value, node, here: len(value) >= node["minItems"],
        "maxItems": lambda document, value, node, here: len(value) <= node["maxItems"],
        "uniqueItems": _is_unique,
        "contains": _contains,
        "unevaluatedItems": _fits_unevaluated(_items_evaluated, "unevaluatedItems"),
    },
    "string": {
        "minLength": lambda document, value, node, here: len(value) >= node["minLength"],
        "maxLength": lambda document, value, node, here: len(value) <= node["maxLength"],
        "pattern": _fits_pattern,
        "format": lambda document, value, node, here: document.has_format(value, node["format"]),
    },
    "number": {
        "minimum": lambda document, value, node, here: value >= node["minimum"],
        "maximum": lambda document, value, node, here: value <= node["maximum"],
        "exclusiveMinimum": lambda document, value, node, here: value > node["exclusiveMinimum"],
        "exclusiveMaximum": lambda document, value, node, here: value < node["exclusiveMaximum"],
        "multipleOf": _is_multiple,
    },
}
