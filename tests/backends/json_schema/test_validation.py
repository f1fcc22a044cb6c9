"""Verdicts on values, against those of the jsonschema package."""

import re
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from modelyard.backends.json_schema.instances import smallest_instance
from modelyard.backends.json_schema.schemas import Document
from modelyard.backends.json_schema.validation import fits
from modelyard.errors import InvalidInput


def ours(schema: Any, value: Any) -> bool:
    return fits(Document(schema, ()), value, schema, ())


def theirs(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


NAMES = st.sampled_from(["a", "b", "ab", "n1"])
SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.0]) | NAMES | st.just("")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=8
)
PATTERNS = st.sampled_from(["a", "^a$", "^[ab]+$", "\\d", "^(?!a)", "(?=.*b)a", "(?<=a)b", "^(?:a|n1)$"])
SMALL = st.integers(0, 3)


def nodes(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Schemas of any keywords, of which several stand in one place."""
    named, several = st.dictionaries(NAMES, inner, max_size=3), st.lists(inner, min_size=1, max_size=3)
    words: dict[str, st.SearchStrategy[Any]] = {
        "type": st.sampled_from(["object", "array", "string", "integer", "number", "boolean", "null"])
        | st.just(["object", "string"]),
        "enum": st.lists(VALUES, max_size=3),
        "const": VALUES,
        **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems"), several),
        **dict.fromkeys(("not", "if", "then", "else", "contains", "propertyNames"), inner),
        **dict.fromkeys(("items", "additionalProperties", "unevaluatedItems", "unevaluatedProperties"), inner),
        **dict.fromkeys(("properties", "dependentSchemas"), named),
        "patternProperties": st.dictionaries(PATTERNS, inner, max_size=2),
        "required": st.lists(NAMES, max_size=2, unique=True),
        "dependentRequired": st.dictionaries(NAMES, st.lists(NAMES, max_size=2, unique=True), max_size=2),
        **dict.fromkeys(
            ("minProperties", "maxProperties", "minItems", "maxItems", "minContains", "maxContains"), SMALL
        ),
        **dict.fromkeys(("minLength", "maxLength"), SMALL),
        **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), st.integers(-2, 2)),
        "multipleOf": st.sampled_from([1, 2, 0.5]),
        "uniqueItems": st.booleans(),
        "pattern": PATTERNS,
        "$ref": st.sampled_from(["#/$defs/one", "#two"]),
        "$dynamicRef": st.just("#three"),
    }
    return st.lists(st.sampled_from(list(words)), min_size=1, max_size=4, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({word: words[word] for word in chosen})
    )


LEAVES = st.booleans() | st.builds(dict) | st.sampled_from([{"type": "integer"}, {"const": "a"}, {"minLength": 1}])
SCHEMAS = st.recursive(LEAVES, nodes, max_leaves=8)
DEFINED = {"one": {"type": ["string", "object"]}, "2": {"$anchor": "two", "maxProperties": 1}}
DEFINED |= {"3": {"$dynamicAnchor": "three", "maxItems": 2}}


def with_definitions(schema: Any) -> Any:
    return schema if isinstance(schema, bool) else {**schema, "$defs": DEFINED}


@pytest.mark.slow
@examples(150)
@given(SCHEMAS.map(with_definitions), st.lists(VALUES, min_size=1, max_size=5))
def test_verdicts_are_those_of_the_jsonschema_package(schema: Any, values: list[Any]) -> None:
    for value in values:
        assert ours(schema, value) == theirs(schema, value), value


@pytest.mark.slow
@examples(100)
@given(SCHEMAS.map(with_definitions))
def test_what_is_made_up_is_valid_for_the_jsonschema_package(schema: Any) -> None:
    try:
        made = smallest_instance(schema)
    except InvalidInput:
        return
    assert theirs(schema, made), made


SHOP = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}


@each_case(
    ("schema", "valid", "invalid"),
    [
        ({**SHOP, "unevaluatedProperties": False}, {"kind": "x"}, {"kind": "x", "more": 1}),
        (
            {"allOf": [SHOP], "properties": {"n": True}, "unevaluatedProperties": False},
            {"kind": "x", "n": 1},
            {"kind": "x", "m": 1},
        ),
        (
            {"if": {"required": ["a"]}, "then": {"properties": {"a": True, "b": True}}, "unevaluatedProperties": False},
            {"a": 1, "b": 2},
            {"b": 2},
        ),
        ({"prefixItems": [True], "contains": {"const": 7}, "unevaluatedItems": False}, [1, 7], [1, 2]),
        ({"type": "integer"}, 10**400, 0.5),
        ({"multipleOf": 0.5}, 2**70, 0.25),
        ({"uniqueItems": True}, [1, True, "1", [1], {"a": 1}], [{"a": 1.0}, {"a": 1}]),
    ],
)
def test_some_verdicts(schema: Any, valid: Any, invalid: Any) -> None:
    for value, verdict in ((valid, True), (invalid, False)):
        assert (ours(schema, value), theirs(schema, value)) == (verdict, verdict)


def test_a_deep_value_of_a_recursive_schema_is_judged() -> None:
    schema = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}}}
    value: Any = None
    for _ in range(60):
        value = {"next": value}
    assert ours(schema, value)


@each_case(
    ("schema", "place"),
    [
        ({"dependencies": {}}, "dependencies"),
        ({"$recursiveRef": "#"}, "$recursiveRef"),
        ({"pattern": "\\p{L}"}, "pattern"),
        ({"items": [True]}, "items"),
        ({"properties": {"a": True}, "patternProperties": {"(?>a)": True}}, "patternProperties"),
        ({"$ref": "other.json"}, "$ref"),
        ({"contains": 3}, "contains"),
    ],
)
def test_what_is_not_decided_is_refused_by_name(schema: Any, place: str) -> None:
    value: Any = [1] if place in ("items", "contains") else "x" if place == "pattern" else {"a": 1}
    with pytest.raises(InvalidInput, match=re.escape(place)):
        ours(schema, value)
