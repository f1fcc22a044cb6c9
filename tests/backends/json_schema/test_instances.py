"""Small instances of JSON schemas, judged by the jsonschema package."""

import json
import re
from contextlib import suppress
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.backends.json_schema.instances import FORMATS, forced_call, smallest_instance, structured_text
from modelyard.backends.json_schema.schemas import MAX_HOPS
from modelyard.domain.completion import (
    CompletionRequest,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "age": {"type": "integer", "minimum": 18},
        "nick": {"type": "string"},
        "born": {"type": "string", "format": "date"},
    },
    "required": ["age", "name", "born"],
    "additionalProperties": False,
}
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
        }
    },
    "$ref": "#/$defs/node",
}
CHAIN = {
    "type": "object",
    "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["next"],
}

EXAMPLES = [
    ({}, None),
    (True, None),
    ({"type": "string"}, ""),
    ({"type": "string", "minLength": 3}, "aaa"),
    ({"type": "string", "format": "date-time"}, FORMATS["date-time"]),
    ({"type": "boolean"}, False),
    ({"type": "null"}, None),
    ({"type": ["integer", "null"]}, 0),
    ({"type": "integer", "minimum": 3}, 3),
    ({"type": "integer", "exclusiveMinimum": 3}, 4),
    ({"type": "integer", "maximum": -2.5}, -3),
    ({"type": "integer", "minimum": 5, "multipleOf": 4}, 8),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, 0.5),
    ({"type": "number", "minimum": 0.1, "multipleOf": 0.25}, 0.25),
    ({"minimum": 7}, 7),
    ({"const": {"a": [1, None]}}, {"a": [1, None]}),
    ({"enum": ["red", "green"]}, "red"),
    ({"type": "integer", "enum": ["red", 4]}, 4),
    ({"type": "array"}, []),
    ({"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 2}, [1, 1]),
    (
        {"prefixItems": [{"const": "x"}, {"type": "boolean"}], "minItems": 3, "items": {"type": "null"}},
        ["x", False, None],
    ),
    ({"type": "object", "minProperties": 1, "properties": {"a": {"type": "integer"}}}, {"a": 0}),
    ({"required": ["free"]}, {"free": None}),
    ({"required": ["free"], "additionalProperties": {"type": "string"}}, {"free": ""}),
    (PERSON, {"name": "a", "age": 18, "born": "1970-01-01"}),
    (TREE, {"value": 0, "children": []}),
    (CHAIN, {"next": None}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, ""),
    ({"anyOf": [{"type": "object"}, {"type": "null"}]}, {}),
    ({"anyOf": [{"type": "integer", "minimum": 5, "maximum": 4}, {"const": "other"}]}, "other"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}], "minimum": 0.5, "maximum": 0.75}, 0.5),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [1, 3]}]}, 2),
    ({"allOf": [{"type": "object", "required": ["a"]}, {"properties": {"a": {"type": "boolean"}}}]}, {"a": False}),
    ({"allOf": [{"type": "number", "minimum": 1}, {"type": "integer", "minimum": 2}]}, 2),
    ({"allOf": [{"enum": [1, 2, 3]}, {"enum": [3, 2]}]}, 2),
    ({"type": "string", "pattern": "^[a-z]{2}-\\d+$"}, "aa-0"),
    ({"type": "string", "pattern": "^x+$", "minLength": 4}, "xxxx"),
    ({"allOf": [{"pattern": "^x$"}, {"pattern": "^x$"}]}, "x"),
    ({"$defs": {"a/b": {"const": 1}}, "$ref": "#/$defs/a~1b"}, 1),
    ({"not": {"type": "null"}}, False),
    ({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}, {}),
    ({"type": "object", "propertyNames": {"enum": ["x", "y"]}, "minProperties": 2}, {"x": None, "y": None}),
    ({"propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}, "minProperties": 1}, {"a0": 0}),
    ({"patternProperties": {"^n_": {"type": "integer"}}, "minProperties": 1}, {"n_": 0}),
    (
        {"patternProperties": {"^n_": {"type": "integer"}}, "required": ["n_x"], "additionalProperties": False},
        {"n_x": 0},
    ),
    ({"dependentRequired": {"a": ["b"], "b": ["c"]}, "required": ["a"]}, {"a": None, "b": None, "c": None}),
    ({"type": "array", "contains": {"const": 3}}, [3]),
    (
        {"type": "array", "contains": {"const": 3}, "minContains": 2, "minItems": 3, "items": {"type": "integer"}},
        [3, 3, 0],
    ),
    ({"type": "object", "unevaluatedProperties": False, "required": ["a"], "properties": {"a": True}}, {"a": None}),
    (
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}, "type": "object", "required": ["a"]},
        {"a": None, "b": None},
    ),
    ({"if": {"type": "null"}, "then": False, "else": {"const": 7}}, 7),
    ({"$ref": "#node", "$defs": {"n": {"$anchor": "node", "type": "integer"}}}, 0),
    ({"type": "string", "pattern": "^(?!b)[ab]$"}, "a"),
    ({"type": "string", "title": "a name", "description": "of a thing", "default": "d", "examples": ["e"]}, ""),
]


