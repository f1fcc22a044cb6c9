"""Every object of a request for a response refuses a member that it does not know; nothing unknown is returned."""

from typing import Any

import pytest

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.parts.responses.formats.request import INCLUDED, ResponseRequest, read_response_request
from unknown_members import has_reasons, misspelt, refuses_each_unknown_member, without_effect

CACHE = {"prompt_cache_breakpoint": {"mode": "explicit", "ttl": "30m"}}
FREE = {"parameters", "schema", "metadata"}
SCHEMA = {"type": "json_schema", "name": "answer", "schema": {"type": "object"}, "strict": True, "description": "a"}
ITEMS: list[Any] = [
    {
        "type": "message",
        "role": "user",
        "status": "completed",
        "content": [
            {"type": "input_text", "text": "hi", **CACHE},
            {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "low", **CACHE},
            {"type": "input_file", "file_data": "data:,a", "filename": "a", **CACHE},
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
        ],
    },
    {
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "so"}],
        "content": [{"type": "reasoning_text", "text": "a"}],
    },
    {
        "type": "message",
        "role": "assistant",
        "id": "m",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
    },
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "caller": {"type": "direct"}},
    {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "x"}]},
    {"type": "item_reference", "id": "i"},
]
FULL: dict[str, Any] = {
    "model": "echo",
    "input": ITEMS,
    "stream": True,
    "stream_options": {"include_obfuscation": True},
    "tools": [
        {"type": "function", "name": "f", "parameters": {}, "defer_loading": False, "allowed_callers": ["direct"]}
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "text": {"format": SCHEMA, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto", "context": "auto", "mode": "standard"},
    "prompt_cache_options": {"mode": "explicit", "ttl": "12h"},
    "metadata": {"a": "b"},
    "include": [*INCLUDED],
}
ASKED: dict[str, Any] = {
    "model": "echo",
    "input": "hi",
    "text": {"format": {"type": "text"}, "verbosity": "low"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": {"type": "function", "name": "f"},
}


def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name() -> None:
    refuses_each_unknown_member(read_response_request, FULL, FREE)


def test_over_http_the_refusal_names_the_place_and_nothing_unknown_is_returned(client: Any) -> None:
    for path in ("/v1/responses", "/inference/v1/responses"):
        assert client.send("POST", path, ASKED).status == 200
        for name, place, changed in misspelt(ASKED, FREE):
            refused = client.send("POST", path, changed, check=False)
            assert (refused.status, refused.json["error"]["param"]) == (400, place)
            assert f"'{name}'" in refused.json["error"]["message"]
    nulls = ASKED | {"banana": None, "text": ASKED["text"] | {"banana": None}}
    nulls |= {"reasoning": {"effort": "low", "banana": None}, "tools": [{**ASKED["tools"][0], "banana": None}]}
    assert b"banana" not in client.send("POST", "/v1/responses", nulls).raw


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"include": ["message.output_text.logprobs", "message.output_text.logprob"]}, "include[1]"),
        ({"reasoning": {"summary": "banana"}}, "reasoning.summary"),
        ({"reasoning": {"effort": "banana"}}, "reasoning.effort"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"text": {"verbosity": "banana"}}, "text.verbosity"),
        ({"service_tier": "banana"}, "service_tier"),
        ({"prompt_cache_retention": "banana"}, "prompt_cache_retention"),
        ({"tools": [{"type": "function", "name": "f", "defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [{"type": "function", "name": "f", "allowed_callers": ["x"]}]}, "tools[0].allowed_callers"),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name(client: Any, members: Any, place: str) -> None:
    refused = client.send("POST", "/v1/responses", {"model": "echo", "input": "hi", **members}, check=False)
    assert (refused.status, refused.json["error"]["param"]) == (400, place)


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    has_reasons(without_effect(ResponseRequest), "reasoning.summary", "max_tool_calls", "prompt_cache_options")


def test_an_answer_can_be_sent_again_with_what_clients_add(client: Any) -> None:
    answered = client.send("POST", "/v1/responses", ASKED | {"tool_choice": "auto"}).json["output"]
    added = [{**item, "parsed_arguments": None} for item in answered] + [
        {"type": "reasoning", "summary": [], "encrypted_content": "x", "id": "r", "status": None},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "namespace": None, "caller": None},
        {"type": "function_call_output", "call_id": "1", "output": "done", "status": "completed"},
    ]
    again = {"model": "echo", "input": [*added, {"role": "user", "content": "more"}]}
    assert client.send("POST", "/v1/responses", again).status == 200


OF_TEXT = ("annotations", "logprobs")


@each_case(
    ("item", "name", "wrong"),
    [
        *[({"type": "output_text", "text": "x"}, name, wrong) for name in OF_TEXT for wrong in ("x", 1, {}, ["x"])],
        *[
            ({"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}, "parsed_arguments", wrong)
            for wrong in ("{}", 1, [])
        ],
        *[({"type": "reasoning", "summary": []}, "encrypted_content", wrong) for wrong in (1, {}, [])],
    ],
)
def test_what_changes_nothing_is_of_its_type(item: dict[str, Any], name: str, wrong: Any) -> None:
    def body(value: Any) -> Any:
        given = {**item, name: value}
        said = {"type": "message", "role": "assistant", "content": [given]} if "text" in item else given
        return {"model": "echo", "input": [{"role": "user", "content": "hi"}, said]}

    read_response_request(body(None))
    with pytest.raises(InvalidInput) as refused:
        read_response_request(body(wrong))
    assert name in refused.value.problems[0].loc
