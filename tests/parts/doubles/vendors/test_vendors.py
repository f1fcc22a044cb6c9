"""A double refuses what its vendor refuses, with that vendor's error, through every door."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard import EchoBackend, Platform, ScriptedBackend, Settings, open_platform
from modelyard.errors import InvalidInput
from modelyard.parts.doubles.vendors import anthropic as anthropic_rules
from modelyard.parts.doubles.vendors import openai as openai_rules
from modelyard.parts.doubles.vendors import vllm as vllm_rules
from modelyard.parts.doubles.vendors.profiles import vendor_refusal
from modelyard.parts.doubles.vendors.strict_schemas import why_not_strict
from modelyard.testing import HttpxTransport, served, watch_requests

CHAT, RESPONSES, MESSAGES = "/inference/v1/chat/completions", "/v1/responses", "/v1/messages"
ASK: Any = {"role": "user", "content": "go"}
STRICT = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
OPEN = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
PARTIAL = {**STRICT, "required": []}
NESTED = {**STRICT, "properties": {"a": OPEN}}


def tool(name: str = "f", **more: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": STRICT, **more}}


def called(*ids: str) -> Any:
    calls = [{"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(id_: str) -> Any:
    return {"role": "tool", "tool_call_id": id_, "content": "found"}


def form(schema: Any, **more: Any) -> Any:
    return {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema, **more}}


NO_ANSWER = (
    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. "
    "The following tool_call_ids did not have response messages: "
)
NO_CALL = "Invalid parameter: messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
ALONE = "Invalid value for '{0}': '{0}' is only allowed when 'tools' are specified."
FORBID = "'additionalProperties' is required to be supplied and to be false."
REQUIRE = "'required' is required to be supplied and to be an array including every key in properties. Missing 'a'."
JSON = "'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."

LONG = "Expected an array with maximum length 128, but got an array with length 129 instead."
IMAGE = "Expected a base64-encoded data URL with an image MIME type (e.g. 'data:image/png;base64,aGVsbG8=')"
PIXEL = "data:image/png;base64,aGVsbG8="


def picture(url: Any) -> Any:
    return {
        "role": "user",
        "content": [{"type": "text", "text": "?"}, {"type": "image_url", "image_url": {"url": url}}],
    }


NO_IMAGES: Any = {
    "ftp://x/y.png": "a value without the 'data:' prefix",
    "": "a value without the 'data:' prefix",
    "data:image/png;base64": "a value without data",
    "data:image/png,aGk=": "a value without the ';base64' separator",
    "data:text/plain;base64,aGk=": "unsupported MIME type 'text/plain'",
    "data:image/bmp;base64,aGk=": "unsupported MIME type 'image/bmp'",
    "data:image/png;base64,": "empty base64-encoded bytes",
    "data:image/png;base64,***": "an invalid base64-encoded value",
    "data:image/png;base64,aGk": "an invalid base64-encoded value",
}
"""Addresses of images, and what that vendor says of them; the kind is always `invalid_value`."""

OF_CHAT: Any = {
    **{
        f"an image {url}": (
            {"messages": [ASK, picture(url)]},
            f"Invalid image URL: 'messages[1].content[1].image_url.url'. {IMAGE}, but got {wrong}.",
            "messages[1].content[1].image_url.url",
            "invalid_value",
        )
        for url, wrong in NO_IMAGES.items()
    },
    "many tools": (
        {"tools": [tool(f"f{number}") for number in range(129)]},
        f"Invalid 'tools': array too long. {LONG}",
        "tools",
        "array_above_max_length",
    ),
    "two limits of tokens": (
        {"max_tokens": 9, "max_completion_tokens": 9},
        "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
        "max_tokens",
        "invalid_parameter_combination",
    ),
    "a lone answer": ({"messages": [ASK, result("a")]}, NO_CALL, "messages.[1].role", None),
    "another id": ({"messages": [ASK, called("a"), result("b")]}, NO_CALL, "messages.[2].role", None),
    "no answer": ({"messages": [ASK, called("a", "b"), ASK]}, NO_ANSWER + "a, b", "messages.[2].role", None),
    "no answer at the end": ({"messages": [ASK, called("a")]}, NO_ANSWER + "a", "messages.[1].role", None),
    "a choice without tools": ({"tool_choice": "auto"}, ALONE.format("tool_choice"), "tool_choice", None),
    "parallel calls without tools": (
        {"parallel_tool_calls": False},
        ALONE.format("parallel_tool_calls"),
        "parallel_tool_calls",
        None,
    ),
    "a tool that is not offered": (
        {"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "Invalid value for 'tool_choice': Tool 'g' not found in 'tools' parameter.",
        "tool_choice",
        None,
    ),
    "json without the word": ({"response_format": {"type": "json_object"}}, JSON, "messages", None),
    "an open strict schema": (
        {"response_format": form(OPEN)},
        f"Invalid schema for response_format 'x': In context=(), {FORBID}",
        "response_format",
        None,
    ),
    "an optional member": (
        {"response_format": form(PARTIAL)},
        f"Invalid schema for response_format 'x': In context=(), {REQUIRE}",
        "response_format",
        None,
    ),
    "a nested open schema": (
        {"response_format": form(NESTED)},
        f"Invalid schema for response_format 'x': In context=('properties', 'a'), {FORBID}",
        "response_format",
        None,
    ),
    "a list as form": (
        {"response_format": form({"type": "array"})},
        "Invalid schema for response_format 'x': schema must be a JSON Schema of 'type: \"object\"', "
        "got 'type: \"array\"'.",
        "response_format",
        None,
    ),
    "an open strict tool": (
        {"tools": [tool(strict=True, parameters=OPEN)]},
        f"Invalid schema for function 'f': In context=(), {FORBID}",
        "tools[0].function.parameters",
        "invalid_function_parameters",
    ),
    "the name of a tool": (
        {"tools": [tool("look up")]},
        "Invalid 'tools[0].function.name': string does not match pattern. "
        "Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'.",
        "tools[0].function.name",
        "invalid_value",
    ),
    "a long id": (
        {"messages": [ASK, called("a" * 41), result("a" * 41)]},
        "Invalid 'messages[1].tool_calls[0].id': string too long. "
        "Expected a string with maximum length 40, but got a string with length 41 instead.",
        "messages[1].tool_calls[0].id",
        "string_above_max_length",
    ),
    "no tools": (
        {"tools": []},
        "Invalid 'tools': empty array. Expected an array with minimum length 1, but got an empty array instead.",
        "tools",
        "empty_array",
    ),
    "metadata of nothing stored": (
        {"metadata": {"a": "b"}},
        "The 'metadata' parameter is only allowed when 'store' is enabled.",
        "metadata",
        None,
    ),
}

ITEM = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
SEEN = {"type": "input_image", "image_url": "data:image/png;base64,***"}
OF_RESPONSES: Any = {
    "an image": (
        {"input": [{"role": "user", "content": [SEEN]}]},
        f"Invalid 'input[0].content[0].image_url'. {IMAGE}, but got an invalid base64-encoded value.",
        "input[0].content[0].image_url",
        "invalid_value",
    ),
    "an image that a tool has seen": (
        {"input": [ASK, ITEM, {"type": "function_call_output", "call_id": "a", "output": [SEEN]}]},
        f"Invalid 'input[2].output[0].image_url'. {IMAGE}, but got an invalid base64-encoded value.",
        "input[2].output[0].image_url",
        "invalid_value",
    ),
    "a lone output": (
        {"input": [ASK, {"type": "function_call_output", "call_id": "b", "output": "x"}]},
        "No tool call found for function call output with call_id b.",
        "input",
        None,
    ),
    "no output": ({"input": [ASK, ITEM]}, "No tool output found for function call a.", "input", None),
    "json without the word": (
        {"text": {"format": {"type": "json_object"}}},
        "Response input messages must contain the word 'json' in some form to use 'text.format' of type 'json_object'.",
        "input",
        None,
    ),
    "an open strict schema": (
        {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": OPEN}}},
        f"Invalid schema for response_format 'x': In context=(), {FORBID}",
        "text.format.schema",
        "invalid_json_schema",
    ),
    "an open strict tool": (
        {"tools": [{"type": "function", "name": "f", "strict": True, "parameters": OPEN}]},
        f"Invalid schema for function 'f': In context=(), {FORBID}",
        "tools[0].parameters",
        "invalid_function_parameters",
    ),
    "a choice without tools": (
        {"tool_choice": "required"},
        "Tool choice 'required' must be specified with 'tools' parameter.",
        "tool_choice",
        None,
    ),
}

USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}
RESULT = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "x"}]}
TOOLS = [{"name": "f", "input_schema": {"type": "object"}}]
THINK = {"type": "enabled", "budget_tokens": 1024}
BITMAP = {"type": "image", "source": {"type": "base64", "media_type": "image/bmp", "data": "aGk="}}
MARK = {"cache_control": {"type": "ephemeral"}}
CACHED = {"type": "text", "text": "x", **MARK}
TYPES = "Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'"
OF_MESSAGES: Any = {
    "a bitmap": (
        {"messages": [{"role": "user", "content": [BITMAP]}]},
        f"messages.0.content.0.image.source.base64.media_type: {TYPES}",
    ),
    "a bitmap that a tool has seen": (
        {
            "messages": [ASK, USE, {"role": "user", "content": [{**RESULT["content"][0], "content": [BITMAP]}]}],  # type: ignore[dict-item]
            "tools": TOOLS,
        },
        f"messages.2.content.0.tool_result.content.0.image.source.base64.media_type: {TYPES}",
    ),
    "five marks of a cache": (
        {
            "system": [CACHED],
            "tools": [{**TOOLS[0], **MARK}],
            "messages": [{"role": "user", "content": [CACHED, CACHED, CACHED]}],
        },
        "A maximum of 4 blocks with cache_control may be provided. Found 5.",
    ),
    "a blank stop": (
        {"stop_sequences": ["end", " \n"]},
        "stop_sequences: each stop sequence must contain non-whitespace",
    ),
    "no result": (
        {"messages": [ASK, USE, ASK], "tools": TOOLS},
        "messages.1: `tool_use` ids were found without `tool_result` blocks immediately after: a. Each `tool_use` "
        "block must have a corresponding `tool_result` block in the next message.",
    ),
    "a lone result": (
        {"messages": [RESULT], "tools": TOOLS},
        "messages.0.content.0: unexpected `tool_use_id` found in `tool_result` blocks: a. Each `tool_result` block "
        "must have a corresponding `tool_use` block in the previous message.",
    ),
    "a choice without tools": (
        {"tool_choice": {"type": "any"}},
        "tool_choice may only be specified while providing tools",
    ),
    "a small budget": (
        {"thinking": {"type": "enabled", "budget_tokens": 1023}, "max_tokens": 4096},
        "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024",
    ),
    "a budget beyond the answer": (
        {"thinking": THINK, "max_tokens": 1024},
        "`max_tokens` must be greater than `thinking.budget_tokens`.",
    ),
    "a temperature while thinking": (
        {"thinking": THINK, "max_tokens": 4096, "temperature": 0.5},
        "`temperature` may only be set to 1 when thinking is enabled.",
    ),
    "a forced tool while thinking": (
        {"thinking": THINK, "max_tokens": 4096, "tools": TOOLS, "tool_choice": {"type": "tool", "name": "f"}},
        "Thinking may not be enabled when tool_choice forces tool use.",
    ),
    "an id": (
        {"messages": [ASK, {"role": "assistant", "content": [{**USE["content"][0], "id": "a.b"}]}], "tools": TOOLS},  # type: ignore[dict-item]
        "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
    ),
    "two tools of one name": ({"tools": TOOLS * 2}, "tools: Tool names must be unique."),
    "an empty text": (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]},
        "messages: text content blocks must be non-empty",
    ),
    "a space at the end": (
        {"messages": [ASK, {"role": "assistant", "content": "I say "}]},
        "messages: final assistant content cannot end with trailing whitespace",
    ),
}


def openai_error(message: str, param: str | None, code: str | None) -> Any:
    return {"error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}}


def anthropic_error(message: str) -> Any:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}


CASES: Any = [
    *(
        pytest.param(CHAT, {"messages": [ASK], **b}, openai_error(*e), id=f"chat: {n}")
        for n, (b, *e) in OF_CHAT.items()
    ),
    *(
        pytest.param(RESPONSES, {"input": "go", **b}, openai_error(*e), id=f"responses: {n}")
        for n, (b, *e) in OF_RESPONSES.items()
    ),
    *(
        pytest.param(MESSAGES, {"max_tokens": 9, "messages": [ASK], **b}, anthropic_error(*e), id=f"messages: {n}")
        for n, (b, *e) in OF_MESSAGES.items()
    ),
]
each_refusal = each_case(("path", "body", "error"), CASES)


@pytest.fixture
def strict() -> Iterator[Platform]:
    with open_platform(backend=EchoBackend(["m"])) as platform:
        watch_requests(platform)
        yield platform


def asked(platform: Platform, path: str, body: Any, key: str | None = None) -> httpx.Response:
    headers = {"authorization": f"Bearer {key or platform.keys.create().secret}"}
    with httpx.Client(transport=HttpxTransport(platform), base_url="http://any.invalid") as client:
        return client.post(path, json={"model": "m", **body}, headers=headers)


@each_refusal
@each_case("stream", [False, True])
def test_a_vendor_refuses_with_its_own_error(strict: Platform, path: str, body: Any, error: Any, stream: bool) -> None:
    """In the words that people have met, such as OpenAI's "but got an invalid base64-encoded value", "array too long",
    "at the same time is not supported", and Anthropic's "A maximum of 4 blocks with cache_control may be provided",
    "each stop sequence must contain non-whitespace", "Input should be 'image/jpeg', ..."."""
    answer = asked(strict, path, {**body, "stream": stream})
    assert (answer.status_code, answer.json()) == (400, error)
    assert int(answer.headers["content-length"]) == len(answer.content)
    assert not list(strict.usage.list())


@each_refusal
def test_so_it_does_on_an_event_loop(strict: Platform, path: str, body: Any, error: Any) -> None:
    headers = {"authorization": f"Bearer {strict.keys.create().secret}"}

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=HttpxTransport(strict), base_url="http://any.invalid") as client:
            return await client.post(path, json={"model": "m", **body}, headers=headers)

    assert asyncio.run(ask()).json() == error


@pytest.mark.servers
def test_so_does_a_server(strict: Platform) -> None:
    headers = {"authorization": f"Bearer {strict.keys.create().secret}"}
    with served(strict) as url, httpx.Client(base_url=url, headers=headers) as client:
        for case in CASES:
            path, body, error = case.values
            assert client.post(path, json={"model": "m", **body}).json() == error, case.id
        assert client.post(CHAT, json={"model": "m", "messages": [ASK]}).status_code == 200


@each_refusal
def test_who_calls_is_asked_first(strict: Platform, path: str, body: Any, error: Any) -> None:
    assert asked(strict, path, body, key="wrong").status_code == 401


@each_refusal
@each_case("lenient", ["settings", "vllm"])
def test_leniency_is_a_choice(path: str, body: Any, error: Any, lenient: str) -> None:
    with open_platform(backend=EchoBackend(["m"]), settings=Settings(strict_conversations=False)) as platform:
        watch_requests(platform, "vllm" if lenient == "vllm" else None)
        assert asked(platform, path, body).json() != error


def test_what_vendors_take_is_taken(strict: Platform) -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}, "max_tokens": 2000, "temperature": 1}
    taken: Any = [
        (CHAT, {"messages": [ASK, called("a", "b"), result("b"), result("a")], "tools": [tool()]}),
        (CHAT, {"messages": [{"role": "user", "content": "as JSON"}], "response_format": {"type": "json_object"}}),
        (CHAT, {"messages": [ASK], "tools": [tool(strict=True)], "tool_choice": "auto", "parallel_tool_calls": True}),
        (CHAT, {"messages": [ASK], "response_format": form(STRICT)}),
        (CHAT, {"messages": [ASK], "response_format": form(OPEN, strict=False)}),
        (CHAT, {"messages": [ASK], "metadata": {"a": "b"}, "store": True}),
        (RESPONSES, {"input": "go", "text": {"format": {"type": "json_object"}}, "instructions": "in json"}),
        (RESPONSES, {"input": [ASK, ITEM, {"type": "function_call_output", "call_id": "a", "output": "x"}]}),
        (MESSAGES, {"messages": [ASK, USE, RESULT], "tools": TOOLS, "max_tokens": 9}),
        (MESSAGES, {"messages": [ASK, USE, RESULT], "max_tokens": 9}),
        (f"{MESSAGES}/count_tokens", {"messages": [ASK, USE, RESULT]}),
        (MESSAGES, {"messages": [ASK], **thinking}),
        (CHAT, {"messages": [ASK], "max_tokens": None, "max_completion_tokens": 9}),
        (CHAT, {"messages": [ASK], "tools": [tool(f"f{number}") for number in range(128)]}),
        (MESSAGES, {"system": [CACHED], "messages": [{"role": "user", "content": [CACHED] * 3}], "max_tokens": 9}),
        (MESSAGES, {"messages": [ASK], "stop_sequences": [" end"], "max_tokens": 9}),
    ]
    for path, body in taken:
        answer = asked(strict, path, body)
        assert answer.status_code == 200, (body, answer.text)


@pytest.mark.parametrize(
    "url",
    ["https://x/y.png", "HTTP://x/y", PIXEL, "data:image/WebP;base64,aGVs\nbG8=", "data:image/gif;a=b;base64,aGk="],
)
def test_an_image_that_vendors_take_is_taken(url: str) -> None:
    for body, path in (
        ({"messages": [picture(url)]}, CHAT),
        ({"input": [{"role": "user", "content": [{**SEEN, "image_url": url}]}]}, RESPONSES),
    ):
        assert vendor_refusal(None, "POST", path, body) is None


def test_the_first_turn_may_be_the_assistants(strict: Platform) -> None:
    """As of 8 October 2024, in Anthropic's release notes: "we no longer require the first input message to be a `user`
    message"."""
    body = {"messages": [SAID, ASK], "max_tokens": 9}
    watch_requests(strict, "anthropic")
    assert asked(strict, MESSAGES, body).status_code == 200
    assert asked(strict, f"{MESSAGES}/count_tokens", {"messages": [SAID, ASK]}).status_code == 200