@each_case(("schema", "instance"), EXAMPLES)
def test_the_instance_is_small_and_valid(schema: Any, instance: Any) -> None:
    made = smallest_instance(schema)
    assert json.dumps(made) == json.dumps(instance)
    jsonschema.Draft202012Validator(schema).validate(made)


REFUSED = [
    (False, ("s",), "no instance"),
    ({"type": "integer", "minimum": 2, "maximum": 1}, ("s",), "no number"),
    ({"type": "string", "not": {"type": "string"}}, ("s", "not"), "no instance"),
    ({"dependencies": {"a": ["b"]}}, ("s", "dependencies"), "not supported here"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$id": "a"}}}, ("s", "$ref"), "leave that out"),
    ({"$dynamicRef": "#missing"}, ("s", "$dynamicRef"), "points at nothing"),
    ({"type": "array", "contains": {}, "minContains": 10**6}, ("s", "minContains"), "1000"),
    ({"type": "object", "minProperties": 10**6}, ("s", "minProperties"), "1000"),
    ({"dependentRequired": {"a": "b"}}, ("s", "dependentRequired"), "lists of names"),
    ({"type": "text"}, ("s", "type"), "one of object"),
    ({"type": "string", "minLength": "3"}, ("s", "minLength"), "whole number"),
    ({"type": "number", "minimum": True}, ("s", "minimum"), "a number"),
    (
        {"properties": {"a": {"type": "string", "pattern": "(?>a)b"}}, "required": ["a"]},
        ("s", "properties", "a", "pattern"),
        "(?",
    ),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, ("s", "pattern"), "none of the strings"),
    ({"type": "string", "pattern": "^a$", "enum": ["b"]}, ("s",), "no instance"),
    ({"$ref": "http://example.com/schema"}, ("s", "$ref"), "outside"),
    ({"$ref": "#/$defs/missing"}, ("s", "$ref"), "points at nothing"),
    ({"$ref": "#"}, ("s",), "without end"),
    ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, None, "levels"),
    ({"type": "array", "minItems": 10**6}, ("s", "minItems"), "1000"),
    ({"type": "string", "minLength": 10**9}, ("s", "minLength"), "4096"),
    ({"type": "array", "minItems": 2, "uniqueItems": True}, ("s",), "no instance"),
    ({"allOf": [{"pattern": "a"}, {"pattern": "b"}]}, ("s", "pattern"), "join them"),
    ({"properties": {"a": 3}, "required": ["a"]}, ("s", "properties", "a"), "must be a JSON schema"),
    ({"required": ["a"], "additionalProperties": False}, ("s", "properties", "a"), "no instance"),
]


@each_case(("schema", "loc", "words"), REFUSED)
def test_what_cannot_be_satisfied_is_refused_with_its_place(schema: Any, loc: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(words)) as refused:
        smallest_instance(schema, "s")
    (problem,) = refused.value.problems
    assert loc is None or problem.loc == loc


HOSTILE = [
    {"allOf": [{"anyOf": [{"minimum": 1}, {"minimum": 2}]}] * 30, "type": "string", "enum": []},
    {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    {"allOf": [{}] * (MAX_HOPS + 1)},
    {"type": "string", "pattern": "((((a?){200}){200}){200}){200}b", "enum": ["a" * 200]},
    {"type": "string", "pattern": "^(a+)+$", "enum": ["a" * 60 + "b"]},
    {"type": "string", "pattern": "(" * 900},
    {"type": "string", "pattern": "((a{999}){999}){999}"},
    {"$defs": {"n": {"type": "array", "minItems": 999, "items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"},
    {"type": "integer", "minimum": 10**400},
    {"type": "integer", "exclusiveMinimum": 1.7e308, "multipleOf": 1e307},
    {"type": "number", "minimum": 1e308, "multipleOf": 1e-300},
    {"type": "array", "minItems": 1000, "items": {"type": "array", "minItems": 1000, "items": {"type": "null"}}},
]


@pytest.mark.slow
@pytest.mark.parametrize("schema", HOSTILE)
def test_a_hostile_schema_is_refused_within_bounded_work(schema: Any) -> None:
    with pytest.raises(InvalidInput):
        smallest_instance(schema, "s")


names = st.sampled_from(["a", "b", "c"])
leaves = st.one_of(
    st.builds(lambda low: {"type": "string", "minLength": low}, st.integers(0, 5)),
    st.builds(
        lambda low, more: {"type": "integer", "minimum": low, "maximum": low + more},
        st.integers(-9, 9),
        st.integers(0, 3),
    ),
    st.builds(lambda low: {"type": "number", "exclusiveMinimum": low}, st.floats(-5, 5)),
    st.builds(
        lambda unit, low: {"type": "integer", "multipleOf": unit, "minimum": low},
        st.integers(1, 9),
        st.integers(-20, 20),
    ),
    st.builds(
        lambda values: {"enum": values},
        st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.text()), min_size=1),
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {}, True, {"type": ["null", "string"]}]),
)


