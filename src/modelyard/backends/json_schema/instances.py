"""A small valid instance of a JSON schema, for doubles that answer forced tool calls and schemas without a model.

It has the least depth that suffices, takes the first branch that works, and prefers the simplest values. A schema
always gives the same instance. A schema for which no instance is found is refused, naming the place and the keyword.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from weakref import ReferenceType, ref

from modelyard import safe_regex
from modelyard.backends.json_schema.schemas import CHECKED, Document, Loc, Schema, is_number, listed
from modelyard.backends.json_schema.validation import by_pattern, fits
from modelyard.domain.completion import CompletionRequest, ResponseFormat, ResponseType, Tool, ToolCall, ToolMode
from modelyard.errors import InvalidInput

DEPTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
MAX_ITEMS = 1000


def forced_call(request: CompletionRequest) -> ToolCall | None:
    """Return the tool call that the request requires, or None. Raises `InvalidInput`.

    Its id depends on the seed, the tool's name and the conversation's length.
    """
    if request.tool_choice.mode is not ToolMode.REQUIRED or not request.tools:
        return None
    at, tool = _chosen_tool(request)
    schema = {"type": "object", **tool.parameters}
    arguments = smallest_instance(schema, "tools", at, "function", "parameters")
    key = f"{request.sampling.seed or 0}:{len(request.messages)}:{tool.name}"
    return ToolCall(f"call_{hashlib.sha256(key.encode()).hexdigest()[:24]}", tool.name, json.dumps(arguments))


def _chosen_tool(request: CompletionRequest) -> tuple[int, Tool]:
    wanted = request.tool_choice.name
    for at, tool in enumerate(request.tools):
        if wanted in (None, tool.name):
            return at, tool
    raise InvalidInput.at("tool_choice", msg=f"there is no tool {wanted!r} among the tools")


def structured_text(request: CompletionRequest) -> str | None:
    wanted = request.response_format
    if wanted.type is ResponseType.TEXT:
        return None
    if wanted.type is ResponseType.JSON_OBJECT:
        return "{}"
    if wanted.type is ResponseType.CHOICE:
        return wanted.choices[0]
    if wanted.type is ResponseType.REGEX:
        schema = {"type": "string", "pattern": f"^(?:{wanted.pattern})$"}
        return str(smallest_instance(schema, "structured_outputs", "regex"))
    return _text_of(wanted)


_TEXTS: dict[int, tuple[ReferenceType[ResponseFormat], str]] = {}
"""The instances of forms that are alive, by their identity: those are the ones that requests repeat."""


def _text_of(wanted: ResponseFormat) -> str:
    key = id(wanted)
    kept = _TEXTS.get(key)
    if kept is not None and kept[0]() is wanted:
        return kept[1]
    text = json.dumps(smallest_instance(wanted.schema, "response_format", "json_schema", "schema"))
    _TEXTS[key] = ref(wanted, lambda _: _TEXTS.pop(key, None)), text
    return text


def smallest_instance(schema: Any, *loc: str | int) -> Any:
    document = Document(schema, loc)
    for depth in DEPTHS:
        builder = _Builder(document, depth)
        try:
            return builder.make(schema, loc, 0)
        except InvalidInput:
            if not builder.cut or depth == DEPTHS[-1]:
                raise
    raise AssertionError("the last depth returns or raises")


class _Builder:
    """Builds instances of at most `depth` levels; `cut` is true once that limit has stopped one."""

    def __init__(self, document: Document, depth: int) -> None:
        self.document, self.depth, self.cut = document, depth, False

    def make(self, schema: Any, loc: Loc, level: int) -> Any:
        hard = [word for word in CHECKED if isinstance(schema, Mapping) and word in schema][:1]
        failure = InvalidInput.at(
            *loc,
            *hard,
            msg=f"no instance was found that satisfies {'this' if hard else 'all of this'}; use a simpler schema",
        )
        for flat in self.document.forms(schema, loc):
            for build in self.builders(flat):
                try:
                    value = build(flat, loc, level)
                except InvalidInput as refused:
                    failure = refused
                    continue
                if fits(self.document, value, schema, loc):
                    return value
        raise failure

    def builders(self, flat: Schema) -> Iterator[Callable[[Schema, Loc, int], Any]]:
        if "enum" in flat:
            yield from (lambda flat, loc, level, value=value: value for value in flat["enum"])
            return
        for name in listed(flat.get("type", _implied_types(flat))):
            yield getattr(self, name)

    def null(self, flat: Schema, loc: Loc, level: int) -> None:
        return None

    def boolean(self, flat: Schema, loc: Loc, level: int) -> bool:
        return False

    def string(self, flat: Schema, loc: Loc, level: int) -> str:
        least = flat.get("minLength", 0)
        if least > safe_regex.MAX_TEXT:
            raise InvalidInput.at(*loc, "minLength", msg=f"longer strings than {safe_regex.MAX_TEXT} are not made up")
        if "pattern" in flat:
            return self.matching(flat, least, loc)
        return FORMATS.get(flat.get("format", ""), "").ljust(least, "a")

    def matching(self, flat: Schema, least: int, loc: Loc) -> str:
        node = self.document.pattern(flat["pattern"], loc)
        try:
            return safe_regex.example(node, least, self.document.spend)
        except safe_regex.PatternError as unknown:
            raise InvalidInput.at(*loc, "pattern", msg=f"{unknown}; use a simpler pattern") from None

    def integer(self, flat: Schema, loc: Loc, level: int) -> float:
        return self.nearest(flat, loc, [int(number) for number in _candidates(flat) if number == int(number)])

    def number(self, flat: Schema, loc: Loc, level: int) -> float:
        return self.nearest(flat, loc, _candidates(flat))

    def nearest(self, flat: Schema, loc: Loc, candidates: list[float]) -> float:
        for number in sorted(candidates, key=lambda number: (abs(number), number < 0)):
            if fits(self.document, number, flat, loc):
                return number
        raise InvalidInput.at(*loc, msg="no number was found within these bounds")

    def array(self, flat: Schema, loc: Loc, level: int) -> list[Any]:
        prefix, rest = flat.get("prefixItems", ()), flat.get("items", True)
        wanted = flat.get("minContains", 1) if "contains" in flat else 0
        count = max(flat.get("minItems", 0), wanted)
        if count > MAX_ITEMS:
            word = "minItems" if count > wanted else "minContains"
            raise InvalidInput.at(*loc, word, msg=f"arrays of more than {MAX_ITEMS} items are not made up")
        self.descend(loc, level, count)
        places = [(prefix[at], "prefixItems", at) if at < len(prefix) else (rest, "items") for at in range(count)]
        schemas = [({"allOf": [schema, flat["contains"]]}, *place) for schema, *place in places[:wanted]]
        return [self.make(schema, (*loc, *place), level + 1) for schema, *place in (*schemas, *places[wanted:])]

    def object(self, flat: Schema, loc: Loc, level: int) -> dict[str, Any]:
        names = _member_names(flat)
        missing = flat.get("minProperties", 0) - len(names)
        if missing > 0:
            names += self.further_names(flat, names, missing, loc)
        self.descend(loc, level, len(names))
        return {name: self.make(self.member(flat, name, loc), (*loc, "properties", name), level + 1) for name in names}

    def member(self, flat: Schema, name: str, loc: Loc) -> Any:
        known, patterns = flat.get("properties", {}), by_pattern(self.document, name, flat, loc)
        schemas = [*([known[name]] if name in known else ()), *patterns] or [flat.get("additionalProperties", True)]
        return schemas[0] if len(schemas) == 1 else {"allOf": schemas}

    def further_names(self, flat: Schema, names: list[str], missing: int, loc: Loc) -> list[str]:
        """Make up names of members that no schema names, where their number has a minimum."""
        if missing > MAX_ITEMS:
            raise InvalidInput.at(*loc, "minProperties", msg=f"more than {MAX_ITEMS} members are not made up")
        allowed = flat.get("propertyNames", True)
        node = self.document.node(allowed, loc)
        known = [*node.get("enum", ()), *flat.get("properties", ()), *map(self.like, flat.get("patternProperties", ()))]
        tried = dict.fromkeys([*known, *(f"{letter}{at}" for at in range(missing) for letter in "ax")])
        fresh = [name for name in tried if name not in names and fits(self.document, name, allowed, loc)]
        return fresh[:missing]

    def like(self, pattern: str) -> str:
        try:
            return safe_regex.example(safe_regex.parse(pattern), 1, self.document.spend)
        except safe_regex.PatternError:
            return ""

    def descend(self, loc: Loc, level: int, members: int) -> None:
        if members and level >= self.depth:
            self.cut = True
            raise InvalidInput.at(*loc, msg=f"needs more than {self.depth} levels")


def _implied_types(flat: Schema) -> Sequence[str]:
    """Return the types that the keywords are about if none is named, or all, the simplest one first."""
    about = [name for name, keywords in _KEYWORDS_OF_TYPE.items() if keywords & flat.keys()]
    return about[:1] or ("null", "boolean", "integer", "string", "array", "object")


_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
_KEYWORDS_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "minProperties", "propertyNames", "patternProperties"}
    ),
    "array": frozenset({"items", "prefixItems", "minItems", "contains"}),
    "string": frozenset({"minLength", "pattern", "format"}),
    "number": frozenset({*_BOUNDS, "multipleOf"}),
}


def _member_names(flat: Schema) -> list[str]:
    """Return the required names in the order of the properties, and optional ones up to the least number."""
    required = set(flat.get("required", ()))
    properties = flat.get("properties", {})
    names = [name for name in properties if name in required]
    names += [name for name in dict.fromkeys(flat.get("required", ())) if name not in properties]
    optional = [name for name in properties if name not in required]
    names += optional[: max(0, flat.get("minProperties", 0) - len(names))]
    for name in names:  # which grows
        names += [other for other in flat.get("dependentRequired", {}).get(name, ()) if other not in names]
    return names


def _candidates(flat: Schema) -> list[float]:
    """Return numbers worth trying: 0, numbers at, next to and between bounds, and multiples near them."""
    bounds = [flat[keyword] for keyword in _BOUNDS if keyword in flat]
    numbers = [0, *bounds]
    for bound in bounds:
        numbers += [math.floor(bound) - 1, math.floor(bound), math.ceil(bound), math.ceil(bound) + 1]
        numbers += _multiples(bound, flat.get("multipleOf", 1))
    numbers += [one / 2 + two / 2 for one in bounds for two in bounds]
    return [number for number in numbers if is_number(number)]


def _multiples(bound: float, unit: float) -> list[float]:
    nearest = bound / unit
    return [(int(nearest) + step) * unit for step in (-1, 0, 1)] if math.isfinite(nearest) else []


FORMATS: Mapping[str, str] = {
    "date-time": "1970-01-01T00:00:00Z",
    "date": "1970-01-01",
    "time": "00:00:00Z",
    "duration": "P0D",
    "email": "a@example.com",
    "hostname": "example.com",
    "ipv4": "0.0.0.0",  # noqa: S104 - a value, not an interface to listen on
    "ipv6": "::",
    "uri": "http://example.com",
    "uuid": "00000000-0000-0000-0000-000000000000",
}
"""Examples of the formats that clients' schema generators use most."""