def test_images_are_refused_where_one_watches_and_the_model_sees() -> None:
    with open_platform(backend=ScriptedBackend(lambda _: "ok", input_modalities=("text", "image"))) as platform:
        body = {"model": "scripted", "messages": [picture("data:image/png;base64,***")]}
        assert asked(platform, CHAT, body).status_code == 200
        watch_requests(platform, "openai")
        assert asked(platform, CHAT, body).json()["error"]["code"] == "invalid_value"
        assert asked(platform, CHAT, {**body, "messages": [picture(PIXEL)]}).status_code == 200


def test_vllm_refuses_an_image_of_an_unknown_scheme() -> None:
    """Its `MediaConnector` says: "The URL must be either a HTTP, data or file URL."."""
    with open_platform(backend=ScriptedBackend(lambda _: "ok", input_modalities=("text", "image"))) as platform:
        watch_requests(platform, "vllm")
        for url in ("ftp://x/y.png", ""):
            refused = asked(platform, CHAT, {"model": "scripted", "messages": [picture(url)]})
            error = {
                "message": "The URL must be either a HTTP, data or file URL.",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
            assert (refused.status_code, refused.json()) == (400, {"error": error})
        assert asked(platform, CHAT, {"model": "scripted", "messages": [picture(PIXEL)]}).status_code == 200


def uses(*ids: str) -> Any:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": id_, "name": "f", "input": {}} for id_ in ids]}


def results(*ids: str) -> Any:
    blocks = [{"type": "tool_result", "tool_use_id": id_, "content": "x"} for id_ in ids]
    return {"role": "user", "content": blocks}


SAID: Any = {"role": "assistant", "content": "Let me look."}


@given(
    st.lists(st.sampled_from("abcd"), min_size=1, unique=True).flatmap(
        lambda ids: st.tuples(st.just(ids), st.integers(0, len(ids)), st.integers(0, len(ids)))
    ),
    st.booleans(),
)
def test_neighbouring_turns_of_one_role_are_one(cut: Any, said: bool) -> None:
    ids, first, second = cut
    calling = [*([SAID] if said else []), uses(*ids[:first]), uses(*ids[first:])]
    answering = [results(*ids[:second]), results(*ids[second:])]
    turns = [turn for turn in [*calling, *answering] if turn["content"]]
    assert vendor_refusal(None, "POST", MESSAGES, {"messages": [ASK, *turns, ASK]}) is None
    assert vendor_refusal(None, "POST", MESSAGES, {"messages": [ASK, *turns[:-1], SAID]}) is not None


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
def test_the_platform_reads_neighbouring_turns_so_too(strict: Platform, path: str) -> None:
    asking: Any = {"role": "user", "content": "And now?"}
    talks: Any = [
        [SAID, uses("a"), uses("b"), results("b"), results("a"), asking],
        [uses("a"), SAID, results("a")],
        [uses("a", "b"), results("a"), results("b"), asking],
        [uses("a"), results("a"), uses("b"), uses("c"), results("c", "b")],
    ]
    for talk in talks:
        body = {"messages": [ASK, *talk], **({"max_tokens": 9} if path == MESSAGES else {})}
        answer = asked(strict, path, body)
        assert answer.status_code == 200, (talk, answer.text)
    for talk in ([uses("a"), uses("b"), results("a")], [uses("a"), results("a"), results("b")]):
        assert asked(strict, MESSAGES, {"messages": [ASK, *talk], "max_tokens": 9}).status_code == 400


def test_what_is_split_into_turns_has_the_places_of_its_messages() -> None:
    refused = vendor_refusal(None, "POST", MESSAGES, {"messages": [ASK, uses("a"), uses("b"), ASK, results("b", "c")]})
    assert refused is not None
    assert b"messages.2: `tool_use` ids were found without `tool_result` blocks immediately after: a." in refused[1]
    refused = vendor_refusal(None, "POST", MESSAGES, {"messages": [ASK, uses("a"), ASK, results("a", "c")]})
    assert refused is not None
    assert b"messages.3.content.1: unexpected `tool_use_id` found" in refused[1]


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_1"},
        {"conversation": "conv_1"},
        {"prompt": {"id": "pmpt_1"}},
        {"input": [ASK, {"type": "item_reference", "id": "msg_1"}]},
    ],
)
def test_what_the_vendor_has_stored_may_have_the_word_json(more: Any) -> None:
    body = {"input": "go", "text": {"format": {"type": "json_object"}}}
    assert vendor_refusal(None, "POST", RESPONSES, body) is not None
    assert vendor_refusal(None, "POST", RESPONSES, {**body, **more}) is None


