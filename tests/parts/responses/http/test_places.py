"""What is refused is located in the body of a response's request, not in that of the chat which it becomes."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from places import WRONG_SCHEMAS, stands_in, within

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}


def refused(client: Any, **members: Any) -> str:
    """The place that a refusal names."""
    body = {"model": "echo", "input": "hi", **members}
    answer = client.send("POST", "/v1/responses", body)
    assert answer.status == 400, answer.raw
    place = answer.json["error"]["param"]
    assert stands_in(body, place), place
    return str(place)


@given(WRONG_SCHEMAS, st.booleans())
@examples(30)
def test_a_wrong_schema_is_refused_where_it_stands(client: Any, schema: dict[str, Any], as_tool: bool) -> None:
    if as_tool:
        tools = [FUNCTION, {**FUNCTION, "name": "g", "strict": True, "parameters": within(schema)}]
        place = refused(client, tools=tools, tool_choice={"type": "function", "name": "g"})
        assert place.startswith("tools[1].parameters.")
    else:
        place = refused(client, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
        assert place.startswith("text.format.schema.")


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]}, "input"),
        ({"max_output_tokens": 10**7}, "max_output_tokens"),
    ],
)
def test_what_vendors_and_models_refuse_is_located_there_too(client: Any, members: Any, place: str) -> None:
    assert refused(client, **members) == place


def test_a_stream_that_is_refused_while_it_is_answered_names_the_place_too(client: Any) -> None:
    form = {"type": "json_schema", "name": "x", "schema": {"type": "strng"}}
    answer = client.send(
        "POST", "/v1/responses", {"model": "echo", "input": "hi", "stream": True, "text": {"format": form}}
    )
    assert b"text.format.schema.type" in answer.raw
    assert b"response_format" not in answer.raw, json.loads(answer.raw)
