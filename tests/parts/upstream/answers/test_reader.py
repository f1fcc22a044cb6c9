"""An answer as a server gives it, read as deltas."""

import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.backends.echo import stream_message
from modelyard.domain.completion import (
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    ToolCall,
    ToolCallDelta,
    Usage,
)
from modelyard.errors import InvalidInput
from modelyard.formats.chat.response import completion_json
from modelyard.formats.chat.stream import DONE, Chunks
from modelyard.formats.json import loads
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.parts.upstream.events import EventReader
from modelyard.platform.chat.assembly import fold_choice

ASKED = CompletionRequest("m", (Message(Role.USER, "twelve chars"),), max_tokens=100)
STREAMED = attrs.evolve(ASKED, streamed=True)


def chunk(reply: Any = None, reason: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": reply or {}, "finish_reason": reason, **more}]}


def whole(text: str | None, reason: str = "stop", usage: Any = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": text, **more}, "finish_reason": reason}
    return {"choices": [choice], "usage": usage}


def read(request: CompletionRequest, *answers: Any) -> list[Delta]:
    reader = AnswerReader(request)
    if not request.streamed:
        return reader.whole(answers)
    return [*(delta for answer in answers for delta in reader.take(answer)), *reader.end(finished=False)]


# ---- what our own server says --------------------------------------------------------------------------------------

texts = st.text(st.characters(codec="utf-8"), max_size=60)
calls = st.lists(texts, max_size=2).map(
    lambda each: [ToolCall(f"call_{at}", "look_up", arguments) for at, arguments in enumerate(each)]
)
contents = st.tuples(texts, calls, st.none() | texts.filter(bool)).filter(any)
Said = tuple[str, list[ToolCall], str | None]
USAGE = Usage(7, 11, 3)


def usage_of(reply: Iterable[Delta]) -> Usage:
    """What a server reports that counts every token: a count below what was read would not be believed."""
    return attrs.evolve(USAGE, completion_tokens=sum(delta.tokens for delta in reply))


def spoken(
    text: str, made: Iterable[ToolCall], reasoning: str | None, streamed: bool
) -> tuple[CompletionRequest, list[Delta]]:
    requested = attrs.evolve(ASKED, streamed=streamed, logprobs=True, return_token_ids=True, max_tokens=None)
    message = Message(Role.ASSISTANT, text, tool_calls=tuple(made), reasoning=reasoning)
    return requested, list(stream_message(message, requested))


@given(contents, st.lists(st.integers(0, 4000), max_size=20))
def test_a_stream_however_it_is_cut_reads_as_it_was_said(content: Said, cuts: list[int]) -> None:
    requested, reply = spoken(*content, streamed=True)
    chunks = Chunks("id", 1, "m", with_usage=True, with_logprobs=True, with_ids=True)
    raw = b"".join([*map(chunks.of, reply), chunks.usage(usage_of(reply)), DONE])
    places = [0, *sorted(min(cut, len(raw)) for cut in cuts), len(raw)]
    events, reader, found = EventReader(), AnswerReader(requested), []
    for begin, end in pairwise(places):
        for event in events.take(raw[begin:end]):
            found += [] if event == b"[DONE]" else reader.take(loads(event))
    found += reader.end(finished=True)
    assert fold_choice(0, found, True) == fold_choice(0, _without_alternatives(reply), True)
    assert sum(delta.tokens for delta in found) == sum(delta.tokens for delta in reply)
    assert [delta.usage for delta in found if delta.usage] == [usage_of(reply)]
    assert [delta.finish_reason is None for delta in found] == [True] * (len(found) - 1) + [False]


@given(contents)
@example(("0     ", [ToolCall("call_1", "look_up", "0     ")], None))  # more tokens than a fixed usage once claimed
def test_a_whole_answer_reads_as_it_was_said(content: Said) -> None:
    requested, reply = spoken(*content, streamed=False)
    choice = fold_choice(0, _without_alternatives(reply), True)
    answer = loads(completion_json(Completion("id", 1, "m", (choice,), usage_of(reply)), True, True))
    found = read(requested, answer)
    assert fold_choice(0, found, True) == choice
    assert found[-1].usage == usage_of(reply)


def _without_alternatives(deltas: Iterable[Delta]) -> list[Delta]:
    return [
        attrs.evolve(delta, logprobs=tuple(attrs.evolve(entry, top=()) for entry in delta.logprobs)) for delta in deltas
    ]


# ---- what other servers say ----------------------------------------------------------------------------------------


def test_text_does_not_wait_for_the_end_that_comes_with_it() -> None:
    reader = AnswerReader(STREAMED)
    assert reader.take(chunk({"content": "bye"}, "stop")) == [Delta("bye", 1)]
    assert reader.end(False) == [Delta(finish_reason=FinishReason.STOP, usage=Usage(4, 1, estimated=True))]


def test_usage_after_the_end_belongs_to_the_last_delta() -> None:
    reply = {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 8}}
    assert read(STREAMED, chunk({}, "length"), {"choices": [], "usage": reply})[-1].usage == Usage(9, 2, 8)


def test_a_whole_answer_is_one_delta_with_the_tokens_that_were_counted() -> None:
    reply = {"prompt_tokens": 4, "completion_tokens": 17}
    assert read(ASKED, whole("seventeen tokens", usage=reply)) == [
        Delta("seventeen tokens", 17, finish_reason=FinishReason.STOP, usage=Usage(4, 17))
    ]


def test_uncounted_tokens_are_estimated_and_marked() -> None:
    (delta,) = read(ASKED, whole("x" * 40))
    assert (delta.tokens, delta.usage) == (10, Usage(4, 10, estimated=True))


def test_an_estimate_never_passes_the_limit() -> None:
    (delta,) = read(ASKED, whole("x" * 4000))
    assert delta.tokens == 100


def test_reasoning_counts_and_is_not_content() -> None:
    both = {"reasoning_content": "!", "reasoning": "!", "content": "8"}
    names = chunk({"reasoning_content": "hm"}), chunk({"reasoning": "hm"})
    found = read(STREAMED, *names, chunk(both), chunk({"content": "!"}, "stop"))
    assert "".join(delta.text for delta in found) == "8!"
    assert "".join(delta.reasoning for delta in found) == "hmhm!"
    assert found[-1].usage == Usage(4, 2, estimated=True)  # of seven letters


def test_a_server_tells_how_many_tokens_are_reasoning() -> None:
    counted = {"prompt_tokens": 4, "completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 7}}
    (delta,) = read(ASKED, whole("8", usage=counted, reasoning="hm"))
    assert (delta.text, delta.reasoning, delta.usage) == ("8", "hm", Usage(4, 9, reasoning_tokens=7))
    counted["completion_tokens_details"] = {"reasoning_tokens": 70}  # more than there are: they are beside
    assert read(ASKED, whole("8", usage=counted))[0].usage == Usage(4, 79, reasoning_tokens=70)


def test_a_refusal_is_what_the_model_said() -> None:
    assert read(ASKED, whole(None, refusal="I cannot"))[0].text == "I cannot"


def test_fragments_of_calls_are_passed_on_as_they_come_with_id_and_name_once() -> None:
    def piece(index: int, arguments: str) -> dict[str, Any]:
        return {
            "index": index,
            "id": f"c{index}",
            "type": "function",
            "function": {"name": "f", "arguments": arguments},
        }

    found = read(
        STREAMED,
        chunk({"tool_calls": [piece(0, "{"), piece(1, "[")]}),
        chunk({"tool_calls": [piece(0, "}")]}),
        chunk({"tool_calls": [{"index": 1, "function": {"arguments": "]"}}]}),
        chunk({}, "tool_calls"),
    )
    assert [delta.tool_call for delta in found if delta.tool_call] == [
        ToolCallDelta(0, "c0", "f", "{"),
        ToolCallDelta(1, "c1", "f", "["),
        ToolCallDelta(0, arguments="}"),
        ToolCallDelta(1, arguments="]"),
    ]


def test_a_call_without_an_id_gets_one_and_ends_as_a_call_for_any_finish_reason() -> None:
    called = [{"function": {"name": "f", "arguments": "{}"}}, {"function": {"name": "g", "arguments": "{}"}}]
    found = read(ASKED, whole(None, "stop", tool_calls=called))
    assert fold_choice(0, found, False).message.tool_calls == (
        ToolCall("call_0_0", "f", "{}"),
        ToolCall("call_0_1", "g", "{}"),
    )
    assert found[-1].finish_reason is FinishReason.TOOL_CALLS


def entry(token: str, logprob: float = -1.0) -> dict[str, Any]:
    return {"token": token, "logprob": logprob, "bytes": list(token.encode()), "top_logprobs": []}


def test_an_end_of_turn_token_keeps_its_logprob_and_has_no_text() -> None:
    entries = {"content": [entry("hi"), entry("<|im_end|>", -0.25)]}
    for found in (
        read(ASKED, {"choices": [{**whole("hi")["choices"][0], "logprobs": entries}]}),
        read(STREAMED, chunk({"content": "hi"}, "stop", logprobs=entries)),
    ):
        tokens = [(token.token, token.logprob, token.bytes) for delta in found for token in delta.logprobs]
        assert tokens == [("hi", -1.0, (104, 105)), ("", -0.25, ())]


def test_a_character_in_two_tokens_keeps_its_bytes() -> None:
    first, second = {**entry("�"), "bytes": [240, 159]}, {**entry("�"), "bytes": [140, 138]}
    found = read(
        STREAMED,
        chunk({"content": ""}, logprobs={"content": [first]}),
        chunk({"content": "🌊"}, "stop", logprobs={"content": [second]}),
    )
    assert b"".join(bytes(token.bytes or ()) for delta in found for token in delta.logprobs).decode() == "🌊"


def test_token_ids_stand_next_to_the_choices_or_in_them_and_match_the_logprobs() -> None:
    opening = {**chunk({"role": "assistant", "content": ""}), "prompt_token_ids": [1, 2]}
    token = chunk({"content": "a"}, "stop", token_ids=[7], logprobs={"content": [entry("a")]})
    first, second, _ = read(STREAMED, opening, {**token, "prompt_token_ids": [1, 2]})
    assert (first.prompt_token_ids, second.prompt_token_ids) == ((1, 2), ())
    assert (second.token_ids, second.logprobs[0].id) == ((7,), 7)


def test_a_logprob_above_0_is_a_rounding_error() -> None:
    (delta,) = read(ASKED, {"choices": [{**whole("a")["choices"][0], "logprobs": {"content": [entry("a", 1e-7)]}}]})
    assert delta.logprobs[0].logprob == 0


def test_the_ends_of_choices_wait_for_the_usage() -> None:
    requested = attrs.evolve(STREAMED, n=2)

    def of(index: int, text: str, reason: str | None = None) -> dict[str, Any]:
        return {"choices": [{"index": index, "delta": {"content": text}, "finish_reason": reason}]}

    found = read(requested, of(0, "a"), of(1, "b"), of(1, "", "stop"), of(0, "c", "length"))
    assert [(delta.index, delta.text, delta.finish_reason) for delta in found] == [
        (0, "a", None),
        (1, "b", None),
        (0, "c", None),
        (0, "", FinishReason.LENGTH),
        (1, "", FinishReason.STOP),
    ]
    assert [delta.usage is not None for delta in found] == [False] * 4 + [True]


def test_nothing_after_the_end_is_ignored() -> None:
    found = read(STREAMED, chunk({"content": "a"}, "stop"), chunk({"role": "assistant", "content": ""}, "stop"))
    assert [delta.finish_reason for delta in found] == [None, FinishReason.STOP]


# ---- what is not in the format's shape ---------------------------------------------------------------------------


@each_case(
    "odd",
    [
        None,
        [],
        {"choices": 1},
        {"choices": [None, 3, "x", []]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0, "delta": []}]},
        {"choices": [{"index": 5, "delta": {"content": "of another choice"}}]},
        chunk({"content": True}),
        chunk({"content": {}}),
        chunk({}, ""),
        chunk({"tool_calls": "call"}),
        chunk({"tool_calls": 1}),
        chunk({"tool_calls": []}),
        chunk({}, logprobs=[1]),
        chunk({}, token_ids=[True]),
        {"choices": [], "usage": {"prompt_tokens": -1}},
        {"choices": [], "usage": [3]},
        {"choices": [], "usage": "none"},
    ],
    ids=repr,
)
@each_case("at", [1, 2])
def test_an_odd_chunk_costs_itself_alone(odd: Any, at: int) -> None:
    chunks = [chunk({"content": "hi"}), chunk({"content": " there"}), chunk({}, "stop")]
    found = read(STREAMED, *chunks[:at], odd, *chunks[at:])
    assert "".join(delta.text for delta in found) == "hi there"
    assert found[-1].finish_reason is FinishReason.STOP
    assert found[-1].usage == read(STREAMED, *chunks)[-1].usage