def test_of_several_calls_the_first_is_named() -> None:
    for type_ in ("function_call", "function_call_output"):
        items = [{"type": type_, "call_id": f"call_{number}"} for number in range(20)]
        refused = vendor_refusal(None, "POST", RESPONSES, {"input": items})
        assert refused is not None
        assert json.loads(refused[1])["error"]["message"].rstrip(".").endswith(" call_0")


def test_an_empty_stop_is_left_to_the_platform() -> None:
    assert vendor_refusal(None, "POST", CHAT, {"messages": [ASK], "stop": []}) is None


def test_a_profile_has_the_paths_of_its_vendor(strict: Platform) -> None:
    watch_requests(strict, "openai")
    answer = asked(strict, MESSAGES, {"max_tokens": 9, "messages": [ASK]})
    assert (answer.status_code, answer.json()) == (404, openai_error("Invalid URL (POST /v1/messages)", None, None))
    watch_requests(strict, "anthropic")
    error = {"type": "not_found_error", "message": "Not found"}
    for path in (RESPONSES, f"{RESPONSES}/input_tokens"):
        answer = asked(strict, path, {"input": "go"})
        assert (answer.status_code, answer.json()) == (404, {"type": "error", "error": error})
    assert asked(strict, CHAT, {"messages": [ASK], "tool_choice": "none"}).status_code == 200  # both vendors have it