def nest(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.builds(
            lambda properties, required: {"type": "object", "properties": properties, "required": required},
            st.dictionaries(names, inner),
            st.lists(names, unique=True),
        ),
        st.builds(lambda items, least: {"type": "array", "items": items, "minItems": least}, inner, st.integers(0, 3)),
        st.builds(
            lambda word, branches: {word: branches},
            st.sampled_from(["anyOf", "oneOf", "allOf"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
    )


schemas = st.recursive(leaves, nest, max_leaves=8)


@given(schemas)
def test_generated_instances_are_valid_and_deterministic(schema: Any) -> None:
    try:
        made = smallest_instance(schema)
    except InvalidInput:
        return
    jsonschema.Draft202012Validator(schema).validate(made)
    assert json.dumps(smallest_instance(schema)) == json.dumps(made)


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "type",
                        "anyOf",
                        "items",
                        "properties",
                        "required",
                        "minItems",
                        "pattern",
                        "$ref",
                        "enum",
                        "minimum",
                    ]
                ),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_nonsense_is_refused_or_satisfied_and_never_breaks(schema: Any) -> None:
    with suppress(InvalidInput):
        json.dumps(smallest_instance(schema))


# ---- requests ----------------------------------------------------------------------------------------------------


def request(**fields: Any) -> CompletionRequest:
    return CompletionRequest("echo", (Message(Role.USER, "hi"),), **fields)


TOOLS = (
    Tool("first", parameters=PERSON),
    Tool("second", parameters={"properties": {"n": {"minimum": 2}}, "required": ["n"]}),
)


def test_a_required_call_takes_the_first_tool_and_a_named_one_that_tool() -> None:
    first = forced_call(request(tools=TOOLS, tool_choice=ToolChoice(ToolMode.REQUIRED)))
    second = forced_call(request(tools=TOOLS, tool_choice=ToolChoice(ToolMode.REQUIRED, "second")))
    assert first is not None
    assert second is not None
    assert (first.name, json.loads(first.arguments)) == ("first", smallest_instance(PERSON))
    assert (second.name, json.loads(second.arguments)) == ("second", {"n": 2})


def test_a_tool_without_parameters_is_called_with_an_empty_object() -> None:
    call = forced_call(request(tools=(Tool("now"),), tool_choice=ToolChoice(ToolMode.REQUIRED)))
    assert call is not None
    assert call.arguments == "{}"


def test_nothing_is_forced_by_auto_none_or_the_absence_of_tools() -> None:
    assert forced_call(request(tools=TOOLS)) is None
    assert forced_call(request(tools=TOOLS, tool_choice=ToolChoice(ToolMode.NONE))) is None
    assert forced_call(request(tool_choice=ToolChoice(ToolMode.REQUIRED))) is None


def test_a_call_s_id_follows_the_seed() -> None:
    def made(seed: int) -> str:
        call = forced_call(
            request(tools=TOOLS, tool_choice=ToolChoice(ToolMode.REQUIRED), sampling=Sampling(seed=seed))
        )
        assert call is not None
        return call.id

    assert made(1) == made(1)
    assert made(1) != made(2)


def test_a_tool_that_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="'third'"):
        forced_call(request(tools=TOOLS, tool_choice=ToolChoice(ToolMode.REQUIRED, "third")))


def test_a_schema_at_fault_is_named_where_the_client_wrote_it() -> None:
    bad = Tool("bad", parameters={"required": ["x"], "properties": {"x": {"type": "nothing"}}})
    with pytest.raises(InvalidInput) as refused:
        forced_call(request(tools=(TOOLS[0], bad), tool_choice=ToolChoice(ToolMode.REQUIRED, "bad")))
    assert refused.value.problems[0].loc == ("tools", 1, "function", "parameters", "properties", "x", "type")


def test_a_response_format_gives_json_text_and_free_text_gives_none() -> None:
    assert structured_text(request()) is None
    assert structured_text(request(response_format=ResponseFormat(ResponseType.JSON_OBJECT))) == "{}"
    schema = ResponseFormat(ResponseType.JSON_SCHEMA, "person", PERSON)
    assert json.loads(structured_text(request(response_format=schema)) or "") == smallest_instance(PERSON)
