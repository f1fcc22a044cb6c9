"""Items are another way to write messages: the model gets the same prompt for both."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import Message, Role
from modelyard.errors import InvalidInput
from modelyard.formats.chat.messages import read_messages
from modelyard.parts.responses.formats.items import messages_of, read_items

Json = dict[str, Any]

_text = st.text(max_size=12)
_name = st.sampled_from(["look", "say"])
_part = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, _text),
    st.builds(
        lambda url, detail: {"type": "image_url", "image_url": {"url": url, "detail": detail}},
        st.sampled_from(["data:image/png;base64,AA", "https://host.example/a.png"]),
        st.sampled_from(["auto", "low"]),
    ),
    st.just({"type": "file", "file": {"file_data": "data:text/plain;base64,AA", "filename": "a.txt"}}),
    st.just({"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}),
)
_user = st.builds(
    lambda content: {"role": "user", "content": content}, st.one_of(_text, st.lists(_part, min_size=2, max_size=3))
)
_said = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["system", "developer"]), _text)


@st.composite
def _called(draw: st.DrawFn) -> list[Json]:
    """A turn of the assistant with calls, and what they returned."""
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": draw(_name), "arguments": '{"a": 1}'}}
        for at in range(draw(st.integers(1, 3)))
    ]
    turn = {"role": "assistant", "content": draw(st.none() | _text), "tool_calls": calls}
    return [turn, *({"role": "tool", "tool_call_id": call["id"], "content": draw(_text)} for call in calls)]


_turn = st.one_of(
    st.builds(lambda one: [one], _user),
    st.builds(lambda one: [one], _said),
    st.builds(lambda user, text: [user, {"role": "assistant", "content": text}], _user, _text),
    st.tuples(st.builds(lambda one: [one], _user), _called()).map(lambda pair: [*pair[0], *pair[1]]),
)
conversations = st.lists(_turn, min_size=1, max_size=4).map(lambda turns: [one for turn in turns for one in turn])


def as_items(message: Json, as_answered: bool) -> list[Json]:
    """The items of a chat message; those of the assistant as a model answers them, if so."""
    role, content = message["role"], message["content"]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}]
    items: list[Json] = []
    if content is not None:
        if role == "assistant" and as_answered:
            content = [{"type": "output_text", "text": content, "annotations": [], "logprobs": []}]
            items.append({"type": "message", "id": "msg_x_0", "status": "completed", "role": role, "content": content})
        else:
            written = content if isinstance(content, str) else [as_part(part) for part in content]
            items.append({"role": role, "content": written})
    for call in message.get("tool_calls", ()):
        called = {"call_id": call["id"], **call["function"]}
        items += [{"type": "reasoning", "id": "rs_1", "summary": []}, {"type": "function_call", **called}]
    return items


def as_part(part: Json) -> Json:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if part["type"] == "image_url":
        return {"type": "input_image", "image_url": part["image_url"]["url"], "detail": part["image_url"]["detail"]}
    return {"type": "input_file", **part["file"]} if part["type"] == "file" else part


@given(conversations, st.booleans())
def test_a_conversation_as_items_is_the_conversation_as_messages(conversation: list[Json], as_answered: bool) -> None:
    items = [item for message in conversation for item in as_items(message, as_answered)]
    assert messages_of(read_items(items)) == read_messages(conversation)


def test_a_string_is_a_message_of_the_user() -> None:
    assert messages_of(read_items("hello")) == (Message(Role.USER, "hello"),)
    one_part = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert messages_of(read_items(one_part)) == (Message(Role.USER, "hello"),)


def test_text_after_a_call_belongs_to_the_same_turn() -> None:
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    said = {"role": "assistant", "content": "so"}
    (message,) = messages_of(read_items([call, said, call]))
    assert (message.content, len(message.tool_calls)) == ("so", 2)


def test_reasoning_belongs_to_the_answer_after_it() -> None:
    thoughts = [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": t}]} for t in "ab"]
    call = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
    user, said = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "so"}
    assert [one.reasoning for one in messages_of(read_items([user, *thoughts, said]))] == [None, "ab"]
    (message,) = messages_of(read_items([thoughts[0], call, thoughts[1], said]))
    assert (message.reasoning, message.content) == ("ab", "so")
    assert messages_of(read_items([thoughts[0], user, said])) == messages_of(read_items([user, said]))


@each_case(
    ("items", "place", "words"),
    [
        (5, (), "a string or a list"),
        ([5], (0,), "must be an object"),
        ([{"type": "web_search_call", "id": "x"}], (0, "type"), "hosted tools are not supported"),
        ([{"type": 5}], (0, "type"), "must be 'message'"),
        ([{"role": "tool", "content": "x"}], (0, "role"), "must be 'user'"),
        ([{"type": "function_call_output", "output": "x"}], (0, "call_id"), "required"),
        (
            [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}],
            (0, "content", 0, "file_id"),
            "not sup",
        ),
        ([{"role": "user", "content": [{"type": "input_image"}]}], (0, "content", 0, "image_url"), "required"),
        ([{"role": "user", "content": [{"type": "input_file"}]}], (0, "content", 0, "file_data"), "required"),
        (
            [{"role": "assistant", "content": [{"type": "input_image", "image_url": "data:,"}]}],
            (0, "content", 0, "type"),
            "must be text",
        ),
    ],
)
def test_what_is_not_an_item_is_refused_at_its_place(items: Any, place: tuple[str | int, ...], words: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_items(items)
    problem = refused.value.problems[0]
    assert problem.loc == place
    assert words in problem.msg
