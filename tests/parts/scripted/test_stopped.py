"""An answer of a script ends at a token of `stop_token_ids`, as one of a server does."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard import EchoBackend, ScriptedBackend, open_platform
from modelyard.backends import say, token
from modelyard.backends.echo import token_id
from modelyard.domain.completion import Choice, Completion, Delta, FinishReason, Message, Role
from modelyard.errors import NoAnswerPrepared
from modelyard.protocols import Backend


def choice(answer: Any, *stops: int, **options: Any) -> Choice:
    with open_platform(backend=ScriptedBackend([answer], unchecked=options.pop("unchecked", False))) as platform:
        return platform.chat.complete(model="scripted", messages="go", stop_token_ids=list(stops), **options).choices[0]


@each_case(
    ("answer", "text"),
    [
        ("one two three", "one two"),
        (Message(Role.ASSISTANT, "one two three"), "one two"),
        (say("one", " two", " three"), "one two"),
        (say("one two three", finish="length"), "one two"),
        (say("one two", ConnectionError("broken off")), "one two"),
        (say(token("one", -1.0), token(" two", -2.0), token(" three", -3.0)), "one two"),
        ([Delta("one two three", 3, finish_reason=FinishReason.STOP)], "one two"),
        (lambda request: "one two three", "one two"),
        ("one three", "one three"),
        ("two one", "two one"),
    ],
)
@each_case("details", [{}, {"logprobs": True}, {"return_token_ids": True}])
def test_ends_at_a_word(answer: Any, text: str, details: dict[str, Any]) -> None:
    found = choice(answer, 7, token_id(" two"), **details)
    assert (found.message.text, found.finish_reason) == (text, FinishReason.STOP)


def test_ids_of_the_script_come_before_those_of_its_words() -> None:
    deltas = [Delta("one", 1, token_ids=(11,)), Delta(" two", 1, token_ids=(12,)), Delta(" three", 1, token_ids=(13,))]
    ended = [*deltas, Delta(finish_reason=FinishReason.STOP)]
    assert choice(ended, 12, return_token_ids=True).token_ids == (11, 12)
    assert choice(ended, token_id(" two")).message.text == "one two three"
    assert choice([Delta("uneven", 2, token_ids=(1, 2), finish_reason=FinishReason.STOP)], 1).message.text == "uneven"


def test_each_choice_ends_by_itself() -> None:
    script = ScriptedBackend(["one two three", "one three", "one two"])
    with open_platform(backend=script) as platform:
        made = platform.chat.complete(model="scripted", messages="go", n=3, stop_token_ids=[token_id(" two")])
    assert [one.message.text for one in made.choices] == ["one two", "one three", "one two"]


def test_what_is_cut_is_held_against_the_schema() -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    with pytest.raises(NoAnswerPrepared, match="wants JSON"):
        choice('{"a": 1}', token_id('{"a":'), response_format=wanted)
    assert choice('{"a": 1}', token_id('{"a":'), response_format=wanted, unchecked=True).message.text == '{"a":'


def answered(backend: Backend, streamed: bool, **options: Any) -> Completion:
    with open_platform(backend=backend) as platform:
        if not streamed:
            return platform.chat.complete(model="m", **options)
        with platform.chat.stream(model="m", **options) as stream:
            assert list(stream)
            assert stream.completion is not None
            return stream.completion


@given(st.text("ab \n", max_size=12), st.sampled_from(["a", " b", "ab", " ", "\n"]), st.booleans())
def test_ends_where_an_echo_ends(text: str, stop: str, streamed: bool) -> None:
    options: dict[str, Any] = {"messages": f"x{text}", "stop_token_ids": [token_id(stop)]}
    script = ScriptedBackend([f"x{text}"], models=["m"])
    echoed, said = answered(EchoBackend(["m"]), streamed, **options), answered(script, streamed, **options)
    assert (said.choices, said.usage) == (echoed.choices, echoed.usage)