def test_errors_of_vllm_have_its_shape() -> None:
    with open_platform(backend=EchoBackend(["m"])) as platform:
        watch_requests(platform, "vllm")
        unknown = asked(platform, CHAT, {"messages": [ASK], "model": "x"})
        error = unknown.json()["error"]
        assert (unknown.status_code, error["type"], error["code"]) == (404, "NotFoundError", 404)
        wrong = asked(platform, CHAT, {"messages": [ASK], "temperature": 9}).json()["error"]
        assert (wrong["type"], wrong["code"], wrong["param"]) == ("BadRequestError", 400, "temperature")


def test_a_profile_that_there_is_not_is_refused(strict: Platform) -> None:
    with pytest.raises(InvalidInput, match="'openai', 'anthropic', 'vllm'"):
        watch_requests(strict, "opnai")  # type: ignore[arg-type]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "tool_calls", "id", "function", "name", "parameters", "strict"])
            | st.sampled_from(
                ["properties", "required", "anyOf", "items", "$defs", "tool_use_id", "call_id", "schema"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
MEMBERS = ["messages", "input", "tools", "tool_choice", "response_format", "text", "thinking", "max_tokens", "metadata"]


@given(st.dictionaries(st.sampled_from(MEMBERS), json_values), st.sampled_from([CHAT, RESPONSES, MESSAGES]))
def test_any_body_is_taken_or_refused_with_an_error(body: Any, path: str) -> None:
    refused = vendor_refusal(None, "POST", path, body)
    assert refused is None or isinstance(json.loads(refused[1])["error"]["message"], str)


odd = json_values | st.text("abc", max_size=2)
urls = st.text("data:image/png;base64,aGk= \u00e9", max_size=30) | st.sampled_from([*NO_IMAGES])
odd_bodies = st.fixed_dictionaries(
    {},
    optional={
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "tool"]) | odd},
                optional={
                    "tool_call_id": odd,
                    "tool_calls": st.lists(st.fixed_dictionaries({"id": odd}) | odd, max_size=2) | odd,
                    "content": st.lists(
                        st.fixed_dictionaries(
                            {"type": st.sampled_from(["tool_use", "tool_result", "text", "image", "image_url"])},
                            optional={
                                "id": odd,
                                "tool_use_id": odd,
                                "text": odd,
                                "content": odd,
                                "cache_control": odd,
                                "source": st.fixed_dictionaries({"type": st.just("base64"), "media_type": odd}) | odd,
                                "image_url": st.fixed_dictionaries({"url": urls | odd}) | urls | odd,
                            },
                        ),
                        max_size=2,
                    )
                    | odd,
                },
            ),
            max_size=3,
        ),
        "input": st.lists(
            st.fixed_dictionaries(
                {"type": st.sampled_from(["function_call", "function_call_output"])}, optional={"call_id": odd}
            )
            | odd,
            max_size=3,
        ),
        "tools": st.lists(st.fixed_dictionaries({"name": odd, "input_schema": odd, "function": odd}) | odd, max_size=2),
        "tool_choice": odd | st.fixed_dictionaries({"name": odd, "type": odd}),
        "thinking": st.fixed_dictionaries({"type": st.just("enabled"), "budget_tokens": odd}),
        "temperature": odd,
        "max_tokens": odd,
        "top_p": odd,
        "stop_sequences": odd,
        "system": odd,
    },
)


