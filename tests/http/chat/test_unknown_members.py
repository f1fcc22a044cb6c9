"""Every object of a request for a chat completion refuses a member that it does not know, by name and at its place."""

import copy
from typing import Any, get_args, get_type_hints

import attrs
import pytest

from each import each_case
from modelyard.errors import InvalidInput
from modelyard.formats.chat import hints
from modelyard.formats.chat.request import ChatRequest, read_request
from unknown_members import misspelt, without_effect

CACHE = {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "prompt_cache_breakpoint": {"mode": "explicit"}}
TEXT = {"type": "text", "text": "hi", **CACHE}
FUNCTION = {"name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": False}
SCHEMA = {"name": "answer", "description": "an answer", "schema": {"type": "object"}, "strict": True}
FREE = {"parameters", "schema", "metadata", "logit_bias", "json", "guided_json"}
"""Members whose own members are named by whoever sends them."""

TALK: list[Any] = [
    {"role": "system", "content": [TEXT], "name": "s", **CACHE},
    {"role": "developer", "content": "be short"},
    {
        "role": "user",
        "content": [
            TEXT,
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk=", "detail": "original"}, **CACHE},
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}},
            {"type": "video_url", "video_url": {"url": "https://host/video"}},
            {"type": "file", "file": {"file_data": "data:,a", "filename": "a.txt", "file_id": "file-1"}},
        ],
        "name": "u",
        **CACHE,
    },
    {
        "role": "assistant",
        "content": [TEXT, {"type": "refusal", "refusal": "no"}],
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
        "reasoning_content": "because",
        "name": "a",
        **CACHE,
    },
    {"role": "tool", "content": [TEXT], "tool_call_id": "1", "name": "look", **CACHE},
]
FULL: dict[str, Any] = {
    "model": "echo",
    "messages": TALK,
    "temperature": 1,
    "top_p": 0.5,
    "logit_bias": {"7": 1},
    "stream": True,
    "stream_options": {"include_usage": True, "include_obfuscation": False, "continuous_usage_stats": False},
    "tools": [{"type": "function", "function": FUNCTION, **CACHE}],
    "tool_choice": {"type": "function", "function": {"name": "look"}},
    "response_format": {"type": "json_schema", "json_schema": SCHEMA},
    "metadata": {"a": "b"},
    "prediction": {"type": "content", "content": [TEXT]},
    "prompt_cache_options": {"mode": "implicit", "ttl": "12h"},
    "nvext": {"extra_fields": ["engine_data"]},
}
ALLOWED = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "look"}}]},
}
OTHERWISE: dict[str, Any] = {name: one for name, one in FULL.items() if name not in ("response_format", "messages")} | {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "refusal": "no"}],
    "structured_outputs": {"json": {"type": "object"}},
    "tool_choice": ALLOWED,
    "prediction": {"type": "content", "content": "hi"},
}
BODIES = [FULL, OTHERWISE]


def refusals(body: Any) -> list[tuple[str, str]]:
    with pytest.raises(InvalidInput) as caught:
        read_request(body, "body")
    return [(str(problem), problem.msg) for problem in caught.value.problems]


@pytest.mark.parametrize("body", BODIES)
def test_a_member_that_is_not_known_is_refused_at_its_place_with_the_nearest_name(body: Any) -> None:
    read_request(body, "body")
    for name, place, changed in misspelt(body, FREE):
        ((said, msg),) = refusals(changed)
        assert said.startswith(f"body.{place}".replace("[", ".").replace("]", "") + ": "), said
        assert f"did you mean '{name}'" in msg or f"or '{name}'" in msg, said


