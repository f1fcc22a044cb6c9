"""What is refused is located in the body of the messages format, not in that of the chat which it becomes."""

from typing import Any

import pytest
from hypothesis import given

from example_counts import examples
from places import WRONG_SCHEMAS, stands_in, within

TOOL = {"name": "f", "input_schema": {"type": "object"}}


def refused(client: Any, **members: Any) -> str:
    """The place that a refusal names."""
    body = {"model": "echo", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}], **members}
    answer = client.send("POST", "/v1/messages", body)
    assert answer.status == 400, answer.raw
    place = str(answer.json["error"]["message"].partition(":")[0])
    assert stands_in(body, place), place
    return place


@given(WRONG_SCHEMAS)
@examples(30)
def test_a_wrong_schema_is_refused_where_it_stands(client: Any, schema: dict[str, Any]) -> None:
    form = {"type": "json_schema", "schema": schema}
    assert refused(client, output_config={"format": form}).startswith("output_config.format.schema.")
    assert refused(client, output_format=form).startswith("output_format.schema.")
    tools = [TOOL, {"name": "g", "strict": True, "input_schema": within(schema)}]
    place = refused(client, tools=tools, tool_choice={"type": "tool", "name": "g"})
    assert place.startswith("tools[1].input_schema.")


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "messages"),
        ({"max_tokens": 10**7}, "max_tokens"),
    ],
)
def test_what_vendors_and_models_refuse_is_located_there_too(client: Any, members: Any, place: str) -> None:
    assert refused(client, **members) == place