@given(odd_bodies)
def test_no_rule_is_broken_by_a_body(body: Any) -> None:
    for rules in (openai_rules.of_chat, openai_rules.of_responses, anthropic_rules.of_messages, vllm_rules.of_any):
        assert all(isinstance(one.message, str) for one in rules(body))


ODD_IDS: Any = [["a"], {"a": 1}, 7, None, True]


@pytest.mark.parametrize("id_", ODD_IDS)
def test_an_id_that_is_no_text_is_refused_by_the_platform(strict: Platform, id_: Any) -> None:
    bodies: Any = [
        (CHAT, {"messages": [ASK, {"role": "tool", "tool_call_id": id_, "content": "x"}]}),
        (CHAT, {"messages": [ASK, {**called("a"), "tool_calls": [{**called("a")["tool_calls"][0], "id": id_}]}]}),
        (RESPONSES, {"input": [{"type": "function_call_output", "call_id": id_, "output": "x"}]}),
        (RESPONSES, {"input": [{**ITEM, "call_id": id_}]}),
        (MESSAGES, {"messages": [{**RESULT, "content": [{**RESULT["content"][0], "tool_use_id": id_}]}]}),  # type: ignore[dict-item]
        (MESSAGES, {"messages": [ASK, {**USE, "content": [{**USE["content"][0], "id": id_}]}]}),  # type: ignore[dict-item]
    ]
    with open_platform(backend=EchoBackend(["m"])) as unwatched:
        for path, body in bodies:
            body = {"max_tokens": 9, **body} if path == MESSAGES else body
            answer, own = asked(strict, path, body), asked(unwatched, path, body)
            assert (answer.status_code, answer.json()) == (400, own.json()), body


