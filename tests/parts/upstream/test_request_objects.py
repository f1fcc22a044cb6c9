"""A request as it goes to a server."""

import attrs
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import (
    SAMPLING_PARAMETERS,
    CompletionRequest,
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
from modelyard.formats.chat.request import read_request
from modelyard.formats.json import dumps, loads
from modelyard.parts.request_objects import request_object

HELLO = (Message(Role.USER, "hello"),)
TOOL = Tool("look_up", "looks it up", {"type": "object"}, strict=True)


def test_a_plain_request_says_what_the_server_knows_and_nothing_more() -> None:
    requested = CompletionRequest("m", HELLO, max_tokens=5)
    assert request_object(requested, "far/m", 5, {"temperature", "seed"}) == {
        "model": "far/m",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": False,
        "temperature": 1.0,
        "max_tokens": 5,
    }


def test_a_stream_asks_for_its_usage() -> None:
    body = request_object(CompletionRequest("m", HELLO, streamed=True), "m", None, ())
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


def test_no_default_of_the_servers_takes_the_place_of_a_parameter_that_it_knows() -> None:
    body = request_object(CompletionRequest("m", HELLO), "m", None, SAMPLING_PARAMETERS)
    assert {name: body[name] for name in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")} == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
    }
    assert not body.keys() & {"seed", "logit_bias"}


def test_metadata_of_this_platform_is_not_sent_to_the_server() -> None:
    requested = CompletionRequest("m", HELLO, metadata={"case": "7"}, store=True, user="u-1")
    body = request_object(requested, "m", None, ())
    assert body["user"] == "u-1"
    assert not body.keys() & {"metadata", "store"}


def test_a_developer_message_is_rendered_as_a_system_message() -> None:
    requested = CompletionRequest("m", (Message(Role.DEVELOPER, "be brief"),))
    assert request_object(requested, "m", None, ())["messages"] == [{"role": "system", "content": "be brief"}]


def test_extras_are_passed_on_and_overrule_nothing() -> None:
    requested = CompletionRequest("m", HELLO, extras={"reasoning_effort": "low", "model": "another"})
    body = request_object(requested, "m", None, ())
    assert (body["reasoning_effort"], body["model"]) == ("low", "m")


def test_reasoning_is_sent_under_both_names_where_it_is_read() -> None:
    requested = CompletionRequest("m", (*HELLO, Message(Role.ASSISTANT, "so", reasoning="hm"), *HELLO))
    (_, bare, _), (_, sent, _) = (
        request_object(requested, "m", None, (), reads)["messages"] for reads in (False, True)
    )
    assert bare == {"role": "assistant", "content": "so"}
    assert sent == bare | {"reasoning": "hm", "reasoning_content": "hm"}


def test_tools_are_chosen_as_requested() -> None:
    def choice(**fields: object) -> dict[str, object]:
        body = request_object(attrs.evolve(CompletionRequest("m", HELLO, tools=(TOOL,)), **fields), "m", None, ())
        return {name: body.get(name) for name in ("tool_choice", "parallel_tool_calls")}

    assert choice() == {"tool_choice": None, "parallel_tool_calls": None}
    assert choice(tool_choice=ToolChoice(ToolMode.NONE))["tool_choice"] == "none"
    assert choice(tool_choice=ToolChoice(ToolMode.REQUIRED))["tool_choice"] == "required"
    named = choice(tool_choice=ToolChoice(ToolMode.REQUIRED, "look_up"), parallel_tool_calls=False)
    assert named == {
        "tool_choice": {"type": "function", "function": {"name": "look_up"}},
        "parallel_tool_calls": False,
    }


def test_parts_have_the_formats_shape_from_wherever_they_came() -> None:
    by_wire = ContentPart("image_url", data={"url": "data:,", "detail": "auto"})
    by_hand = ContentPart("image_url", data={"image_url": {"url": "data:,"}})
    message = Message(Role.USER, (ContentPart("text", "look"), by_wire, by_hand))
    (reported,) = request_object(CompletionRequest("m", (message,)), "m", None, ())["messages"]
    assert reported["content"] == [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": "data:,", "detail": "auto"}},
        {"type": "image_url", "image_url": {"url": "data:,"}},
    ]


messages = st.lists(
    st.one_of(
        st.builds(Message, st.sampled_from([Role.SYSTEM, Role.USER]), st.text(), st.none() | st.just("ann")),
        st.builds(Message, st.just(Role.ASSISTANT), st.text()),
        st.just(Message(Role.ASSISTANT, None, tool_calls=(ToolCall("c1", "look_up", '{"a": 1}'),))),
        st.just(Message(Role.TOOL, "found", tool_call_id="c1")),
        st.just(Message(Role.USER, (ContentPart("text", "a"), ContentPart("text", "b")))),
    ),
    min_size=1,
    max_size=4,
).map(tuple)
samplings = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_p=st.floats(0.01, 1),
    top_k=st.none() | st.integers(1, 100),
    min_p=st.floats(0, 1),
    frequency_penalty=st.floats(-2, 2),
    presence_penalty=st.floats(-2, 2),
    repetition_penalty=st.floats(0.1, 2),
    logit_bias=st.dictionaries(st.integers(0, 1000), st.floats(-100, 100), max_size=2),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
)
formats = st.sampled_from(
    [
        ResponseFormat(),
        ResponseFormat(ResponseType.JSON_OBJECT),
        ResponseFormat(ResponseType.JSON_SCHEMA, "finding", {"type": "object"}, strict=True),
    ]
)
requests = st.builds(
    CompletionRequest,
    st.just("m"),
    messages,
    samplings,
    n=st.integers(1, 4),
    max_tokens=st.none() | st.integers(1, 99),
    stop=st.lists(st.text(min_size=1), max_size=4).map(tuple),
    logprobs=st.just(True),
    top_logprobs=st.integers(0, 20),
    tools=st.sampled_from([(), (TOOL,)]),
    parallel_tool_calls=st.just(True),
    response_format=formats,
    return_token_ids=st.booleans(),
    streamed=st.booleans(),
    user=st.none() | st.just("u-1"),
    extras=st.sampled_from([{}, {"reasoning_effort": "low"}]),
)


@given(requests)
def test_a_server_of_ours_understands_what_was_meant(requested: CompletionRequest) -> None:
    body = loads(dumps(request_object(requested, "m", requested.max_tokens, SAMPLING_PARAMETERS)))
    assert read_request(body).request == requested
