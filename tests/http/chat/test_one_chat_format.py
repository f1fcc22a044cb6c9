"""Python and HTTP are two callers of one chat format: they accept the same, and refuse in the same words."""

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

import attrs
import pytest
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard import Message, Platform, Role, Tool, open_platform
from modelyard.backends.echo import EchoBackend
from modelyard.domain.completion import (
    CompletionRequest,
    ContentPart,
    Delta,
    ResponseFormat,
    ResponseType,
    ToolCall,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput, ModelyardError
from modelyard.http.endpoint import Endpoint
from modelyard.http.error_responses import sentence
from modelyard.http.message import Request
from modelyard.protocols import ServedModel

HELLO = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True}}


@pytest.fixture(scope="module")
def platform() -> Platform:
    return open_platform(backend=EchoBackend())


@pytest.fixture(scope="module")
def key(platform: Platform) -> str:
    return platform.keys.create("local").secret


Outcome = tuple[str, str]


def in_process(platform: Platform, request: Mapping[str, Any]) -> Outcome:
    options = {name: value for name, value in request.items() if name != "stream"}
    try:
        if request.get("stream"):
            with platform.chat.stream(**options) as stream:
                return "answered", "".join(delta.text for delta in stream if delta.index == 0)
        return "answered", platform.chat.complete(**options).text
    except InvalidInput as error:
        return "refused", sentence(error.problems)
    except ModelyardError as error:
        return "refused", str(error)


def over_http(platform: Platform, key: str, request: Mapping[str, Any]) -> Outcome:
    headers = [("authorization", f"Bearer {key}"), ("content-type", "application/json")]
    body = iter([json.dumps(request).encode()])
    response = Endpoint(platform).handle(Request("POST", "/inference/v1/chat/completions", "", headers, body))
    raw = response.body if isinstance(response.body, bytes) else b"".join(response.body)
    if response.status != 200:
        return "refused", json.loads(raw)["error"]["message"]
    if not request.get("stream"):
        return "answered", json.loads(raw)["choices"][0]["message"]["content"] or ""
    events = [json.loads(line[6:]) for line in raw.split(b"\n\n") if line not in (b"", b"data: [DONE]")]
    chosen = [choice for event in events for choice in event["choices"] if choice["index"] == 0]
    return "answered", "".join(choice["delta"].get("content") or "" for choice in chosen)


# ---- requests, right and wrong -------------------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 3) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT | st.sampled_from(["type", "name"]), inner),
    max_leaves=5,
)
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "text"},
        {"type": "refusal", "refusal": "no"},
        {"type": "image_url", "image_url": {"url": "data:,x"}},
        {"type": "image_url", "image_url": {"url": "data:,x", "detail": "huge"}},
        {"type": "input_audio", "input_audio": {"data": "x"}},
        {"type": "hologram"},
        {},
        "a",
    ]
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "nobody"])},
    optional={
        "content": st.none() | TEXT | st.lists(PARTS, max_size=2) | st.just(5),
        "name": st.sampled_from(["n", "n" * 1025, 1, None]),
        "tool_calls": st.sampled_from([None, [], [CALL], [{**CALL, "id": 1}], [{"function": {}}], "call"]),
        "tool_call_id": st.sampled_from(["c1", 1, None]),
        "refusal": st.none(),
    },
)
VALUES: Mapping[str, list[Any]] = {
    "temperature": [0, 0.5, 2, 2.1, -1, "1", True, None],
    "top_p": [1, 0.5, 0, 1.5, None],
    "top_k": [-1, 0, 3, -2, 1.5, 2**31 + 1],
    "min_p": [0, 1, 1.1],
    "frequency_penalty": [2, -2.5],
    "presence_penalty": [-2, 2.5],
    "repetition_penalty": [1, 0, 100.5],
    "logit_bias": [{}, {"7": 1}, {"7": 101}, {"x": 1}, {"7": "1"}, [], None],
    "seed": [0, -(2**63), 2**63 - 1, 1.0, "a", None],
    "n": [1, 2, 0, 129, True],
    "max_tokens": [1, 5, 0, 2**31 + 1, 1.5],
    "max_completion_tokens": [1, 0, None],
    "stop": ["l", ["l", "x"], "", [], [""], ["a"] * 5, 5],
    "logprobs": [True, False, 1],
    "top_logprobs": [0, 2, 21],
    "return_token_ids": [True, "yes"],
    "tools": [[TOOL], [TOOL, {**TOOL, "type": "search"}], [], [{"type": "function", "function": {"name": "a b"}}]],
    "tool_choice": ["none", "auto", "required", "perhaps", {"type": "function", "function": {"name": "look_up"}}, {}],
    "parallel_tool_calls": [False, 0],
    "response_format": [{"type": "text"}, {"type": "json_object"}, SCHEMA, {"type": "json_schema"}, {}, "json"],
    "modalities": [["text"], ["audio"], "text"],
    "user": ["u", "u" * 1025, 5],
    "metadata": [{}, {"k": "v"}, {"k": 1}, {"k" * 65: "v"}, {str(number): "v" for number in range(17)}],
    "store": [True, "no"],
    "service_tier": ["auto", 1],
    "reasoning_effort": ["low", "x" * 1025],
    "min_tokens": [0, 2, -1, 1.5],
    "ignore_eos": [True, 0],
    "stop_token_ids": [[7], ["7"], 7],
    "structured_outputs": [{"choice": ["a"]}, {"regex": "b"}, {"json": {}}, {"regex": "b", "json": {}}, {}, "json"],
    "guided_json": [{"type": "boolean"}, '{"type": "null"}', "[", "1", 5],
    "guided_choice": [["b", "a"], [], [1]],
    "guided_regex": ["a{2}", "", 5],
    "prediction": [{}, {"type": "content", "content": "x"}, "x"],
    "audio": [None, {"voice": "x"}],
    "functions": [[]],
    "novelty": [1, None],
    "stream": [True, False],
}
PARAMETERS = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from(VALUES[name]) | (st.nothing() if name == "stream" else JSON))
)
REQUESTS = st.builds(
    lambda model, messages, parameters: {"model": model, "messages": messages, **dict(parameters)},
    st.sampled_from(["echo"] * 8 + ["", "m" * 1025, "elsewhere", 5]),
    st.lists(st.just(HELLO), min_size=1, max_size=2) | st.lists(MESSAGES, max_size=3) | st.sampled_from([None, 5, [5]]),
    st.lists(PARAMETERS, max_size=4),
)