DEEP: Any = [b"[" * 100_000, b'{"input":' + b"[" * 900 + b"]" * 900 + b"}", b'{"n":' + b"9" * 9_000 + b"}", b"\xff{}"]


@pytest.mark.parametrize("raw", DEEP, ids=["open", "deep", "long number", "no text"])
@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("profile", [None, "openai", "anthropic", "vllm"])
def test_a_body_that_cannot_be_read_is_refused_by_the_platform(path: str, raw: bytes, profile: Any) -> None:
    with open_platform(backend=EchoBackend(["m"])) as platform:
        log = watch_requests(platform, profile)
        headers = {"authorization": f"Bearer {platform.keys.create().secret}", "content-type": "application/json"}
        with httpx.Client(transport=HttpxTransport(platform), base_url="http://any.invalid") as client:
            assert client.post(path, content=raw, headers=headers).status_code == 400
        assert (log[0].status, log[0].body, log[0].text) == (400, None, "")


def strict_objects(inner: Any) -> Any:
    return st.fixed_dictionaries(
        {"additionalProperties": st.just(False), "properties": inner}, optional={"required": inner, "anyOf": inner}
    )


@given(json_values | strict_objects(json_values | st.dictionaries(st.text(max_size=2), strict_objects(json_values))))
def test_any_schema_is_judged(schema: Any) -> None:
    assert isinstance(why_not_strict(schema), str)


turns = st.lists(
    st.just(ASK)
    | st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True).map(lambda ids: called(*ids))
    | st.sampled_from("abc").map(result),
    max_size=5,
)


@given(turns)
def test_a_vendor_and_the_platform_refuse_the_same_conversations(messages: Any) -> None:
    body = {"messages": [ASK, *messages], "tools": [tool()]}
    with open_platform(backend=EchoBackend(["m"])) as platform:
        refused = asked(platform, CHAT, body).status_code == 400
    assert (vendor_refusal(None, "POST", CHAT, body) is not None) is refused
