"""Every object of a request in the messages format refuses a member that it does not know, by name at its place."""

from typing import Any

import pytest

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.parts.messages.formats.request import MessagesBody, read_messages_request
from unknown_members import has_reasons, misspelt, refuses_each_unknown_member, without_effect

CACHE = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}
FREE = {"input_schema", "schema", "input"}
DIRECT = {"caller": {"type": "direct"}}
TEXT = {"type": "text", "text": "hi", **CACHE}
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}, **CACHE}
TOOL = {
    "name": "f",
    "description": "d",
    "input_schema": {"type": "object"},
    "type": "custom",
    "strict": False,
    "defer_loading": False,
    "allowed_callers": ["direct"],
    "eager_input_streaming": True,
    **CACHE,
}
DOCUMENTS: list[Any] = [
    {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a"}, "title": "T", **CACHE},
    {"type": "document", "source": {"type": "content", "content": [TEXT]}, "citations": {"enabled": False}},
]
FULL: dict[str, Any] = {
    "model": "echo",
    "max_tokens": 50,
    "system": [TEXT],
    "messages": [
        {"role": "user", "content": [TEXT, IMAGE, *DOCUMENTS]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "so", "signature": ""},
                {"type": "redacted_thinking", "data": "x"},
                TEXT,
                {"type": "tool_use", "id": "1", "name": "f", "input": {}, **DIRECT, **CACHE},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [TEXT, IMAGE], "is_error": True, **CACHE}
            ],
        },
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled", "budget_tokens": 2048, "display": "summarized"},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "service_tier": "auto",
    **CACHE,
}
ASKED: dict[str, Any] = {
    "model": "echo",
    "max_tokens": 50,
    "messages": [{"role": "user", "content": [TEXT, *DOCUMENTS]}],
    "tools": [TOOL],
    "metadata": {"user_id": "u"},
    "thinking": {"type": "adaptive"},
    "output_config": {"effort": "low"},
    **CACHE,
}


def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name() -> None:
    refuses_each_unknown_member(read_messages_request, FULL, FREE)


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_over_http_the_refusal_names_the_place(client: Any, path: str) -> None:
    counted = {name: one for name, one in ASKED.items() if name not in ("max_tokens", "metadata")}
    body = ASKED if path == "/v1/messages" else counted
    assert client.send("POST", path, body).status == 200
    for name, place, changed in misspelt(body, FREE):
        refused = client.send("POST", path, changed, check=False)
        message = refused.json["error"]["message"]
        assert (refused.status, message.startswith(f"{place}: "), f"'{name}'" in message) == (400, True, True), message


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading"),
        ({"tools": [TOOL | {"allowed_callers": ["code_execution_20260120"]}]}, "tools[0].allowed_callers"),
        ({"tools": [TOOL | {"input_examples": [{}]}]}, "tools[0].input_examples"),
        ({"output_config": {"task_budget": {"type": "tokens"}}}, "output_config.task_budget"),
        ({"output_config": {"effort": "banana"}}, "output_config.effort"),
        ({"service_tier": "banana"}, "service_tier"),
        ({"cache_control": {"type": "banana"}}, "cache_control.type"),
        ({"cache_control": {"type": "ephemeral", "ttl": "1d"}}, "cache_control.ttl"),
        ({"thread": {"type": "create"}}, "thread"),
    ],
)
def test_what_would_change_an_answer_is_refused_by_name(client: Any, members: Any, place: str) -> None:
    refused = client.send("POST", "/v1/messages", ASKED | members, check=False)
    assert (refused.status, refused.json["error"]["message"].startswith(f"{place}: ")) == (400, True)


def test_a_thread_is_refused_with_what_lets_clients_go_on_without(client: Any) -> None:
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        refused = client.send("POST", path, ASKED | {"thread": {"type": "create"}}, check=False)
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        assert (refused.status, refused.json["error"]["details"]) == (400, details)
    other = client.send("POST", "/v1/messages", ASKED | {"threat": 1}, check=False)
    assert "details" not in other.json["error"]


@pytest.mark.parametrize(
    ("budget", "effort"), [(1024, "low"), (4096, "low"), (4097, "medium"), (16_384, "medium"), (16_385, "high")]
)
def test_a_budget_of_thinking_is_an_effort(client: Any, budget: int, effort: str) -> None:
    thinking = {"type": "enabled", "budget_tokens": budget}
    body = {name: one for name, one in ASKED.items() if name != "output_config"} | {"thinking": thinking}
    assert read_messages_request(body).extras == {"reasoning_effort": effort}
    assert read_messages_request(ASKED | {"thinking": thinking}).extras == {"reasoning_effort": "low"}
    blocks = client.send("POST", "/v1/messages", body).json["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    cached = ("cache_control", "system[].cache_control", "tools[].cache_control")
    has_reasons(without_effect(MessagesBody), *cached, "service_tier")


@each_case("wrong", ["x", 1, {}, ["x"]])
def test_what_changes_nothing_is_of_its_type(wrong: Any) -> None:
    def body(value: Any) -> Any:
        return {**ASKED, "messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": value}]}]}

    read_messages_request(body([{"type": "char_location"}]))
    with pytest.raises(InvalidInput) as refused:
        read_messages_request(body(wrong))
    assert refused.value.problems[0].loc[:5] == ("messages", 0, "content", 0, "citations")
