"""The messages format over HTTP: the same completions in blocks and events, keys in their own header, its errors."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from http_client import Answer, Client, client_of
from modelyard import Pricing, ScriptedBackend, open_platform
from modelyard.asgi import asgi_app
from modelyard.backends import UpstreamBackend, call, offer, reasoning, say
from modelyard.domain.completion import ContentPart, Message, Role, ToolCall, ToolMode
from modelyard.errors import BackendError
from modelyard.http.interface import Interface
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.messages.formats.request import read_messages_request

PATH, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HELLO = {"role": "user", "content": "hello there friend"}
TOOL = {"name": "look", "description": "looks", "input_schema": {"type": "object", "properties": {}}}
DOCUMENT = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a b"}, "title": "T"}
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "schema": SCHEMA}
PIXEL = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def ask(client: Client, path: str = PATH, check: bool = True, **members: Any) -> Answer:
    sent = {name: members.pop(name) for name in ("headers", "key") if name in members}
    body = {"model": "echo", "max_tokens": 50, "messages": [HELLO], **members}
    return client.send("POST", path, body, check=check, **sent)


def events(answer: Answer) -> list[Any]:
    """The events of a stream, each under the name that is its type."""
    found = []
    for text in answer.raw.decode().split("\n\n")[:-1]:
        name, data = text.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def assembled(found: list[Any]) -> Any:
    """The message that the events make, by the rules of the format: each block begins, changes and ends in turn."""
    start, *middle, ending, stop = (one for one in found if one["type"] != "ping")
    assert (start["type"], ending["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    content: list[Any] = []
    opened, pieces = False, ""
    for event in middle:
        if event["type"] == "content_block_start":
            assert (opened, event["index"]) == (False, len(content))
            content.append(dict(event["content_block"]))
            opened, pieces = True, ""
        elif event["type"] == "content_block_delta":
            assert (opened, event["index"]) == (True, len(content) - 1)
            delta = event["delta"]
            if delta["type"] in ("text_delta", "thinking_delta"):
                name = delta["type"].removesuffix("_delta")
                content[-1][name] += delta[name]
            else:
                pieces += delta["partial_json"]
        else:
            assert event == {"type": "content_block_stop", "index": len(content) - 1}
            if content[-1]["type"] == "tool_use":
                content[-1]["input"] = json.loads(pieces or "{}")
            opened = False
    assert not opened
    return start["message"] | ending["delta"] | {"content": content, "usage": ending["usage"]}


# ---- the answer ----


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def scripted(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A client of a platform whose answers a test writes down."""
    platforms = []

    def made(*answers: Any) -> Client:
        platforms.append(open_platform(backend=ScriptedBackend(list(answers), models=("echo",), unchecked=True)))
        made_client: Client = client_of(platforms[-1], asynchronous=request.param)
        return made_client

    yield made
    for platform in platforms:
        platform.close()


