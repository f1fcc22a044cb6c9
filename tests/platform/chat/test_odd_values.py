"""Requests of the host's own types are what the json module writes for them, or refused at their place."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.shared.example_counts import examples
from tests.shared.odd_values import odd_values

from each import each_case
from modelyard import Message, Platform, Role, open_platform
from modelyard.domain.completion import ContentPart
from modelyard.errors import InvalidInput

TEXT = {"type": "text", "text": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HELLO = {"role": "user", "content": "hello"}
MEMBERS = (
    *("messages", "temperature", "max_tokens", "stop", "tools", "tool_choice", "response_format", "metadata", "user"),
    *("logit_bias", "seed", "n", "logprobs", "reasoning_effort", "prediction", "structured_outputs", "nvext"),
)
odd = odd_values | st.sampled_from([(), (1, 2), ("a",), (TEXT,), (HELLO,), (CALL,), (None,), ((),)])


@pytest.fixture(scope="module")
def opened() -> Iterator[Platform]:
    with open_platform() as platform:
        yield platform


def asked(ask: Callable[..., Any], **request: Any) -> Any:
    """Ask, or be refused at a place."""
    try:
        return ask(model="echo", **request)
    except InvalidInput as wrong:
        assert wrong.problems[0].loc
        return None


@pytest.mark.slow
@pytest.mark.parametrize("name", MEMBERS)
@examples(40)
@given(value=odd)
def test_a_member_is_its_json_or_refused_at_its_place(opened: Platform, name: str, value: Any) -> None:
    asked(opened.chat.complete, **{"messages": [HELLO], name: value})


@pytest.mark.slow
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
@examples(40)
@given(value=odd, name=st.sampled_from(["content", "name", "tool_calls", "tool_call_id", "reasoning_content"]))
def test_what_a_message_has_is_its_json_or_refused_at_its_place(
    opened: Platform, role: str, name: str, value: Any
) -> None:
    message = {"role": role, "content": "hi", name: value}
    for messages in ([message], [HELLO, {"role": "assistant", "tool_calls": [CALL]}, message, HELLO]):
        asked(opened.chat.complete, messages=messages)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["input", "instructions", "tools", "text", "reasoning", "metadata", "include"])
@examples(40)
@given(value=odd)
def test_a_member_of_a_response_is_its_json_or_refused_at_its_place(opened: Platform, name: str, value: Any) -> None:
    asked(opened.compat.responses.create, **{"input": "hi", name: value})


@pytest.mark.slow
@examples(60)
@given(value=odd)
def test_a_prompt_is_its_json_or_refused_at_its_place(opened: Platform, value: Any) -> None:
    asked(opened.compat.completions.complete, prompt=value)
    asked(opened.embeddings.create, input=value)


@each_case("content", [(TEXT, TEXT), ()])
def test_a_tuple_is_a_list(opened: Platform, content: tuple[Any, ...]) -> None:
    for parts in (content, [*content]):
        told = opened.chat.complete(model="echo", messages=[{"role": "user", "content": parts}])
        assert told.text == "hi" * len(content)


@pytest.mark.slow
@examples(40)
@given(value=odd)
def test_what_a_message_of_the_hosts_holds_is_its_json_or_refused_at_its_place(opened: Platform, value: Any) -> None:
    asked(opened.chat.complete, messages=[Message(Role.USER, value)])
    asked(opened.chat.complete, messages=[Message(Role.USER, (value,))])
    asked(opened.chat.complete, messages=[Message(Role.USER, "hi"), Message(Role.ASSISTANT, None, tool_calls=(value,))])


def test_a_message_of_the_hosts_may_hold_json(opened: Platform) -> None:
    content: Any = (TEXT, ContentPart("text", " there"))
    assert opened.chat.complete(model="echo", messages=[Message(Role.USER, content)]).text == "hi there"
