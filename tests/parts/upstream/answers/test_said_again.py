"""Answers that are said twice, wrapped twice, or not told apart: each part of them is read once."""

import json
from typing import Any

import pytest

from modelyard.domain.completion import FinishReason, Tool
from modelyard.platform.chat.assembly import fold_choice
from upstream_asking import backend_at, http

USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}
CALL = {"id": "a", "type": "function", "function": {"name": "search", "arguments": '{"q":1}'}}
TOOLS = (Tool("search", None, {"type": "object"}),)


def chunk(delta: Any, reason: Any = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def last(reason: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": reason}
    return {"choices": [choice], "usage": USAGE}


def stream(*chunks: Any, before: str = "data: ", after: str = "\n\n") -> bytes:
    lines = [before + json.dumps(one) + after for one in chunks]
    return http("".join([*lines, f"{before}[DONE]{after}"]).encode(), "text/event-stream")


def read(either: Any, url: str, **fields: Any) -> tuple[str, str, list[tuple[str, str]], FinishReason | None, int]:
    """Return the text, the reasoning and the calls of an answer, its reason, and the tokens that are booked."""
    with backend_at(url) as backend:
        deltas = either(backend, streamed=True, **fields)
    choice = fold_choice(0, deltas, True)
    calls = [(call.name, call.arguments) for call in choice.message.tool_calls]
    usage = [delta.usage for delta in deltas if delta.usage is not None][-1]
    reasoning = "".join(delta.reasoning for delta in deltas)
    return choice.message.text, reasoning, calls, choice.finish_reason, usage.completion_tokens


PARTS = ({"reasoning_content": "think"}, {"content": "hello"}, {"tool_calls": [{"index": 0, **CALL}]})


@pytest.mark.parametrize("streamed", [(0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)])
def test_the_whole_answer_at_the_end_adds_what_was_not_said(canned: Any, either: Any, streamed: tuple[int]) -> None:
    message = {"reasoning_content": "think", "content": "hello", "tool_calls": [CALL]}
    answer = stream(*[chunk(PARTS[part]) for part in streamed], last("tool_calls", **message))
    found = read(either, canned(answer), tools=TOOLS)
    assert found == ("hello", "think", [("search", '{"q":1}')], FinishReason.TOOL_CALLS, 2)


def test_reasoning_that_grows_in_whole_answers_is_read_once(canned: Any, either: Any) -> None:
    said = [{"reasoning_content": "th"}, {"reasoning_content": "think"}, {"reasoning_content": "think", "content": "h"}]
    answer = stream(*[last("", **one) for one in said], last(reasoning_content="think", content="hello"))
    assert read(either, canned(answer)) == ("hello", "think", [], FinishReason.STOP, 2)


def called(arguments: str, **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{**CALL, "function": {"name": "search", "arguments": arguments}, **more}]}


@pytest.mark.parametrize(
    "said", [("", '{"q"', '{"q":1}'), ('{"q"', ":", "1}"), ('{"q":1}', '{"q":1}'), ('{"q":1}', '{"q": 1}')]
)
@pytest.mark.parametrize("named", [{}, {"index": 0}, {"id": None}])
def test_calls_that_grow_in_messages_are_read_once(canned: Any, either: Any, said: Any, named: Any) -> None:
    answer = stream(*[last("null", **called(one, **named)) for one in said], last("tool_calls"))
    expected = ("", "", [("search", '{"q":1}')], FinishReason.TOOL_CALLS, 2)
    assert read(either, canned(answer), tools=TOOLS) == expected


def test_a_call_that_is_said_again_under_another_id_is_one(canned: Any, either: Any) -> None:
    again = {"tool_calls": [{**CALL, "id": "b"}]}
    answer = stream(chunk(PARTS[2]), last("tool_calls", **again))
    assert read(either, canned(answer), tools=TOOLS)[2] == [("search", '{"q":1}')]


def test_text_that_waited_is_not_lost_to_calls_or_to_a_message_without_text(canned: Any, either: Any) -> None:
    pieces = [chunk({"content": "so"}), chunk({"content": "so it"})]
    for end in (chunk(PARTS[2], "tool_calls"), last("tool_calls", tool_calls=[CALL])):
        found = read(either, canned(stream(*pieces, end, {"choices": [], "usage": USAGE})), tools=TOOLS)
        assert found == ("soso it", "", [("search", '{"q":1}')], FinishReason.TOOL_CALLS, 2)


def test_log_probabilities_of_the_whole_answer_at_the_end_are_not_those_of_more(canned: Any, either: Any) -> None:
    entries = {"content": [{"token": "hello", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}
    piece, end = chunk({"content": "hello"}), last(content="hello")
    for one in (piece, end):
        one["choices"][0]["logprobs"] = entries
    with backend_at(canned(stream(piece, end))) as backend:
        deltas = either(backend, streamed=True, logprobs=True)
    assert [entry.token for delta in deltas for entry in delta.logprobs] == ["hello"]


@pytest.mark.parametrize(
    ("before", "after"), [("data: ", "\n"), ("data:", "\r\n"), ("data: data: ", "\n\n"), ("data:data:", "\n\n")]
)
def test_events_that_are_wrapped_twice_or_not_divided_are_all_read(
    canned: Any, either: Any, before: str, after: str
) -> None:
    pieces = [chunk({"content": "hel"}), chunk({"content": "lo"}), chunk({}, "stop"), {"choices": [], "usage": USAGE}]
    answer = stream(*pieces, before=before, after=after)
    assert read(either, canned(answer)) == ("hello", "", [], FinishReason.STOP, 2)


def test_chunks_that_follow_each_other_in_one_event_are_all_read(canned: Any, either: Any) -> None:
    both = json.dumps(chunk({"content": "hel"})) + json.dumps(chunk({"content": "lo"}, "stop"))
    body = f"data: {both}\n\ndata: [DONE]\n\n".encode()
    assert read(either, canned(http(body, "text/event-stream")))[0] == "hello"


@pytest.mark.parametrize("rest", [['{"q":1}'], ['{"q"', ":1}"], [' {"q":1}']])
def test_an_empty_object_before_the_arguments_is_not_one_of_them(canned: Any, either: Any, rest: list[str]) -> None:
    begin = chunk({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "search", "arguments": "{}"}}]})
    more = [chunk({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}) for piece in rest]
    (call,) = read(either, canned(stream(begin, *more, chunk({}, "tool_calls"))), tools=TOOLS)[2]
    assert call == ("search", "".join(rest))
    (call,) = read(either, canned(stream(begin, chunk({}, "tool_calls"))), tools=TOOLS)[2]
    assert call == ("search", "{}")