def requested(**parameters: Any) -> dict[str, Any]:
    return {"model": "echo", "messages": [HELLO], **parameters}


@pytest.mark.slow
@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(REQUESTS)
@example(requested(repetition_penalty=500.0))
@example(requested(max_tokens=2**40))
@example(requested(metadata={str(number): "x" for number in range(20)}, store=True))
@example(requested(user="x" * 5000))
@example(requested(seed="a"))
@example(requested(stop=[]))
@example(requested(temperature=3))
@example(requested(tools=[]))
@example(requested(logit_bias={"999999999999": 1}))
@example(requested(top_logprobs=3))
@example(requested(stop=5))
@example(requested(novelty=1))
def test_what_one_accepts_the_other_accepts_and_both_refuse_in_the_same_words(
    platform: Platform, key: str, request_: dict[str, Any]
) -> None:
    assert in_process(platform, request_) == over_http(platform, key, request_)


@pytest.mark.parametrize("parameter", ["temperature", "seed", "user", "metadata", "response_format", "messages"])
@pytest.mark.parametrize(
    "value", [float("nan"), 2**64, "\ud800", {"a": "\udfff"}, [{"role": "user", "content": "\ud800"}]]
)
def test_what_json_cannot_carry_is_refused_by_both(platform: Platform, key: str, parameter: str, value: object) -> None:
    request = requested() | {parameter: value}
    here, there = in_process(platform, request), over_http(platform, key, request)
    assert (here[0], there[0]) == ("refused", "refused")
    if isinstance(value, int | float):
        assert here[1] == there[1]
        return
    assert here[1].startswith(f"{parameter}: ")  # over HTTP nothing of such a body is read, so it has no place
    assert here[1].removeprefix(f"{parameter}: ") == there[1].removeprefix("the body ")


class Kept(EchoBackend):
    """An echo that keeps the requests that it is given, without the seeds that the platform draws."""

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[CompletionRequest] = []

    def stream(self, request: CompletionRequest, model: ServedModel) -> Iterator[Delta]:
        self.requests.append(attrs.evolve(request, sampling=attrs.evolve(request.sampling, seed=None)))
        return super().stream(request, model)


VALUED: Mapping[str, Any] = {
    "model": "echo",
    "messages": (
        {"role": Role.SYSTEM, "content": "be brief"},
        Message(Role.USER, (ContentPart("text", "look"), ContentPart("text", "here")), name="ann"),
        Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c1", "look_up", "{}"),)),
        Message(Role.TOOL, "found", tool_call_id="c1"),
        Message(Role.USER, "and?"),
    ),
    "tools": (Tool("look_up", parameters=MappingProxyType({"type": "object"})),),
    "tool_choice": ToolChoice(ToolMode.REQUIRED, "look_up"),
    "response_format": ResponseFormat(ResponseType.JSON_SCHEMA, "s", {"type": "object"}, strict=True),
    "logit_bias": {7: 1},
    "stop": ("x",),
    "max_tokens": 50,
}
WRITTEN: Mapping[str, Any] = {
    "model": "echo",
    "messages": [
        {"role": "system", "content": "be brief"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "text", "text": "here"}],
            "name": "ann",
        },
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "content": "found", "tool_call_id": "c1"},
        {"role": "user", "content": "and?"},
    ],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "look_up"}},
    "response_format": SCHEMA,
    "logit_bias": {"7": 1.0},
    "stop": "x",
    "max_completion_tokens": 50,
}


def test_a_value_means_what_its_json_means() -> None:
    backend = Kept()
    with open_platform(backend=backend) as kept:
        kept.chat.complete(**VALUED)
        kept.chat.complete(**WRITTEN)
        kept.chat.complete(model="echo", messages="hello")
        kept.chat.complete(model="echo", messages=(Message(Role.USER, "hello"),))
        kept.chat.complete(model="echo", messages=[HELLO], temperature=None, metadata=None)
    valued, written, *plain = backend.requests
    assert valued == written
    assert plain[0] == plain[1] == plain[2]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"stream": True}, "stream: is not a parameter here"),
        ({"stream_options": {}}, "stream_options: is not a parameter here"),
        ({"return_tokens_as_token_ids": True}, "return_tokens_as_token_ids: is not a parameter here"),
        ({"metadata": {1, 2}}, "metadata: cannot be written as JSON: set is not a JSON value"),
        ({"tempratur": 1}, "tempratur: is not a parameter of a chat completion"),
    ],
)
def test_what_only_python_can_get_wrong_is_refused_by_name(platform: Platform, options: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        platform.chat.complete(model="echo", messages="hi", **options)
