"""The arguments of calls in the messages format: what the model wrote reaches the client, whole and streamed alike."""

import json
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import (
    Choice,
    Completion,
    Delta,
    FinishReason,
    Message,
    Role,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from modelyard.errors import BackendError
from modelyard.parts.messages.formats.answer import MessagesEvents, messages_json

BIG = '{"account": 123456789012345678901234567890}'
DEEP = '{"a":' * 200 + "1" + "}" * 200

members = st.dictionaries(
    st.text(st.characters(codec="utf-8"), max_size=3),
    st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=4),
    max_size=3,
)
inputs = members.map(json.dumps) | members.map(lambda value: json.dumps(value, indent=1, ensure_ascii=False))
odd = st.sampled_from(
    [BIG, DEEP, '{"a": 1, "a": 2}', '{"a": 1e400}', '{"a": 0.10000000000000000001}', "", "null", "[1]"]
)


def written(arguments: str) -> Any:
    return json.loads(arguments if arguments.strip() else "{}") or {}


def whole(calls: Sequence[str], reason: FinishReason = FinishReason.TOOL_CALLS, text: str = "") -> Any:
    made = tuple([ToolCall(f"c{at}", f"f{at}", arguments) for at, arguments in enumerate(calls)])
    choice = Choice(0, Message(Role.ASSISTANT, text or None, tool_calls=made), reason)
    return json.loads(messages_json(Completion("id", 1, "m", (choice,), Usage(3, 4))))


def read(events: bytes) -> tuple[list[Any], Any]:
    """The blocks of a stream, which must begin and end one after the other, and its last event but one."""
    blocks: list[Any] = []
    opened, found = False, [json.loads(event.partition(b"data: ")[2]) for event in events.split(b"\n\n")[:-1]]
    for event in found:
        kind = event["type"].removeprefix("content_block_")
        if kind == "start":
            assert (opened, event["index"]) == (False, len(blocks))
            opened = True
            blocks.append({**event["content_block"], "pieces": ""})
        elif kind == "delta":
            assert (opened, event["index"]) == (True, len(blocks) - 1)
            blocks[-1]["pieces"] += event["delta"].get("partial_json", event["delta"].get("text", ""))
        elif kind == "stop":
            assert (opened, event["index"]) == (True, len(blocks) - 1)
            opened = False
    assert not opened
    return blocks, found[-2] if found[-1]["type"] == "message_stop" else found[-1]


def streamed(deltas: Sequence[Delta]) -> tuple[list[Any], Any]:
    events = MessagesEvents("id", "m")
    return read(b"".join([*[events.of_all([delta]) for delta in deltas], events.end(Usage(3, 4))]))


def cut_up(arguments: str, size: int) -> list[str]:
    return [arguments[at : at + size] for at in range(0, len(arguments), size)]


def deltas_of(calls: Sequence[str], size: int, interleaved: bool, reason: FinishReason) -> list[Delta]:
    """The calls piece by piece: one after the other, or each with its next piece in turn."""
    pieces = [
        [ToolCallDelta(at, f"c{at}", f"f{at}"), *[ToolCallDelta(at, arguments=cut) for cut in cut_up(arguments, size)]]
        for at, arguments in enumerate(calls)
    ]
    rows = zip_longest(*pieces) if interleaved else pieces
    return [*[Delta(tool_call=one) for row in rows for one in row if one is not None], Delta(finish_reason=reason)]


@given(st.lists(inputs | odd, min_size=1, max_size=3), st.integers(1, 40), st.booleans())
@example([BIG], 3, False)
@example(['{"a": 1}', '{"b": 2}'], 2, True)
def test_arguments_reach_the_client_as_the_model_wrote_them(calls: list[str], size: int, interleaved: bool) -> None:
    content = whole(calls)["content"]
    assert [block["input"] for block in content] == list(map(written, calls))
    blocks, ending = streamed(deltas_of(calls, size, interleaved, FinishReason.TOOL_CALLS))
    assert [(block["id"], block["name"]) for block in blocks] == [(one["id"], one["name"]) for one in content]
    assert [written(block["pieces"]) for block in blocks] == list(map(written, calls))
    assert ending["delta"]["stop_reason"] == "tool_use"


@each_case("cut", ['{"a": "x', '{"a": 1}}', '{"a": NaN}', "{'a': 1}", "look", '{"a": 1'])
def test_arguments_that_are_not_json_are_an_error_and_never_empty(cut: str) -> None:
    with pytest.raises(BackendError, match="the model called f1 with arguments that are not JSON"):
        whole(["{}", cut])
    _, ending = streamed(deltas_of(["{}", cut], 3, False, FinishReason.TOOL_CALLS))
    assert (ending["type"], ending["error"]["type"]) == ("error", "api_error")
    assert "the model called f1 with arguments that are not JSON" in ending["error"]["message"]


@pytest.mark.parametrize("cut", ['{"a": "x', '{"a":', ""])
def test_a_call_that_the_token_limit_cut_ends_with_max_tokens(cut: str) -> None:
    answer = whole(['{"a": 1}', cut], FinishReason.LENGTH, "so")
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use"]
    assert answer["stop_reason"] == "max_tokens"
    blocks, ending = streamed(deltas_of(['{"a": 1}', cut], 3, False, FinishReason.LENGTH))
    assert [block["pieces"] for block in blocks] == ['{"a": 1}', cut]
    assert ending["delta"]["stop_reason"] == "max_tokens"


def test_only_the_last_call_can_have_been_cut() -> None:
    with pytest.raises(BackendError, match="called f0"):
        whole(['{"a":', "{}"], FinishReason.LENGTH)


def test_text_between_the_pieces_of_a_call_waits_for_its_end() -> None:
    call = [Delta(tool_call=ToolCallDelta(0, "c0", "f0", '{"a"')), Delta("so", 1)]
    rest = [Delta(tool_call=ToolCallDelta(0, arguments=": 1}")), Delta(finish_reason=FinishReason.TOOL_CALLS)]
    blocks, _ = streamed([*call, *rest])
    assert [block["pieces"] for block in blocks] == ['{"a": 1}', "so"]