@each_case(
    "pieces",
    [
        ["hi", " there"],
        [{"text": "hi"}, {"text": " there"}],
        [{"content": None, "text": "hi"}, {"content": " there"}],
        [["hi"], [{"content": " there"}]],
        [{"content": "hi"}, " there"],
    ],
)
@each_case("name", ["delta", "message"])
def test_a_piece_may_be_its_text_alone(pieces: list[Any], name: str) -> None:
    chunks = [{"choices": [{"index": 0, name: piece}]} for piece in pieces]
    found = read(STREAMED, *chunks, chunk({}, "stop"))
    assert "".join(delta.text for delta in found) == "hi there"


@each_case("content", ["", " there"])
@each_case("name", ["finish_reason", "finishReason", "stop_reason", "done_reason"])
def test_the_reason_may_stand_in_the_message(content: str, name: str) -> None:
    ended = {"choices": [{"index": 0, "delta": {"content": content, name: "length"}}]}
    for chunks in ([chunk({"content": "hi"}), ended], [chunk({"content": "hi", name: None}), ended]):
        found = read(STREAMED, *chunks)
        assert "".join(delta.text for delta in found) == f"hi{content}"
        assert found[-1].finish_reason is FinishReason.LENGTH
    (found_whole,) = read(ASKED, {"choices": [{"message": {"content": "hi", name: "length"}}]})
    assert found_whole.finish_reason is FinishReason.LENGTH


