"""A script's answer is held against what the request demands."""

import asyncio
import math
from typing import Any

import openai
import pytest
from hypothesis import given

from each import each_case
from example_counts import examples
from modelyard import ScriptedBackend, open_platform
from modelyard.backends import call, reasoning, say, token
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from modelyard.errors import BackendError, InvalidInput, NoAnswerPrepared
from modelyard.testing import openai_client
from places import MALFORMED, nested, stands_in, within

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "invoice", "schema": {"type": "object", "required": ["total"]}},
}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look_up", "pay")]
PARAMETERS = {"properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
STRICT = [TOOLS[0], {"type": "function", "function": {"name": "pay", "strict": True, "parameters": PARAMETERS}}]
WRITTEN = Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "pay", '{"sum": 3'),))
PAY = {"type": "function", "function": {"name": "pay"}}
OBJECT = {"type": "json_object"}


def named(*pieces: str) -> list[Delta]:
    """Stream a call with its name in pieces."""
    calls = [Delta("", 1, tool_call=ToolCallDelta(0, None if at else "c", piece)) for at, piece in enumerate(pieces)]
    return [*calls, Delta(finish_reason=FinishReason.TOOL_CALLS)]


def ask(answer: Any, unchecked: bool = False, **options: Any) -> str:
    with open_platform(backend=ScriptedBackend([answer], unchecked=unchecked)) as platform:
        return platform.chat.complete(model="scripted", messages="go", **options).text


