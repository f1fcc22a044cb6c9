"""What vendors refuse of a conversation is refused by doubles, over every format, and may be allowed."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from example_counts import examples
from http_client import Client, client_of
from modelyard import EchoBackend, Platform, ScriptedBackend, Settings, open_platform
from modelyard.domain.completion import Message, Role, ToolCall
from modelyard.errors import InvalidInput
from modelyard.protocols import Capabilities

TOOL = {"name": "look_up", "description": "d", "parameters": {"type": "object"}}
ANSWERED: Any = [[("call", "a"), ("result", "a")], [("call", "a"), ("call", "b"), ("result", "b"), ("result", "a")]]
REFUSED: Any = {
    "an answer alone": [("result", "a")],
    "an answer to another call": [("call", "a"), ("result", "a"), ("result", "b")],
    "an answer after the user spoke": [("call", "a"), ("result", "a"), ("user", "x"), ("result", "a")],
    "no answer": [("call", "a"), ("user", "x")],
    "no answer at the end": [("call", "a")],
    "one of two answers": [("call", "a"), ("call", "b"), ("result", "a"), ("user", "x")],
    "two answers": [("call", "a"), ("result", "a"), ("result", "a")],
    "two answers to one of two": [("call", "a"), ("call", "b"), ("result", "a"), ("result", "b"), ("result", "a")],
    "two calls of one id": [("call", "a"), ("call", "a"), ("result", "a")],
    "two calls of one id, each with an answer": [("call", "a"), ("call", "a"), ("result", "a"), ("result", "a")],
}
Step = tuple[str, str]


def chat_body(steps: list[Step], tools: int = 1) -> dict[str, Any]:
    messages: list[Any] = [{"role": "user", "content": "go"}]
    for kind, value in steps:
        if kind == "result":
            messages.append({"role": "tool", "tool_call_id": value, "content": "found"})
        elif kind == "user":
            messages.append({"role": "user", "content": value})
        else:
            if messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None, "tool_calls": []})
            called = {"id": value, "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
            messages[-1]["tool_calls"].append(called)
    return {"model": "echo", "messages": messages, "tools": [{"type": "function", "function": TOOL}] * tools}


def responses_body(steps: list[Step], tools: int = 1) -> dict[str, Any]:
    items: list[Any] = [{"role": "user", "content": "go"}]
    for kind, value in steps:
        if kind == "result":
            items.append({"type": "function_call_output", "call_id": value, "output": "found"})
        elif kind == "user":
            items.append({"role": "user", "content": value})
        else:
            items.append({"type": "function_call", "call_id": value, "name": "look_up", "arguments": "{}"})
    return {"model": "echo", "input": items, "tools": [{"type": "function", **TOOL}] * tools}


def messages_body(steps: list[Step], tools: int = 1) -> dict[str, Any]:
    turns: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
    for kind, value in steps:
        block: Any = {"type": "text", "text": value}
        if kind == "result":
            block = {"type": "tool_result", "tool_use_id": value, "content": "found"}
        elif kind == "call":
            block = {"type": "tool_use", "id": value, "name": "look_up", "input": {}}
        role = "assistant" if kind == "call" else "user"
        if turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"].append(block)
    tool = {"name": "look_up", "input_schema": TOOL["parameters"]}
    return {"model": "echo", "max_tokens": 9, "messages": turns, "tools": [tool] * tools}


DOORS: Any = {
    "/v1/chat/completions": chat_body,
    "/inference/v1/chat/completions": chat_body,
    "/v1/responses": responses_body,
    "/v1/messages": messages_body,
}
each_door = each_case("door", DOORS)


BLANK: Any = [
    {"messages": [{"role": "user", "content": ""}]},
    {"messages": [{"role": "user", "content": []}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": " \n"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "text", "text": ""}]}]},
    {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [{"type": "text", "text": ""}]}]},
    {"messages": [{"role": "assistant", "content": ""}, {"role": "user", "content": "x"}]},
    {"messages": [{"role": "user", "content": "x"}], "system": [{"type": "text", "text": ""}]},
    messages_body([("call", "a"), ("result", "a")]),
]
BLANK[-1]["messages"][-1]["content"][0]["content"] = [{"type": "text", "text": ""}]


def opened(double: str, strict: bool = True) -> Platform:
    backend: Any = EchoBackend() if double == "echo" else ScriptedBackend(lambda request: "done", ["echo"])
    return open_platform(backend=backend, settings=Settings(strict_conversations=strict))


@pytest.fixture(params=["echo", "scripted"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    with opened(request.param) as platform:
        yield client_of(platform)


@pytest.fixture(params=["echo", "scripted"])
def lenient(request: pytest.FixtureRequest) -> Iterator[Client]:
    with opened(request.param, strict=False) as platform:
        yield client_of(platform)


@each_door
@each_case("stream", [False, True])
def test_what_vendors_refuse_is_refused_and_may_be_allowed(
    door: str, stream: bool, client: Client, lenient: Client
) -> None:
    for steps in ANSWERED:
        assert client.send("POST", door, DOORS[door](steps) | {"stream": stream}, check=False).status == 200
    for steps in REFUSED.values():
        if door == "/v1/messages" and steps == REFUSED["an answer after the user spoke"]:
            continue  # that answer and what the user said before are one turn there
        body = DOORS[door](steps) | {"stream": stream}
        answer = client.send("POST", door, body, check=False)
        assert (answer.status, b"strict_conversations=False" in answer.raw) == (400, True), steps
        assert lenient.send("POST", door, body, check=False).status == 200
    body = DOORS[door]([], tools=2)
    assert client.send("POST", door, body, check=False).status == 400
    assert lenient.send("POST", door, body, check=False).status == 200


@each_door
@each_case("steps", [[("result", "a")], [("call", "a")]])
def test_what_is_refused_is_refused_though_it_is_all_that_is_said(
    door: str, steps: list[Step], client: Client, lenient: Client
) -> None:
    body = DOORS[door](steps)
    said = body["messages" if "messages" in body else "input"]
    said[:] = [{**said[-1], "content": said[-1]["content"][-1:]}] if door == "/v1/messages" else said[-1:]
    answer = client.send("POST", door, {**body, "tools": []} if door == "/v1/messages" else body, check=False)
    assert (answer.status, b"strict_conversations=False" in answer.raw) == (400, True), body
    assert lenient.send("POST", door, body, check=False).status == 200


@each_case("door", [door for door in DOORS if door != "/v1/messages"])
def test_an_empty_id_is_refused_and_may_be_allowed(door: str, client: Client, lenient: Client) -> None:
    body = DOORS[door]([("call", ""), ("result", "")])
    assert client.send("POST", door, body, check=False).status == 400
    assert lenient.send("POST", door, body, check=False).status in (200, 400)


def test_an_empty_list_of_calls_is_refused_and_may_be_allowed(client: Client, lenient: Client) -> None:
    said = {"role": "assistant", "content": "x", "tool_calls": []}
    body = {"model": "echo", "messages": [{"role": "user", "content": "x"}, said, {"role": "user", "content": "y"}]}
    answer = client.send("POST", "/v1/chat/completions", body, check=False)
    assert answer.json["error"]["param"] == "messages[1].tool_calls"
    assert "must not be empty; leave it out" in answer.json["error"]["message"]
    assert lenient.send("POST", "/v1/chat/completions", body).status == 200


@each_case(
    ("door", "counting"),
    [("/v1/messages", "/v1/messages/count_tokens"), ("/v1/responses", "/v1/responses/input_tokens")],
)
@each_case("steps", [*ANSWERED, *REFUSED.values()], ids=str)
def test_a_conversation_is_counted_if_it_is_answered(
    door: str, counting: str, steps: list[Step], client: Client, lenient: Client
) -> None:
    body = DOORS[door](steps)
    asked = {name: value for name, value in body.items() if name != "max_tokens"}
    for who in (client, lenient):
        answered, counted = (who.send("POST", at, what, check=False) for at, what in ((door, body), (counting, asked)))
        assert answered.status == counted.status
        if counted.status != 200:
            assert answered.json["error"]["message"] == counted.json["error"]["message"]


@each_case("body", BLANK, ids=json.dumps)
def test_a_blank_text_is_counted_if_it_is_answered(body: Any, client: Client, lenient: Client) -> None:
    asked = {"model": "echo", **{name: value for name, value in body.items() if name != "max_tokens"}}
    assert client.send("POST", "/v1/messages/count_tokens", asked, check=False).status == 400
    assert lenient.send("POST", "/v1/messages/count_tokens", asked, check=False).status == 200


def test_the_places_are_named() -> None:
    for steps, place in (
        ([("call", "a"), ("result", "a"), ("result", "a")], ("messages", 3, "tool_call_id")),
        ([("call", "a"), ("call", "a"), ("result", "a")], ("messages", 1, "tool_calls", 1, "id")),
        ([("call", ""), ("result", "")], ("messages", 1, "tool_calls", 0, "id")),
        ([("result", "a")], ("messages", 1, "tool_call_id")),
        ([("call", "a"), ("user", "x")], ("messages", 1, "tool_calls")),
        ([("call", "a"), ("call", "b"), ("result", "a")], ("messages", 1, "tool_calls")),
    ):
        with open_platform() as platform, pytest.raises(InvalidInput) as refused:
            platform.chat.complete(**chat_body(steps))  # type: ignore[arg-type]
        assert refused.value.problems[0].loc == place


@each_case("body", BLANK, ids=json.dumps)
def test_a_blank_text_of_messages_is_refused_at_its_place_and_may_be_allowed(
    body: Any, client: Client, lenient: Client
) -> None:
    body = {"model": "echo", "max_tokens": 9, **body}
    answer = client.send("POST", "/v1/messages", body, check=False)
    assert (answer.status, "must not be blank" in answer.json["error"]["message"]) == (400, True)
    assert lenient.send("POST", "/v1/messages", body, check=False).status == 200


def test_an_empty_turn_of_the_assistant_at_the_end_and_an_empty_system_are_allowed(client: Client) -> None:
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]
    body = {"model": "echo", "max_tokens": 9, "messages": turns, "system": ""}
    assert client.send("POST", "/v1/messages", body).status == 200


BEGUN: Any = [{"type": "text", "text": "Yes,\n"}]


@each_case(
    ("messages", "place"),
    [
        (messages_body([("call", "a"), ("result", "a"), ("result", "a")])["messages"], "messages[2].content[1]"),
        (messages_body([("call", "a"), ("result", "a"), ("user", "x"), ("result", "a")])["messages"], "[2].content[2]"),
        (messages_body([("call", "a"), ("call", "a"), ("result", "a")])["messages"], "messages[1].content[1].id"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": "Yes, "}], "messages[1].content"),
        ([{"role": "user", "content": "x"}, {"role": "assistant", "content": BEGUN}], "messages[1].content"),
    ],
)
def test_what_the_vendor_of_messages_alone_refuses_is_refused_at_its_place_and_may_be_allowed(
    messages: Any, place: str, client: Client, lenient: Client
) -> None:
    body = {**messages_body([]), "messages": messages}
    answer = client.send("POST", "/v1/messages", body, check=False)
    says = answer.json["error"]["message"]
    assert (answer.status, place in says, "strict_conversations=False" in says) == (400, True, True), says
    assert lenient.send("POST", "/v1/messages", body, check=False).status == 200


# ---- any history ---------------------------------------------------------------------------------------------------

STEPS = st.lists(st.tuples(st.sampled_from(["user", "call", "result"]), st.sampled_from(["a", "b"])), max_size=7)


def is_paired(messages: list[Any]) -> bool:
    """What the vendor's documentation says, read literally."""
    for at, message in enumerate(messages):
        right_after = itertools.takewhile(lambda one: one["role"] == "tool", messages[at + 1 :])
        answered = [one["tool_call_id"] for one in right_after]
        called = [call["id"] for call in message.get("tool_calls", [])]
        if called and sorted(called) != sorted(answered):
            return False
        if len(set(called)) < len(called):
            return False
        if message["role"] == "tool":
            before = next(one for one in reversed(messages[:at]) if one["role"] != "tool")
            if message["tool_call_id"] not in [call["id"] for call in before.get("tool_calls", [])]:
                return False
    return True


@pytest.mark.slow
@examples(200)
@given(STEPS)
def test_a_history_is_taken_if_each_call_has_its_answer_and_each_answer_its_call(steps: list[Step]) -> None:
    body = chat_body(steps)
    with open_platform() as platform:
        try:
            platform.chat.complete(**body)
        except InvalidInput:
            assert not is_paired(body["messages"])
        else:
            assert is_paired(body["messages"])


class Server(EchoBackend):
    """A backend that says nothing of conversations, as one in front of a server of open models."""

    def capabilities(self, model: str) -> Capabilities:
        return attrs.evolve(super().capabilities(model), strict_conversations=False)


def test_other_backends_judge_for_themselves() -> None:
    orphan = Message(Role.TOOL, "found", tool_call_id="a")
    called = Message(Role.ASSISTANT, tool_calls=(ToolCall("b", "look_up", "{}"),))
    with open_platform(backend=Server()) as platform:
        assert platform.chat.complete(model="echo", messages=[Message(Role.USER, "hi"), orphan, called]).text == "hi"