def test_a_message_may_be_its_text_alone() -> None:
    for message in ("hi there", {"text": "hi there"}, {"content": "", "text": "hi there"}, ["hi there"]):
        (found,) = read(ASKED, {"choices": [{"message": message, "finish_reason": "stop"}]})
        assert found.text == "hi there"


@each_case(
    ("given", "kept"),
    [(None, -9999.0), ("b", -9999.0), (float("-inf"), -9999.0), (float("nan"), -9999.0), ("-0.5", -0.5), (1e-7, 0.0)],
)
def test_a_log_probability_is_finite(given: Any, kept: float) -> None:
    odd = {"token": "a", "logprob": given, "bytes": [256]}
    (entry,) = read(STREAMED, chunk({"content": "a"}, "stop", logprobs={"content": [{**odd, "top_logprobs": [odd]}]}))[
        0
    ].logprobs
    assert (entry.token, entry.logprob, entry.bytes) == ("a", kept, None)
    assert entry.top[0].logprob == kept


def test_an_unknown_finish_reason_is_a_stop_and_noted_once() -> None:
    noted: list[str] = []
    reader = AnswerReader(STREAMED, noted.append)
    for reason in ("because", "because", 7):
        reader.take(chunk({"content": "a"}, reason))  # type: ignore[arg-type]
    assert reader.end(False)[-1].finish_reason is FinishReason.STOP
    assert noted == ["has an unknown finish reason, which is read as 'stop'"]


def test_text_after_the_finish_reason_is_not_lost() -> None:
    found = read(STREAMED, chunk({"content": "a"}, "stop"), chunk({"content": "more"}), chunk({}, "length"))
    assert "".join(delta.text for delta in found) == "amore"
    assert [delta.finish_reason for delta in found if delta.finish_reason] == [FinishReason.LENGTH]


@pytest.mark.parametrize("answers", [[], [{"choices": []}], [chunk({"content": "a"})]])
def test_an_answer_without_its_end_is_refused(answers: list[Any]) -> None:
    with pytest.raises(InvalidInput, match="not complete"):
        read(STREAMED, *answers)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "message", "content", "index", "usage", "logprobs", "tool_calls", "id"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(json_values, st.booleans())
def test_nonsense_of_any_kind_is_refused_or_understood_and_nothing_else(value: Any, streamed: bool) -> None:
    with suppress(InvalidInput):  # alone that it is not complete
        read(attrs.evolve(ASKED, streamed=streamed), json.loads(json.dumps(value)))