@each_case(
    ("answer", "options", "said"),
    [
        ('{"sum": 3}', {"response_format": SCHEMA}, "valid under its schema 'invoice'"),
        ("three", {"response_format": SCHEMA}, "wants JSON"),
        ("[]", {"response_format": OBJECT}, "wants a JSON object"),
        ("Paid.", {"tools": TOOLS, "tool_choice": "required"}, "insists on a call of a tool"),
        (call("look_up"), {"tools": TOOLS, "tool_choice": PAY}, "insists on a call of pay"),
        (call("pay"), {"tools": TOOLS, "tool_choice": "none"}, "wants no tool called, and this calls pay"),
        (lambda request: "three", {"response_format": SCHEMA}, "wants JSON"),
        ('{"total": NaN}', {"response_format": SCHEMA}, "wants JSON"),
        ("[" * 5000, {"response_format": SCHEMA}, "wants JSON"),
        (call("look_up"), {"tools": TOOLS, "tool_choice": PAY}, "is a call of look_up with '{}', but"),
        (say(""), {"tools": TOOLS, "tool_choice": PAY}, "answer is empty, but"),
        (call("pay", sum="3"), {"tools": STRICT}, "arguments of 'pay', which is strict, that are JSON that is valid"),
        (call("pay"), {"tools": STRICT, "tool_choice": "required"}, "which is strict"),
        (say(call("look_up"), call("pay", sum=0.5)), {"tools": STRICT}, "which is strict"),
        (WRITTEN, {"tools": STRICT}, "arguments of 'pay', which is strict, that are JSON"),
        (call("refund"), {}, "is a call of 'refund', but the request offers no tools"),
        (call("refund"), {"tools": TOOLS}, "the request offers the tools 'look_up', 'pay'"),
        (call("pa"), {"tools": TOOLS}, "a call of 'pa', but the request offers"),
        (say("Well.", call("pay"), call("refund")), {"tools": TOOLS}, "a call of 'refund'"),
        (call("refund"), {"tools": STRICT}, "a call of 'refund'"),
        (call("refund"), {"tools": TOOLS, "tool_choice": "required"}, "a call of 'refund'"),
        (WRITTEN, {"tools": TOOLS[:1]}, "a call of 'pay'"),
        (lambda request: call("refund"), {"tools": TOOLS}, "a call of 'refund'"),
        (named("pa", "in"), {"tools": TOOLS}, "'pain'"),
        ("ac", {"structured_outputs": {"regex": "ab?"}}, "a text that matches 'ab[?]'"),
        ("two words", {"min_tokens": 3}, "at least 3 tokens"),
        ("two words", {"ignore_eos": True}, "ignores the end of a turn"),
    ],
)
def test_what_a_server_could_not_have_sent_is_refused_unless_it_is_meant(
    answer: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(NoAnswerPrepared, match=said):
        ask(answer, **options)
    ask(answer, unchecked=True, **options)


@each_case(
    ("answer", "options"),
    [
        ({"total": 3}, {"response_format": SCHEMA}),
        (call("look_up"), {"tools": TOOLS, "response_format": SCHEMA}),
        (say('{"tot', finish="length"), {"response_format": SCHEMA}),
        ('{"total": 3}', {"response_format": SCHEMA, "max_tokens": 1}),
        (call("pay"), {"tools": TOOLS, "tool_choice": "required"}),
        (call("pay", sum=3), {"tools": STRICT}),
        (call("look_up", sum="3"), {"tools": STRICT}),
        (call("pay", sum="3"), {"tools": STRICT, "max_tokens": 1}),
        (named("pa", "y"), {"tools": TOOLS}),
        (say("Well.", call("pay"), call("look_up")), {"tools": TOOLS}),
        ("abb", {"structured_outputs": {"regex": "ab+"}}),
        ("three words here", {"min_tokens": 3}),
        ("three words here", {"ignore_eos": True, "max_tokens": 2}),
        (say("two words", finish="length"), {"ignore_eos": True}),
    ],
    ids=str,
)
def test_what_fits_or_is_cut_is_answered(answer: Any, options: dict[str, Any]) -> None:
    ask(answer, **options)


KEYWORDS: list[tuple[dict[str, Any], str]] = [
    ({"propertyNames": {"minLength": 2}}, '{"a": 1}'),
    ({"propertyNames": {"enum": ["a"]}}, '{"b": 1}'),
    ({"patternProperties": {"^n": {"type": "integer"}}}, '{"n": "x"}'),
    ({"not": {"type": "string"}}, '"x"'),
    ({"if": {"required": ["a"]}, "then": {"required": ["b"]}}, '{"a": 1}'),
    ({"dependentRequired": {"a": ["b"]}}, '{"a": 1}'),
    ({"dependentSchemas": {"a": {"required": ["b"]}}}, '{"a": 1}'),
    ({"properties": {"a": True}, "unevaluatedProperties": False}, '{"b": 1}'),
    ({"contains": {"const": 1}}, "[2]"),
    ({"prefixItems": [True], "unevaluatedItems": False}, "[1, 2]"),
    ({"$ref": "#n", "$defs": {"n": {"$anchor": "n", "type": "integer"}}}, '"x"'),
    ({"pattern": "^(?=.*[0-9])[a-z0-9]+$"}, '"abc"'),
]


@each_case(("schema", "answer"), KEYWORDS, ids=lambda value: str(value)[:40])
def test_no_keyword_switches_the_check_off(schema: dict[str, Any], answer: str) -> None:
    beside = {"type": "object", "required": ["a"], **schema, "properties": {"a": {"type": "integer"}}}
    for wanted, said in ((schema, answer), (beside, '"not even an object"'), (beside, '{"a": "x"}')):
        form = {"type": "json_schema", "json_schema": {"name": "shape", "schema": wanted, "strict": True}}
        tools = [{"type": "function", "function": {"name": "f", "strict": True, "parameters": wanted}}]
        calls = Message(Role.ASSISTANT, tool_calls=(ToolCall("c", "f", said),))
        with pytest.raises(NoAnswerPrepared, match="valid under its schema 'shape'"):
            ask(said, response_format=form)
        with pytest.raises(NoAnswerPrepared, match="'f', which is strict"):
            ask(calls, tools=tools)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"dependencies": {}}}}},
         ("response_format", "json_schema", "schema", "dependencies")),
        ({"structured_outputs": {"regex": "\\p{L}"}}, ("structured_outputs", "regex")),
        ({"tools": [{"type": "function",
                     "function": {"name": "f", "strict": True, "parameters": {"dependencies": {}}}}]},
         ("tools", 0, "function", "parameters", "dependencies")),
    ],
)  # fmt: skip
def test_what_is_not_decided_is_refused_at_its_place(options: dict[str, Any], place: tuple[Any, ...]) -> None:
    answer = call("f") if "tools" in options else "{}"
    with pytest.raises(InvalidInput) as refused:
        ask(answer, **options)
    assert refused.value.problems[0].loc == place
    ask(answer, unchecked=True, **options)


