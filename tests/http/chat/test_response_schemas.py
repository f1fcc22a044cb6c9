"""Answers: whole or in chunks, they say the same, in the order that clients rely on."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import (
    Choice,
    Completion,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from modelyard.formats.chat.response import completion_json
from modelyard.formats.chat.stream import DONE, Chunks

ENTRY = TokenLogprob("hi", -0.5, (104, 105), (TokenLogprob("ho", -1.5, (104, 111)),), 7)
END = TokenLogprob("", -0.1, ())


def reported(raw: bytes) -> list[Any]:
    events = raw.split(b"\n\n")
    assert events.pop() == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    return [json.loads(event[6:]) for event in events]


def choice(**more: Any) -> Choice:
    return Choice(0, Message(Role.ASSISTANT, "hi"), FinishReason.STOP, **more)


def body(*choices: Choice, with_logprobs: bool = True, with_ids: bool = False, usage: Usage | None = None) -> Any:
    raw = completion_json(Completion("c", 12, "m", choices, usage or Usage(3, 2)), with_logprobs, with_ids)
    return json.loads(raw)


def test_a_whole_answer_is_that_of_the_specification() -> None:
    assert body(choice()) == {
        "id": "c",
        "object": "chat.completion",
        "created": 12,
        "model": "m",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop", "logprobs": None}
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
    }


def test_cached_tokens_are_reported_where_there_are_any() -> None:
    assert body(choice(), usage=Usage(3, 2, cached_tokens=1))["usage"]["prompt_tokens_details"] == {"cached_tokens": 1}


def test_logprobs_have_one_entry_per_token_with_bytes_and_alternatives() -> None:
    (shown,) = body(choice(logprobs=(ENTRY, END)))["choices"]
    assert shown["logprobs"]["content"] == [
        {
            "token": "hi",
            "logprob": -0.5,
            "bytes": [104, 105],
            "top_logprobs": [{"token": "ho", "logprob": -1.5, "bytes": [104, 111]}],
        },
        {"token": "", "logprob": -0.1, "bytes": [], "top_logprobs": []},
    ]


def test_declined_logprobs_are_left_out() -> None:
    (shown,) = body(choice(logprobs=(ENTRY,)), with_logprobs=False)["choices"]
    assert shown["logprobs"] is None
    chunks = Chunks("c", 12, "m")
    assert [c["choices"][0]["logprobs"] for c in reported(chunks.of(Delta("hi", 1, logprobs=(ENTRY,))))] == [None, None]


def test_token_ids_are_returned_only_on_request() -> None:
    with_ids = choice(token_ids=(1, 2), prompt_token_ids=(3,))
    (shown,) = body(with_ids, with_ids=True)["choices"]
    assert (shown["token_ids"], shown["prompt_token_ids"]) == ([1, 2], [3])
    (hidden,) = body(with_ids)["choices"]
    assert "token_ids" not in hidden


def test_tool_calls_have_arguments_as_json_text_and_may_stand_without_content() -> None:
    called = Choice(0, Message(Role.ASSISTANT, None, tool_calls=(ToolCall("t", "f", "{}"),)), FinishReason.TOOL_CALLS)
    (shown,) = body(called)["choices"]
    assert shown["message"] == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_a_stream_goes_role_content_reason_usage() -> None:
    chunks = Chunks("c", 12, "m", with_usage=True)
    raw = (
        chunks.of(Delta("hel", 1))
        + chunks.of(Delta("lo", 1, finish_reason=FinishReason.STOP))
        + chunks.usage(Usage(3, 2))
    )
    opening, one, two, last, usage = reported(raw)
    assert all(
        (c["id"], c["created"], c["model"], c["object"]) == ("c", 12, "m", "chat.completion.chunk")
        for c in reported(raw)
    )
    assert opening["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert [c["choices"][0]["delta"] for c in (one, two, last)] == [{"content": "hel"}, {"content": "lo"}, {}]
    assert [c["choices"][0]["finish_reason"] for c in (opening, one, two, last)] == [None, None, None, "stop"]
    assert all(c["usage"] is None for c in (opening, one, two, last))
    assert usage["choices"] == []
    assert usage["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def test_without_the_option_no_chunk_speaks_of_usage() -> None:
    chunks = Chunks("c", 12, "m")
    assert all("usage" not in chunk for chunk in reported(chunks.of(Delta("x", 1, finish_reason=FinishReason.LENGTH))))
    assert chunks.usage(Usage(1, 1)) == b""


def test_choices_open_when_they_first_speak() -> None:
    chunks = Chunks("c", 12, "m", with_logprobs=True)
    spoken = reported(
        chunks.of(Delta("a", 1, index=0)) + chunks.of(Delta("b", 1, index=1)) + chunks.of(Delta("c", 1, index=0))
    )
    assert [(c["choices"][0]["index"], c["choices"][0]["delta"].get("content")) for c in spoken] == [
        (0, ""),
        (0, "a"),
        (1, ""),
        (1, "b"),
        (0, "c"),
    ]


def test_logprobs_and_ids_come_with_the_content_and_the_prompt_s_ids_with_the_role() -> None:
    chunks = Chunks("c", 12, "m", with_logprobs=True, with_ids=True)
    opening, content = reported(chunks.of(Delta("hi", 1, logprobs=(ENTRY,), token_ids=(7,), prompt_token_ids=(1, 2))))
    assert opening["choices"][0]["prompt_token_ids"] == [1, 2]
    assert content["choices"][0]["token_ids"] == [7]
    assert content["choices"][0]["logprobs"]["content"][0]["token"] == "hi"


def test_an_end_of_turn_token_has_a_chunk_with_its_own_logprob() -> None:
    chunks = Chunks("c", 12, "m", with_logprobs=True)
    _, entry, last = reported(chunks.of(Delta("", 1, logprobs=(END,), finish_reason=FinishReason.STOP)))
    assert entry["choices"][0]["delta"] == {"content": ""}
    assert len(entry["choices"][0]["logprobs"]["content"]) == 1
    assert last["choices"][0]["finish_reason"] == "stop"


def test_a_tool_call_names_itself_in_its_first_piece_alone() -> None:
    chunks = Chunks("c", 12, "m", with_logprobs=True)
    raw = chunks.of(Delta(tool_call=ToolCallDelta(0, "t", "f", '{"a'))) + chunks.of(
        Delta(tool_call=ToolCallDelta(0, arguments='":1}'))
    )
    _, first, second = reported(raw)
    assert first["choices"][0]["delta"] == {
        "tool_calls": [{"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a'}}]
    }
    assert second["choices"][0]["delta"] == {"tool_calls": [{"index": 0, "function": {"arguments": '":1}'}}]}


_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_IDS = st.lists(st.integers(0, 9), max_size=2).map(tuple)
_CALLS = st.lists(st.builds(ToolCall, _TEXT, _TEXT, _TEXT), max_size=2).map(tuple)
_MESSAGES = st.builds(Message, st.just(Role.ASSISTANT), st.none() | _TEXT, tool_calls=_CALLS)
_ENTRIES = st.none() | st.lists(st.builds(TokenLogprob, _TEXT, st.floats(-9, 0)), max_size=2).map(tuple)
_CHOICES = st.builds(Choice, st.integers(0, 9), _MESSAGES, st.sampled_from(FinishReason), _ENTRIES, _IDS, _IDS)
_USAGES = st.builds(Usage, st.integers(0, 2**60), st.integers(0, 9), st.integers(0, 2))


def said_plainly(completion: Completion, with_logprobs: bool, with_ids: bool) -> Any:
    """The answer as data, put together the plain way."""
    usage = completion.usage
    counts = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return {
        "id": completion.id,
        "object": "chat.completion",
        "created": completion.created,
        "model": completion.model,
        "choices": [choice_said_plainly(each, with_logprobs, with_ids) for each in completion.choices],
        "usage": {**counts, "total_tokens": usage.prompt_tokens + usage.completion_tokens}
        | ({"prompt_tokens_details": {"cached_tokens": usage.cached_tokens}} if usage.cached_tokens else {}),
    }


def choice_said_plainly(generated: Choice, with_logprobs: bool, with_ids: bool) -> Any:
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in generated.message.tool_calls
    ]
    entries = None
    if with_logprobs and generated.logprobs is not None:
        entries = [
            {"token": e.token, "logprob": e.logprob, "bytes": None, "top_logprobs": []} for e in generated.logprobs
        ]
    ids = {"token_ids": [*generated.token_ids] or None, "prompt_token_ids": [*generated.prompt_token_ids] or None}
    return {
        "index": generated.index,
        "message": {"role": "assistant", "content": generated.message.content}
        | ({"tool_calls": calls} if calls else {}),
        "finish_reason": generated.finish_reason.value,
        "logprobs": None if entries is None else {"content": entries},
    } | (ids if with_ids else {})


@given(
    st.builds(Completion, _TEXT, st.integers(0, 2**40), _TEXT, st.lists(_CHOICES, max_size=2).map(tuple), _USAGES),
    st.booleans(),
    st.booleans(),
)
def test_any_answer_is_written_as_json(completion: Completion, with_logprobs: bool, with_ids: bool) -> None:
    raw = completion_json(completion, with_logprobs, with_ids)
    plain = said_plainly(completion, with_logprobs, with_ids)
    assert raw == json.dumps(plain, separators=(",", ":")).encode("ascii")


@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1),
    st.text(st.characters(exclude_categories=["Cs"])),
)
def test_any_text_arrives_as_it_was_said(pieces: list[str], model: str) -> None:
    chunks = Chunks("c", 12, model, with_usage=True)
    raw = b"".join(chunks.of(Delta(piece, 1)) for piece in pieces)
    events = reported(raw)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "".join(pieces)
    assert {event["model"] for event in events} == {model}
    assert raw.isascii()


def test_the_end_is_the_word_that_clients_wait_for() -> None:
    assert DONE == b"data: [DONE]\n\n"
    with pytest.raises(json.JSONDecodeError):
        json.loads(DONE[6:])