ANSWERS = {
    "text": (say("one two"), "end_turn"),
    "nothing": (say(""), "end_turn"),
    "a call": (call("look", x=1), "tool_use"),
    "text and two calls": (
        Message(
            Role.ASSISTANT,
            "let me see",
            tool_calls=(ToolCall("a", "look", '{"x": 1}'), ToolCall("b", "look", "{}")),
        ),
        "tool_use",
    ),
    "reasoning": (say(reasoning("hm "), reasoning("so"), "one two"), "end_turn"),
    "reasoning and a call": (say(reasoning("hm"), call("look", x=1)), "tool_use"),
    "filtered": (say("no", finish="content_filter"), "refusal"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_reads_the_same_streamed_and_whole(scripted: Any, name: str) -> None:
    given_answer, reason = ANSWERS[name]
    client = scripted(given_answer, given_answer)
    whole = ask(client, tools=[TOOL]).json
    streamed = assembled(events(ask(client, tools=[TOOL], stream=True)))
    assert whole.pop("id") != streamed.pop("id")
    assert streamed == whole
    assert (whole["stop_reason"], whole["stop_sequence"], whole["model"]) == (reason, None, "echo")


def test_a_whole_answer_in_blocks(client: Client) -> None:
    answer = ask(client).json
    assert answer.pop("id")
    assert answer == {
        "type": "message",
        "role": "assistant",
        "model": "echo",
        "content": [{"type": "text", "text": "hello there friend"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 3,
            "output_tokens": 3,
            "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0,
        },
    }


def test_reasoning_comes_in_blocks_of_its_own(client: Client) -> None:
    asked: Any = {"output_config": {"effort": "low"}, "thinking": {"type": "adaptive"}}
    thinking, text = ask(client, **asked).json["content"]
    assert thinking == {"type": "thinking", "thinking": "hello there friend", "signature": ""}
    assert text == {"type": "text", "text": "hello there friend"}
    found = events(ask(client, stream=True, **asked))
    assert assembled(found)["content"] == [thinking, text]
    assert found[3]["delta"] == {"type": "thinking_delta", "thinking": "hello"}


def test_the_events_come_in_their_order(client: Client) -> None:
    names = [event["type"] for event in events(ask(client, stream=True))]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_an_answer_that_is_cut_says_so(client: Client) -> None:
    assert ask(client, max_tokens=2).json["stop_reason"] == "max_tokens"
    for stops, text, reason, named in (
        (["friend", "there"], "hello ", "stop_sequence", "there"),
        (["hello"], "", "stop_sequence", "hello"),
        (["nowhere"], "hello there friend", "end_turn", None),
        (["friend"], "hello there ", "stop_sequence", "friend"),
    ):
        whole = ask(client, stop_sequences=stops).json
        streamed = assembled(events(ask(client, stop_sequences=stops, stream=True)))
        both = {"id": "", "usage": {}}  # a whole answer may have been made further than where it is cut
        assert whole | both == streamed | both
        assert whole["content"] == ([{"type": "text", "text": text}] if text else [])
        assert (whole["stop_reason"], whole["stop_sequence"]) == (reason, named)
    assert ask(client, stop_sequences=["friend"], max_tokens=2).json["stop_reason"] == "max_tokens"
    forced = ask(client, tools=[TOOL], tool_choice={"type": "tool", "name": "look"}, max_tokens=1).json
    assert forced["content"][0]["input"] == {}


def test_a_failure_in_the_middle_is_an_event(scripted: Any) -> None:
    client = scripted(say("one", BackendError("gone")))
    found = events(ask(client, stream=True))
    assert found[-1] == {"type": "error", "error": {"type": "api_error", "message": "gone"}}
    assert client.platform.usage.list(entity="acme")


def test_usage_is_booked_as_of_any_completion(client: Client) -> None:
    before = [entry.id for entry in client.platform.usage.list(entity="acme")]
    answer = ask(client, headers=[("openai-project", "acme/chat")]).json
    (entry,) = [entry for entry in client.platform.usage.list(entity="acme") if entry.id not in before]
    assert (entry.id, entry.project, entry.prompt_tokens, entry.completion_tokens) == (answer["id"], "chat", 3, 3)


def test_tokens_are_counted_without_an_answer(client: Client) -> None:
    before = len([*client.platform.usage.list(entity="acme")])
    body = {"model": "echo", "messages": [HELLO], "system": "two words", "tools": [TOOL]}
    assert client.ok("POST", COUNT, body) == {"input_tokens": 5}
    assert len([*client.platform.usage.list(entity="acme")]) == before
    assert client.send("POST", COUNT, {**body, "max_tokens": 5}, check=False).status == 400


# ---- callers ----


def test_a_key_may_come_in_its_own_header_or_as_bearer(client: Client) -> None:
    assert ask(client).status == 200
    assert ask(client, key="", headers=[("x-api-key", client.key)]).status == 200
    other = client.platform.keys.create("rival").secret
    assert ask(client, headers=[("x-api-key", other)]).status == 200
    assert {entry.entity for entry in client.platform.usage.list(entity="rival")} == {"rival"}


@pytest.mark.parametrize("headers", [[], [("x-api-key", "wrong")], [("x-api-key", "")], [("x-api-key", "a b")]])
def test_without_a_key_nothing_is_answered(client: Client, headers: Any) -> None:
    refused = ask(client, key="", headers=headers)
    assert (refused.status, refused.json["error"]["type"]) == (401, "authentication_error")


def test_a_key_that_comes_twice_is_refused(client: Client) -> None:
    assert ask(client, key="", headers=[("x-api-key", client.key), ("x-api-key", client.key)]).status == 400


def test_the_header_counts_nowhere_else(client: Client) -> None:
    body = {"model": "echo", "messages": [HELLO]}
    sent = {"key": "", "headers": [("x-api-key", client.key)]}
    assert client.send("POST", "/v1/chat/completions", body, **sent).status == 401


def test_it_can_be_left_out(client_for: Any) -> None:
    with open_platform() as platform:
        client = client_for(platform, interfaces=[Interface.INFERENCE])
        assert ask(client).status == 404


# ---- what is refused ----


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"max_tokens": None}, "max_tokens: must be a whole number"),
        ({"max_tokens": 0}, "max_tokens: must be at least 1"),
        ({"temperature": 1.5}, "temperature: must be at most 1"),
        ({"messages": []}, "messages: must not be empty"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role: must be 'user' or 'assistant'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "search_result", "source": ""}]}]},
            "messages[0].content[0].type: must be 'text', 'image', 'document' or 'tool_result'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {**PIXEL, "type": "base64"}}]}]},
            "messages[0].content[0].source.type: must be 'text' or 'content'",
        ),
        (
            {"messages": [{"role": "user", "content": [{**DOCUMENT, "citations": {"enabled": True}}]}]},
            "messages[0].content[0].citations.enabled: must be false: nothing is cited",
        ),
        ({"tools": [{"type": "web_search_20250305", "name": "w", "input_schema": {}}]}, "must be 'custom'"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice: must be the name"),
        ({"tool_choice": {"type": "any"}}, "tool_choice: needs tools"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name: is required"),
        ({"thinking": {"type": "often"}}, "thinking.type: must be 'disabled', 'adaptive' or 'enabled'"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens: is required"),
        ({"thinking": {"type": "adaptive", "budget_tokens": 1024}}, "thinking.budget_tokens: is required"),
        ({"thinking": {"type": "enabled", "budget_tokens": 1023}}, "thinking.budget_tokens: must be at least 1024"),
        ({"thinking": {"type": "adaptive", "display": "omitted"}}, "thinking.display: must be 'summarized'"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema: is required"),
        ({"model": "tabular-mini", "output_config": {"effort": "low"}}, "output_config.effort: "),
        ({"output_format": {"type": "json_schema"}}, "output_format.schema: is required"),
        ({"output_format": FORM, "output_config": {"format": FORM}}, "output_format: must be left out"),
        ({"model": "tabular-mini", "output_format": FORM}, "output_format: "),
        ({"model": "tabular-mini", "output_config": {"format": FORM}}, "output_config.format: "),
        (
            {"model": "tabular-mini", "thinking": {"type": "enabled", "budget_tokens": 1024}},
            "thinking: tabular-mini does not support this",
        ),
        ({"mcp_servers": []}, "mcp_servers: is not supported"),
        ({"container": "a"}, "container: is not supported"),
        ({"stop_sequences": [""]}, "stop_sequences: must hold no empty string"),
        ({"top_kk": 5}, "top_kk: is not a parameter of messages; did you mean 'top_k' or 'top_p'?"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": PIXEL}]}]},
            "echo does not take image_url",
        ),
    ],
)
def test_what_is_wrong_is_named(client: Client, members: Any, said: str) -> None:
    refused = ask(client, check=False, **members)
    assert (refused.status, refused.json["type"]) == (400, "error")
    assert refused.json["error"]["type"] == "invalid_request_error"
    assert said in refused.json["error"]["message"]


@pytest.mark.parametrize("member", [{"output_config": {"format": FORM}}, {"output_format": FORM}])
def test_a_schema_is_kept_under_its_old_name_too(client: Client, member: Any) -> None:
    assert json.loads(ask(client, **member).json["content"][0]["text"]) == {"n": 0}
    counted = client.send("POST", f"{PATH}/count_tokens", {"model": "echo", "messages": [HELLO], **member})
    assert counted.json == {"input_tokens": 3}


@pytest.mark.parametrize(
    ("path", "members", "status", "kind"),
    [
        (PATH, {"model": "nothing"}, 404, "not_found_error"),
        (f"{PATH}/batches", {}, 404, "not_found_error"),
        (PATH, {"headers": [("openai-project", "rival/all")]}, 403, "permission_error"),
    ],
)
def test_errors_have_the_types_of_the_format(client: Client, path: str, members: Any, status: int, kind: str) -> None:
    refused = ask(client, path, check=False, **members)
    assert (refused.status, refused.json["error"]["type"]) == (status, kind)


# ---- a conversation ----


def text(given_text: str) -> Any:
    return {"type": "text", "text": given_text}


def test_documents_and_the_images_of_tools_become_messages() -> None:
    part = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "c"}]}}
    result = {
        "type": "tool_result",
        "tool_use_id": "t1",
        "content": [{"type": "text", "text": "seen: "}, {"type": "image", "source": PIXEL}, part],
    }
    turns = [
        {"role": "user", "content": [DOCUMENT, {"type": "text", "text": "sum it up"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "so?"}, result]},
    ]
    image = ContentPart("image_url", data={"url": "data:image/png;base64,aGk=", "detail": "auto"})
    assert read_messages_request({"model": "m", "max_tokens": 9, "messages": turns}).messages == (
        Message(Role.USER, "T\n\na b\n\nsum it up"),
        Message(Role.ASSISTANT, None, tool_calls=(ToolCall("t1", "look", "{}"),)),
        Message(Role.TOOL, "seen: c\n\n", tool_call_id="t1"),
        Message(Role.USER, (image, ContentPart("text", "so?"))),
    )