def test_choices_of_one_number_are_told_apart_by_their_places(canned: Any, either: Any) -> None:
    choices = [{"index": 0, "message": {"content": text}, "finish_reason": "stop"} for text in ("one", "two")]
    answer = http(json.dumps({"choices": choices, "usage": USAGE}).encode())
    with backend_at(canned(answer)) as backend:
        deltas = either(backend, n=2)
    texts = ["".join(delta.text for delta in deltas if delta.index == index) for index in range(2)]
    assert texts == ["one", "two"]


@pytest.mark.parametrize(
    ("named", "reason"),
    [
        ("content_filter: RECITATION", FinishReason.CONTENT_FILTER),
        ("maxTokens", FinishReason.LENGTH),
        ("FINISH_REASON_MAX_TOKENS", FinishReason.LENGTH),
        ("ERROR_LIMIT", FinishReason.LENGTH),
        ("ERROR_TOXIC", FinishReason.CONTENT_FILTER),
        ("endTurn", FinishReason.STOP),
        ("FinishReason.STOP", FinishReason.STOP),
    ],
)
def test_a_reason_is_known_in_whichever_letters_and_with_details(
    canned: Any, either: Any, named: str, reason: FinishReason
) -> None:
    assert read(either, canned(stream(chunk({"content": "hello"}), chunk({}, named))))[3] is reason