def test_over_http_the_refusal_names_the_place(client: Any) -> None:
    body = {name: one for name, one in OTHERWISE.items() if name != "structured_outputs"} | {"stream": True}
    assert client.send("POST", "/v1/chat/completions", body).status == 200
    for name, place, changed in misspelt(body, FREE):
        refused = client.send("POST", "/v1/chat/completions", changed, check=False)
        assert (refused.status, refused.json["error"]["param"]) == (400, place)
        assert f"'{name}'" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    ("members", "place"),
    [
        *[({name: "banana"}, name) for name in ("reasoning_effort", "verbosity", "service_tier")],
        ({"prompt_cache_retention": "banana"}, "prompt_cache_retention"),
        ({"prediction": {"type": "banana", "content": ""}}, "prediction.type"),
        ({"prompt_cache_options": {"mode": "banana"}}, "prompt_cache_options.mode"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"messages": [{"role": "user", "content": [{**TEXT, "cache_control": {"type": "x"}}]}]}, "cache_control.type"),
    ],
)
def test_an_enumeration_takes_its_values_only(client: Any, members: Any, place: str) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], **members}
    refused = client.send("POST", "/v1/chat/completions", body, check=False)
    assert refused.status == 400
    assert refused.json["error"]["param"].endswith(place)


def test_what_changes_nothing_is_listed_with_a_reason() -> None:
    listed = without_effect(ChatRequest)
    assert listed["messages[].cache_control"] == listed["prompt_cache_key"] == hints.CACHED
    assert all(len(reason) > 10 for reason in listed.values())
    assert hints.WITHOUT_EFFECT.keys() <= {field.name for field in attrs.fields(ChatRequest)}
    assert "banana" not in get_args(get_args(get_type_hints(ChatRequest)["service_tier"])[0])


def test_variables_of_a_template_are_refused_by_a_model_that_has_none_unless_they_change_nothing(client: Any) -> None:
    for path in ("/v1/chat/completions", "/inference/v1/chat/completions"):
        for model in ("echo", "tabular-mini"):
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
            kept = body | {
                "chat_template_kwargs": {"preserve_thinking": True},
                "nvext": {"extra_fields": ["engine_data"]},
            }
            assert client.send("POST", path, kept).status == 200
            for variables in ({"enable_thinking": True}, {"preserve_thinking": True, "preserve_thinkng": True}):
                refused = client.send("POST", path, body | {"chat_template_kwargs": variables}, check=False)
                assert (refused.status, refused.json["error"]["param"]) == (400, "chat_template_kwargs")
            assert client.send("POST", path, body | {"chat_template_kwargs": {}}).status == 200


def test_what_clients_add_of_their_own_is_taken(client: Any) -> None:
    call = {"id": "1", "type": "function", "index": 0, "function": {"name": "f", "arguments": "{}"}}
    turn = {"role": "assistant", "content": None, "refusal": None, "audio": None, "function_call": None}
    added = {"annotations": [], "parsed": {"a": 1}, "provider_specific_fields": {"x": 1}, "reasoning_details": []}
    called = {**call, "function": {**call["function"], "parsed_arguments": {}}}  # type: ignore[dict-item]
    messages = [{**turn, **added, "tool_calls": [called]}, {"role": "tool", "tool_call_id": "1", "content": "done"}]
    answer = client.send("POST", "/v1/chat/completions", {"model": "echo", "messages": messages})
    assert answer.status == 200


CALLED = {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
OBJECT, OBJECTS = ("x", 1, [{}]), ("x", 1, {}, ["x"])
HINTS: Any = {
    ("annotations",): OBJECTS,
    ("reasoning_details",): OBJECTS,
    ("thinking_blocks",): OBJECTS,
    ("provider_specific_fields",): OBJECT,
    ("tool_calls", 0, "index"): ("x", [], {}),
    ("tool_calls", 0, "extra_content"): OBJECT,
    ("tool_calls", 0, "provider_specific_fields"): OBJECT,
    ("tool_calls", 0, "function", "parsed_arguments"): OBJECT,
    ("tool_calls", 0, "function", "provider_specific_fields"): OBJECT,
}


@each_case("place", HINTS, ids=str)
def test_what_changes_nothing_is_of_its_type(place: tuple[str | int, ...]) -> None:
    for wrong in HINTS[place]:
        message: Any = {"role": "assistant", "content": "x", "tool_calls": [copy.deepcopy(CALLED)]}
        owner = message
        for step in place[:-1]:
            owner = owner[step]
        owner[place[-1]] = wrong
        body = {"model": "echo", "messages": [{"role": "user", "content": "x"}, message]}
        with pytest.raises(InvalidInput) as refused:
            read_request(body)
        assert refused.value.problems[0].loc[: 2 + len(place)] == ("messages", 1, *place)
        owner[place[-1]] = None
        read_request(body)