@pytest.mark.parametrize("stream", [True, False])
def test_behind_another_platform_the_stop_sequence_is_named(stream: bool) -> None:
    with open_platform() as inner, asgi_server(asgi_app(inner, [Interface.INFERENCE]), log_level="warning") as server:
        secret = inner.keys.create("acme").secret
        far = UpstreamBackend(
            f"{server.url}/inference/v1", secret, models=[offer("echo", context_length=1000, pricing=Pricing())]
        )
        with far, open_platform(backend=far) as outer:
            answer = ask(client_of(outer), stop_sequences=["friend"], stream=stream)
            ended = events(answer)[-2]["delta"] if stream else answer.json
            assert (ended["stop_reason"], ended["stop_sequence"]) == ("stop_sequence", "friend")


def test_a_conversation_with_tools_and_images_becomes_messages() -> None:
    body = {
        "model": "m",
        "max_tokens": 9,
        "system": [
            {"type": "text", "text": "be ", "cache_control": {"type": "ephemeral"}},
            {"type": "text", "text": "kind"},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image", "source": PIXEL}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "s"},
                    {"type": "text", "text": "I look"},
                    {"type": "tool_use", "id": "t1", "name": "look", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "and?"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t1",
                        "content": [{"type": "text", "text": "no"}],
                        "is_error": True,
                    },
                    {"type": "tool_result", "tool_use_id": "t2"},
                ],
            },
        ],
        "tools": [TOOL],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "metadata": {"user_id": "u"},
        "top_k": 3,
        "thinking": {"type": "disabled"},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    }
    request = read_messages_request(body)
    image = ContentPart("image_url", data={"url": "data:image/png;base64,aGk=", "detail": "auto"})
    assert request.messages == (
        Message(Role.SYSTEM, "be kind"),
        Message(Role.USER, (ContentPart("text", "see"), image)),
        Message(Role.ASSISTANT, "I look", tool_calls=(ToolCall("t1", "look", '{"x":1}'),), reasoning="hm"),
        Message(Role.TOOL, "Error: no", tool_call_id="t1"),
        Message(Role.TOOL, "", tool_call_id="t2"),
        Message(Role.USER, "and?"),
    )
    assert (request.tool_choice.mode, request.parallel_tool_calls) == (ToolMode.REQUIRED, False)
    assert (request.user, request.sampling.top_k, request.max_tokens) == ("u", 3, 9)
    assert request.tools[0].parameters == TOOL["input_schema"]
    assert (request.extras, request.response_format.schema) == ({"reasoning_effort": "low"}, {"type": "object"})


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
CONTENTS = st.one_of(TEXTS, st.lists(TEXTS, max_size=3))


@examples(40)
@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant"]), st.one_of(TEXTS, st.lists(TEXTS, max_size=3))), min_size=1
    )
)
def test_text_is_kept_whatever_its_blocks_are(turns: list[tuple[str, Any]]) -> None:
    def content(given_text: Any) -> Any:
        return given_text if isinstance(given_text, str) else [*map(text, given_text)]

    messages = [{"role": role, "content": content(given_text)} for role, given_text in turns]
    read = read_messages_request({"model": "m", "max_tokens": 1, "messages": messages}).messages
    assert [(message.role.value, message.text) for message in read] == [
        (role, "".join(given_text)) for role, given_text in turns
    ]