# ---- faults of the script --------------------------------------------------------------------------------------------


def buggy(request: CompletionRequest) -> str:
    return str({}["missing"])


FAULTS: list[tuple[Any, str]] = [
    ("half a character \ud83d", "text that is not Unicode"),
    (say(reasoning("\ud83d")), "reasoning that is not Unicode"),
    (call("\ud83d"), "a tool's name that is not Unicode"),
    (say(token("x", -math.inf)), "the logprob -inf"),
    (say(token("x", -1.0, {"y": math.nan})), "the logprob nan"),
    ([Delta("x", -1)], "-1 as its number of tokens"),
    ([Delta("x", 1, index=3)], "choice 3 of 1"),
    (say("x", usage=Usage(1, 1, cached_tokens=2)), "more cached tokens"),
    (buggy, "function failed: KeyError: 'missing'"),
    (3, "cannot answer with 3"),
]


@each_case("stream", [False, True])
@each_case(("answer", "said"), FAULTS, ids=[said for _, said in FAULTS])
def test_a_fault_of_the_script_is_told_and_not_tried_again(answer: Any, said: str, stream: bool) -> None:
    backend = ScriptedBackend([answer, "again"])
    with open_platform(backend=backend) as platform, openai_client(platform) as client:
        messages: Any = [{"role": "user", "content": "go"}]
        more: Any = {"logprobs": True, "top_logprobs": 2, "stream": stream}
        with pytest.raises(openai.APIError) as failed:
            list(client.chat.completions.create(model="scripted", messages=messages, **more))
    assert said in str(failed.value)
    assert len(backend.requests) == 1


def test_what_a_server_may_raise_is_raised() -> None:
    for error in (BackendError("down"), OSError("cut"), ValueError("an answer")):
        with open_platform(backend=ScriptedBackend([error])) as platform, pytest.raises(BackendError):
            platform.chat.complete(model="scripted", messages="go")


def test_an_answer_that_breaks_off_is_passed_on_as_far_as_it_came() -> None:
    script = ScriptedBackend([say('{"tot', BackendError("the cable was cut"))])
    with open_platform(backend=script) as platform:
        stream = platform.chat.stream(model="scripted", messages="go", response_format=SCHEMA)
        assert next(stream).text == '{"tot'
        with pytest.raises(BackendError, match="cable"):
            next(stream)


def test_a_call_that_is_not_offered_is_refused_wherever_it_is_asked_for() -> None:
    script = ScriptedBackend(lambda request: call("refund"))
    with open_platform(backend=script) as platform:
        client = openai_client(platform)
        asked: dict[str, Any] = {
            "model": "scripted",
            "messages": [{"role": "user", "content": "go"}],
            "tools": TOOLS[:1],
        }
        with pytest.raises(openai.BadRequestError, match="a call of 'refund'"):
            client.chat.completions.create(**asked)
        with pytest.raises(openai.BadRequestError, match="a call of 'refund'"):
            client.chat.completions.create(**asked, stream=True)
        with pytest.raises(openai.BadRequestError, match="the request offers no tools"):
            client.responses.create(model="scripted", input="go")
        with pytest.raises(NoAnswerPrepared, match="a call of 'refund'"):
            asyncio.run(platform.chat.acomplete(**asked))


@examples(40)
@given(nested(MALFORMED))
def test_a_malformed_schema_is_refused_where_it_stands_whatever_the_answer(wrong: dict[str, Any]) -> None:
    schema = within(wrong)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with pytest.raises(InvalidInput) as refused:
        ask("{}", response_format=form)
    place = refused.value.problems[0].loc
    assert place[:3] == ("response_format", "json_schema", "schema")
    assert stands_in(schema, ".".join(map(str, place[3:]))), place
