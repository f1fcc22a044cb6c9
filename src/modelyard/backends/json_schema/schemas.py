"""JSON schemas as data: keywords, references, and the flat schemas that result from choosing among their branches.

Keywords without influence on validity are skipped; keywords that cannot be decided here are refused by name. References
stay inside the document, and the work is bounded for any schema.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from modelyard import safe_regex
from modelyard.errors import InvalidInput

Schema = Mapping[str, Any]
Loc = tuple[str | int, ...]

MAX_STEPS = 30_000
MAX_HOPS = 64
NOTHING: Schema = {"enum": []}

# ---- the keywords ----------------------------------------------------------------------------------------------

TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")
REFERENCES = ("$ref", "$dynamicRef")
"""Both lead to the same place in a document without an `$id` inside of it."""

CHECKED = ("not", "if", "then", "else", "dependentSchemas", "maxContains", "unevaluatedItems", "unevaluatedProperties")
"""Keywords that an instance is not made up by; whether it satisfies them is checked."""

BRANCHING = frozenset({*REFERENCES, *CHECKED, "allOf", "anyOf", "oneOf"})
UNSUPPORTED = frozenset({"dependencies", "$recursiveRef"})


def is_number(value: Any) -> bool:
    """Return whether this is a finite number of at most 64 bits; true and false are not numbers."""
    return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) <= 2**63


def is_list(value: Any) -> bool:
    return isinstance(value, list | tuple)


def listed(types: str | Sequence[str]) -> Sequence[str]:
    return [types] if isinstance(types, str) else types


def _is_type(value: Any) -> bool:
    return (isinstance(value, str) or (is_list(value) and len(value) > 0)) and all(
        isinstance(name, str) and name in TYPES for name in listed(value)
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 2**53


def _are_names(value: Any) -> bool:
    return is_list(value) and all(isinstance(name, str) for name in value)


Shape = tuple[Callable[[Any], bool], str]
_COUNT: Shape = (_is_count, "a whole number of at least 0")
_NUMBER: Shape = (is_number, "a number")
_SCHEMA: Shape = (lambda value: isinstance(value, Mapping | bool), "a JSON schema")
_SCHEMAS: Shape = (lambda value: is_list(value) and len(value) > 0, "a list of JSON schemas")
_TEXT: Shape = (lambda value: isinstance(value, str), "a string")

ALONE = (
    *("additionalProperties", "items", "contains", "propertyNames", "not", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
IN_LIST = ("allOf", "anyOf", "oneOf", "prefixItems")
BY_NAME = ("properties", "patternProperties", "dependentSchemas")
_HOLDERS = frozenset({*IN_LIST, *BY_NAME, "$defs", "definitions"})
"""Where other schemas stand in a schema."""

SHAPES: Mapping[str, Shape] = {
    "type": (_is_type, f"one of {', '.join(TYPES)}, or a list of them"),
    "enum": (is_list, "a list"),
    **dict.fromkeys((*REFERENCES, "pattern", "format"), _TEXT),
    **dict.fromkeys(IN_LIST, _SCHEMAS),
    **dict.fromkeys(ALONE, _SCHEMA),
    **dict.fromkeys(BY_NAME, (lambda value: isinstance(value, Mapping), "an object of JSON schemas")),
    "required": (_are_names, "a list of names"),
    "dependentRequired": (
        lambda value: isinstance(value, Mapping) and all(map(_are_names, value.values())),
        "an object of lists of names",
    ),
    "minProperties": _COUNT,
    "maxProperties": _COUNT,
    "minItems": _COUNT,
    "maxItems": _COUNT,
    "minContains": _COUNT,
    "maxContains": _COUNT,
    "uniqueItems": (lambda value: isinstance(value, bool), "true or false"),
    "minLength": _COUNT,
    "maxLength": _COUNT,
    "minimum": _NUMBER,
    "maximum": _NUMBER,
    "exclusiveMinimum": _NUMBER,
    "exclusiveMaximum": _NUMBER,
    "multipleOf": (lambda value: is_number(value) and value > 0, "a number above 0"),
}

# ---- the document ----------------------------------------------------------------------------------------------


class Document:
    """A schema, its place in a request (`loc`), and the work that may still be done for it. None of it is malformed."""

    def __init__(self, root: Any, loc: Loc, steps: int = MAX_STEPS) -> None:
        self.root: Any = root
        self.loc: Loc = loc
        self.steps: int = 10 * MAX_STEPS  # to look at each schema is less work than to satisfy it
        self._found: dict[int, tuple[Loc, Schema]] = {}
        for place, schema in _nodes(root, loc):
            self._found[id(schema)] = place, self.node(schema, place)
        self.steps = steps

    def at(self, schema: Any, loc: Loc) -> Loc:
        """Return the place of a schema; `loc` for one that was put together."""
        return (self._found.get(id(schema)) or (loc,))[0]

    def spend(self, steps: int) -> None:
        """Subtract `steps` from the work that is left. Raises `InvalidInput` if that was too much."""
        self.steps -= steps
        if self.steps < 0:
            raise InvalidInput.at(*self.loc, msg="takes too much work to satisfy; use a simpler schema")

    def node(self, schema: Any, loc: Loc, hops: int = 0) -> Schema:
        """Return the schema as a mapping with well-formed known keywords, after `hops` nested branches.

        Raises `InvalidInput`.
        """
        self.spend(1)
        loc = self.at(schema, loc)
        if hops > MAX_HOPS:
            raise InvalidInput.at(*loc, msg="refers to itself without end, or has too many branches in one place")
        if isinstance(schema, bool):
            return {} if schema else NOTHING
        if not isinstance(schema, Mapping):
            raise InvalidInput.at(*loc, msg="must be a JSON schema: an object, true or false")
        for keyword, value in schema.items():
            if keyword in UNSUPPORTED:
                raise InvalidInput.at(*loc, keyword, msg="this keyword is not supported here; leave it out")
            if keyword in SHAPES and not SHAPES[keyword][0](value):
                raise InvalidInput.at(*loc, keyword, msg=f"must be {SHAPES[keyword][1]}")
        return schema

    def targets(self, node: Schema, loc: Loc) -> list[Any]:
        """Return the schemas that a node refers to."""
        loc = self.at(node, loc)
        return [self.target(node[word], (*loc, word)) for word in REFERENCES if word in node]

    def target(self, ref: str, loc: Loc) -> Any:
        if not ref.startswith("#"):
            raise InvalidInput.at(*loc, msg=f"{ref!r} points outside this schema; only '#...' is followed")
        if self._has_inner_id:
            raise InvalidInput.at(*loc, msg="is not followed in a schema with an '$id' inside of it; leave that out")
        if ref[1:2] not in ("", "/") and unquote(ref[1:]) in self._anchors:
            return self._anchors[unquote(ref[1:])]
        found = self.root if ref[1:2] in ("", "/") else None
        for part in ref.split("/")[1:]:
            found = _member(found, unquote(part).replace("~1", "/").replace("~0", "~"))
        if found is None:
            raise InvalidInput.at(*loc, msg=f"{ref!r} points at nothing")
        return found

    @cached_property
    def _anchors(self) -> Mapping[str, Any]:
        words = ("$dynamicAnchor", "$anchor")
        return {str(node[word]): node for _, node in self._found.values() for word in words if word in node}

    @cached_property
    def _has_inner_id(self) -> bool:
        return any("$id" in node and node is not self.root for _, node in self._found.values())

    def has_format(self, text: str, name: str) -> bool:
        return True  # a format is a note, unless a subclass checks it

    def pattern(self, text: str, loc: Loc) -> safe_regex.Node:
        self.spend(len(text))
        try:
            return safe_regex.parse(text)
        except safe_regex.PatternError as unknown:
            places = [(*place, "pattern") for place, node in self._found.values() if node.get("pattern") == text]
            named = ((place, node.get("patternProperties", ())) for place, node in self._found.values())
            places += [(*place, "patternProperties", text) for place, names in named if text in names]
            at = next(iter(places), (*loc, "pattern"))
            raise InvalidInput.at(*at, msg=f"{unknown}; use a simpler pattern") from None

    def forms(self, schema: Any, loc: Loc, hops: int = 0) -> Iterator[Schema]:
        """Yield flat schemas, without references and branches: one for each way to choose among the branches."""
        node = self.node(schema, loc, hops)
        flat: Schema = {
            keyword: value for keyword, value in node.items() if keyword in SHAPES and keyword not in BRANCHING
        }
        if "const" in node:
            flat = joined(flat, {"enum": [node["const"]]}, loc)
        groups = [[part] for part in (*self.targets(node, loc), *node.get("allOf", ()))]
        if "if" in node:
            groups.append([node.get("else", True), {"allOf": [node["if"], node.get("then", True)]}])
        groups += [node[keyword] for keyword in ("anyOf", "oneOf") if keyword in node]
        yield from self._choices(flat, groups, loc, hops + 1)

    def _choices(self, flat: Schema, groups: Sequence[Sequence[Any]], loc: Loc, hops: int) -> Iterator[Schema]:
        if not groups:
            yield flat
            return
        for branch in groups[0]:
            for form in self.forms(branch, loc, hops):
                yield from self._choices(joined(flat, form, loc), groups[1:], loc, hops + 1)


def _nodes(schema: Any, loc: Loc) -> Iterator[tuple[Loc, Any]]:
    """Yield a schema and all that stand in it, each with its place."""
    yield loc, schema
    for word, inner in schema.items() if isinstance(schema, Mapping) else ():
        if word in ALONE:
            yield from _nodes(inner, (*loc, word))
        elif word in _HOLDERS and isinstance(inner, Mapping | list | tuple):
            for step, part in inner.items() if isinstance(inner, Mapping) else enumerate(inner):
                yield from _nodes(part, (*loc, word, step))


def _member(parent: Any, name: str) -> Any:
    if isinstance(parent, Mapping):
        return parent.get(name)
    if is_list(parent) and name.isdecimal() and len(name) < 6 and int(name) < len(parent):
        return parent[int(name)]
    return None


# ---- joining -----------------------------------------------------------------------------------------------------


def joined(one: Schema, other: Schema, loc: Loc) -> Schema:
    """Return the flat schema that demands what both demand. Raises `InvalidInput` if that needs a keyword twice."""
    both = {**one, **other}
    for keyword in one.keys() & other.keys():
        if same(one[keyword], other[keyword]):
            continue
        if keyword not in _JOIN:
            raise InvalidInput.at(*loc, keyword, msg="is given twice with different values; join them into one")
        both[keyword] = _JOIN[keyword](one[keyword], other[keyword])
    return both


def same(one: Any, other: Any) -> bool:
    """Compare JSON values: 1 equals 1.0, and true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if is_list(one) and is_list(other):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def _common_types(one: Any, other: Any) -> Sequence[str]:
    def allows(types: Sequence[str], name: str) -> bool:
        return name in types or (name == "integer" and "number" in types)

    return [name for name in TYPES if allows(listed(one), name) and allows(listed(other), name)]


def _common_values(one: Sequence[Any], other: Sequence[Any]) -> Sequence[Any]:
    return [value for value in one if any(same(value, allowed) for allowed in other)]


def _both(one: Any, other: Any) -> Any:
    return {"allOf": [one, other]}


def _all_properties(one: Schema, other: Schema) -> Schema:
    shared = one.keys() & other.keys()
    return {**one, **other, **{name: _both(one[name], other[name]) for name in shared}}


_JOIN: Mapping[str, Callable[[Any, Any], Any]] = {
    "type": _common_types,
    "enum": _common_values,
    **dict.fromkeys(("properties", "patternProperties"), _all_properties),
    "required": lambda one, other: [*one, *other],
    "dependentRequired": lambda one, other: {
        name: [*one.get(name, ()), *other.get(name, ())] for name in {**one, **other}
    },
    **dict.fromkeys(("additionalProperties", "items", "propertyNames"), _both),
    "uniqueItems": lambda one, other: one or other,
    **dict.fromkeys(("minProperties", "minItems", "minContains", "minLength", "minimum", "exclusiveMinimum"), max),
    **dict.fromkeys(("maxProperties", "maxItems", "maxLength", "maximum", "exclusiveMaximum"), min),
}
