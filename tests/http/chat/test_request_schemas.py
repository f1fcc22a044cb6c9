"""The chat request: every parameter, its bounds, its meaning, and every way to get it wrong."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import (
    ContentPart,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput
from modelyard.formats.chat.bounds import ParsedRequest
from modelyard.formats.chat.plain_fast import read_plain
from modelyard.formats.chat.request import read_request as read_whole

HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}


def read_request(body: Any, *loc: str, details: bool = False) -> ParsedRequest:
    """Read a body as the route does."""
    return read_plain(body, details) or read_whole(body, *loc, details=details)


def read(**members: Any) -> Any:
    return read_request({"model": "m", "messages": [HELLO], **members}, "body")


def wrong(**members: Any) -> dict[str, str]:
    with pytest.raises(InvalidInput) as caught:
        read(**members)
    return {".".join(map(str, problem.loc[1:])): problem.msg for problem in caught.value.problems}


def test_a_bare_request_has_the_defaults_of_the_domain() -> None:
    requested = read()
    assert requested.request.model == "m"
    assert requested.request.messages == (Message(Role.USER, "hello"),)
    assert requested.request.sampling == Sampling()
    assert (requested.request.n, requested.request.max_tokens, requested.request.stop) == (1, None, ())
    assert (requested.with_logprobs, requested.with_ids, requested.with_usage, requested.request.streamed) == (
        False,
        False,
        False,
        False,
    )


def test_every_parameter_has_its_meaning() -> None:
    requested = read(
        temperature=0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        frequency_penalty=-1,
        presence_penalty=1.5,
        repetition_penalty=1.2,
        logit_bias={"7": -100, "8": 1.5},
        seed=-(2**63),
        n=2,
        max_tokens=10,
        stop=["a", "b"],
        logprobs=True,
        top_logprobs=5,
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "look_up"}},
        parallel_tool_calls=False,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": True},
        },
        stream=True,
        stream_options={"include_usage": True},
        return_token_ids=True,
        user="u",
        metadata={"k": "v"},
        store=True,
        service_tier="auto",
        reasoning_effort="low",
        prompt_cache_key="x",
        modalities=["text"],
    )
    request = requested.request
    assert request.sampling == Sampling(0.0, 0.5, 3, 0.1, -1.0, 1.5, 1.2, {7: -100.0, 8: 1.5}, -(2**63))
    assert (request.n, request.max_tokens, request.stop) == (2, 10, ("a", "b"))
    assert (request.logprobs, request.top_logprobs, requested.with_logprobs) == (True, 5, True)
    assert request.tools == (Tool("look_up", parameters={"type": "object"}),)
    assert request.tool_choice == ToolChoice(ToolMode.REQUIRED, "look_up")
    assert request.parallel_tool_calls is False
    assert request.response_format == ResponseFormat(ResponseType.JSON_SCHEMA, "s", {"type": "object"}, True)
    assert (request.streamed, requested.with_usage, requested.with_ids) == (True, True, True)
    assert (request.user, request.store) == ("u", True)
    assert dict(request.metadata) == {"k": "v"}
    assert dict(request.extras) == {"service_tier": "auto", "reasoning_effort": "low", "prompt_cache_key": "x"}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_completion_tokens": 7, "max_tokens": 5}, 7),
        ({"max_completion_tokens": None, "max_tokens": 5}, 5),
    ],
)
def test_max_completion_tokens_wins(members: dict[str, Any], expected: int) -> None:
    assert read(**members).request.max_tokens == expected


@pytest.mark.parametrize("off", [0, -1])
def test_top_k_off_equals_no_top_k(off: int) -> None:
    assert read(top_k=off).request.sampling.top_k is None


@pytest.mark.parametrize(
    ("stop", "meaning"), [("x", ("x",)), (["x"], ("x",)), (["a", "b", "c", "d"], ("a", "b", "c", "d"))]
)
def test_stop_is_one_string_or_a_few(stop: object, meaning: tuple[str, ...]) -> None:
    assert read(stop=stop).request.stop == meaning


def test_null_is_absent_for_every_optional_parameter() -> None:
    optional = [
        *("temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty"),
        *(
            "logit_bias",
            "seed",
            "n",
            "max_tokens",
            "max_completion_tokens",
            "stop",
            "logprobs",
            "top_logprobs",
            "tools",
        ),
        *("tool_choice", "parallel_tool_calls", "response_format", "stream", "stream_options", "modalities", "user"),
        *("metadata", "store", "service_tier", "reasoning_effort", "verbosity", "audio", "prediction", "functions"),
    ]
    assert read(**dict.fromkeys(optional)) == read()


def test_all_kinds_of_messages_and_parts() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}
    requested = read(
        messages=[
            {"role": "system", "content": "s"},
            {"role": "developer", "content": [{"type": "text", "text": "d"}], "name": "n"},
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "t"},
                    {"type": "image_url", "image_url": {"url": "data:,x"}},
                    {"type": "input_audio", "input_audio": {"data": "x"}},
                ],
            },
            {"role": "assistant", "content": None, "tool_calls": [call], "audio": None},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "r", "tool_call_id": "c1"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        ]
    )
    assert requested.request.messages == (
        Message(Role.SYSTEM, "s"),
        Message(Role.DEVELOPER, (ContentPart("text", "d"),), "n"),
        Message(
            Role.USER,
            (
                ContentPart("text", "t"),
                ContentPart("image_url", data={"url": "data:,x", "detail": "auto"}),
                ContentPart("input_audio", data={"data": "x"}),
            ),
        ),
        Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c1", "look_up", "{}"),)),
        Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c1", "look_up", "{}"),)),
        Message(Role.TOOL, "r", tool_call_id="c1"),
        Message(Role.ASSISTANT, (ContentPart("text", "no"),)),
    )


@each_case(
    ("message", "place"),
    [
        ("hello", "messages.0"),
        ({"content": "x"}, "messages.0.role"),
        ({"role": "function", "content": "x"}, "messages.0.role"),
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": None}, "messages.0.content"),
        ({"role": "user", "content": 5}, "messages.0.content"),
        ({"role": "user", "content": ["x"]}, "messages.0.content.0"),
        ({"role": "user", "content": [{"type": "hologram"}]}, "messages.0.content.0.type"),
        ({"role": "system", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "messages.0.content.0"),
        ({"role": "assistant"}, "messages.0.content"),
        ({"role": "assistant", "content": None, "tool_calls": []}, "messages.0.content"),
        ({"role": "tool", "content": "x"}, "messages.0.tool_call_id"),
        (
            {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f"}}]},
            "messages.0.tool_calls.0.function.arguments",
        ),
        ({"role": ["user"], "content": "x"}, "messages.0.role"),
    ],
)
def test_a_message_at_fault_is_named_at_its_place(message: object, place: str) -> None:
    assert all(named.startswith(place) for named in wrong(messages=[message]))


@each_case(
    ("member", "value"),
    [
        ("model", 5),
        ("model", ""),
        ("messages", []),
        ("messages", "hello"),
        ("temperature", 2.1),
        ("temperature", -0.1),
        ("temperature", "1"),
        ("temperature", True),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("top_k", 1.5),
        ("min_p", 1.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("repetition_penalty", 0),
        ("logit_bias", {"7": 101}),
        ("logit_bias", {"seven": 1}),
        ("logit_bias", [1]),
        ("seed", 1.5),
        ("seed", "1"),
        ("n", 0),
        ("n", 129),
        ("n", True),
        ("max_tokens", 0),
        ("max_completion_tokens", -1),
        ("stop", ""),
        ("stop", []),
        ("stop", ["a", ""]),
        ("stop", ["a"] * 5),
        ("stop", 5),
        ("logprobs", 1),
        ("top_logprobs", 21),
        ("top_logprobs", 3),
        ("tools", []),
        ("tools", [{"type": "web_search"}]),
        ("tools", [{"type": "function", "function": {"name": "not a name"}}]),
        ("tool_choice", "perhaps"),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "nobody"}}),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", "json"),
        ("stream", "yes"),
        ("stream_options", {"include_usage": True}),
        ("modalities", ["audio"]),
        ("user", 5),
        ("metadata", {"k": 1}),
        ("metadata", {"k" * 65: "v"}),
        ("metadata", {str(number): "v" for number in range(17)}),
        ("metadata", {"k": "v" * 513}),
        ("store", "no"),
        ("audio", {"voice": "x"}),
        ("prediction", "a guess"),
        ("min_tokens", -1),
        ("ignore_eos", 1),
        ("stop_token_ids", ["a"]),
        ("guided_choice", []),
        ("guided_regex", 5),
        ("structured_outputs", "json"),
        ("web_search_options", {}),
        ("functions", []),
        ("function_call", "auto"),
    ],
)
def test_a_parameter_at_fault_is_refused_by_its_name(member: str, value: object) -> None:
    assert {named.partition(".")[0] for named in wrong(**{member: value})} == {member}


def test_every_fault_is_named_at_once() -> None:
    assert set(wrong(temperature=9, n=0, stream="yes", messages=[{"role": "x"}], top_logprobs=True)) == {
        "temperature",
        "n",
        "stream",
        "messages.0.role",
        "top_logprobs",
    }


def test_unknown_fields_are_refused_with_the_nearest_known_ones() -> None:
    assert wrong(banana=1) == {"banana": "is not a parameter of a chat completion"}
    near = "is not a parameter of a chat completion; did you mean 'max_tokens' or 'min_tokens'?"
    assert wrong(max_token=1) == {"max_token": near}


@each_case("body", [None, [], "x", 1])
def test_a_body_that_is_not_an_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_request(body, "body")
    assert caught.value.problems[0].loc == ("body",)


def test_the_training_interface_returns_logprobs_unless_declined_and_token_ids_always() -> None:
    body = {"model": "m", "messages": [HELLO]}
    requested = read_request(body, details=True)
    assert (requested.with_logprobs, requested.with_ids, requested.request.logprobs) == (True, True, False)
    declined = read_request({**body, "logprobs": False}, details=True)
    assert (declined.with_logprobs, declined.with_ids) == (False, True)
    assert read_request({**body, "top_logprobs": 2}, details=True).request.top_logprobs == 2


_ROLES = st.sampled_from(["system", "developer", "user", "assistant", "tool", "nobody", 1])
_ODD_MESSAGES = st.sampled_from([{}, {"role": "user"}, {**HELLO, "name": "x"}, {**HELLO, "content": 1}, "hello", None])
_MESSAGES = st.fixed_dictionaries({"role": _ROLES, "content": st.text(max_size=5)})
_BODIES = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["m", "m", "m", "m" * 1024, "m" * 1025, "", 1, None]),
        "messages": st.lists(_MESSAGES, max_size=2) | st.lists(_MESSAGES | _ODD_MESSAGES, max_size=3) | st.none(),
    },
    optional={
        "stream": st.sampled_from([False, True, 1, "yes", None]),
        "unknown": st.none(),
        "temperature": st.sampled_from([0, 1, 0.5, 2.5, True, "1", None]),
        "top_k": st.sampled_from([-1, 0, 3, 2.0, -2, None]),
        "max_tokens": st.sampled_from([5, 0, None]),
        "max_completion_tokens": st.sampled_from([7, 0, 1.0, None]),
        "seed": st.sampled_from([7, 1.5, None]),
        "n": st.sampled_from([2, 129, None]),
    },
)


def outcome(body: object, training: bool) -> object:
    try:
        return read_request(body, "body", details=training)
    except InvalidInput as error:
        return error.problems


@given(_BODIES, st.booleans())
@example({"model": "", "messages": [HELLO]}, False)
@example({"model": "m" * 1025, "messages": [HELLO]}, False)
@example({"model": "m", "messages": []}, False)
@example({"model": "m", "messages": [{**HELLO, "role": "tool"}]}, False)
@example({"model": "m", "messages": [HELLO], "top_k": 0, "max_tokens": 5, "max_completion_tokens": 7}, False)
@example({"model": "m", "messages": [HELLO], "max_tokens": 5, "max_completion_tokens": None}, False)
@example({"model": "m", "messages": [HELLO], "temperature": 1}, False)
@example({"model": "m", "messages": [HELLO], "temperature": True}, False)
@example({"model": "m", "messages": [HELLO], "stream": 1}, False)
@example({"model": "m", "messages": [HELLO], "stream": None}, True)
def test_a_plain_request_is_read_as_one_with_an_option_that_is_null(body: dict[str, Any], training: bool) -> None:
    assert outcome(body, training) == outcome({**body, "user": None}, training)


@each_case("streamed", [False, True])
@each_case("length", [1, 1024])
def test_a_plain_request_may_have_any_model_and_number_of_messages(streamed: bool, length: int) -> None:
    body = {"model": "m" * length, "messages": [HELLO] * 3, "stream": streamed}
    requested = read_request(body)
    assert requested == read_request({**body, "user": None})
    assert (requested.request.streamed, len(requested.request.messages)) == (streamed, 3)
