"""Answers of other servers: chunks that bring only text are read by a short way, which comes to the same."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from each import each_case
from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.json import loads
from modelyard.parts.upstream.answers import reader as answer_reader
from modelyard.parts.upstream.answers.reader import AnswerBrokenOff, AnswerReader

odd = st.sampled_from([None, "", 0, 1, True, [], {}, [1], "x"])
logprobs = st.just({"content": [{"token": "a", "logprob": -1.0}]})
tool_calls = st.just([{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}])
deltas = st.fixed_dictionaries(
    {},
    optional={
        "content": st.sampled_from(["a", "bc", "", None]) | odd,
        "role": st.just("assistant"),
        "tool_calls": tool_calls | odd,
        "refusal": st.sampled_from(["no", None]),
        "reasoning_content": st.sampled_from(["hm", None]) | odd,
        "reasoning": st.sampled_from(["hm", None]) | odd,
    },
)
choices = st.fixed_dictionaries(
    {"delta": deltas | st.just({"content": "text"}) | odd},
    optional={
        "index": st.sampled_from([0, 0, 1, 2, -1, True, None, "0"]),
        "finish_reason": st.sampled_from([None, None, "stop", "length", "abort", "later", 3]),
        "logprobs": logprobs | odd,
        "token_ids": st.just([7]) | odd,
        "prompt_token_ids": st.just([1, 2]) | odd,
        "provider_specific_fields": st.just({"token_ids": [7]}) | odd,
        "message": st.just({"content": "whole"}) | odd,
    },
)
usages = st.just({"prompt_tokens": 2, "completion_tokens": 1}) | odd
chunks = st.fixed_dictionaries(
    {"choices": st.lists(choices | odd, max_size=2) | odd},
    optional={"usage": usages, "prompt_token_ids": st.just([1, 2]) | odd},
)
text = st.builds(
    lambda index, name: {"choices": [{"index": index, "delta": {name: "text"}}]},
    st.sampled_from([0, 1]),
    st.sampled_from(["content", "content", "reasoning_content", "reasoning"]),
)
requests = st.builds(
    CompletionRequest,
    st.just("m"),
    st.just((Message(Role.USER, "hello"),)),
    n=st.sampled_from([1, 2]),
    logprobs=st.booleans(),
    return_token_ids=st.booleans(),
    streamed=st.booleans(),
)


PLAIN = CompletionRequest("m", (Message(Role.USER, "hello"),), streamed=True)


class _NoTexts:
    """What is left where the chunks of text alone have no reader of their own."""

    def __init__(self, *_: object) -> None:
        pass

    def take(self, chunk: Any, event: bytes) -> None:
        return None

    def take_unparsed(self, events: Any, start: int) -> list[Any]:
        return []


def general(request: CompletionRequest) -> AnswerReader:
    """A reader that knows no short way."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answer_reader, "ChunkTexts", _NoTexts)
        return AnswerReader(request)


def read(reader: AnswerReader, given: list[Any]) -> list[Any]:
    """What a reader makes of these chunks, up to the first fault."""
    found: list[Any] = []
    try:
        for chunk in given:
            found.append(reader.take(chunk))
        found += reader.end(finished=True)
    except (InvalidInput, BackendError, AnswerBrokenOff) as fault:
        found.append((type(fault), str(fault)))
    return found


@given(request=requests, given=st.lists(text | text | chunks | odd, max_size=6))
def test_the_short_way_of_text_comes_to_the_same_as_the_general_one(
    request: CompletionRequest, given: list[Any]
) -> None:
    assert read(AnswerReader(request), given) == read(general(request), given)


@each_case(
    "delta",
    [
        {"refusal": "no", "reasoning": "hm"},
        {"refusal": "no", "content": "a"},
        {"content": "a", "reasoning": "hm"},
        {"content": 0, "reasoning": "hm"},
        {"content": "a", "reasoning": {}, "reasoning_content": 3},
        {"content": "", "reasoning": "hm", "reasoning_content": ""},
    ],
)
def test_a_chunk_with_more_than_text_or_reasoning_is_read_in_the_general_way(delta: dict[str, Any]) -> None:
    chunks_ = [{"choices": [{"index": 0, "delta": delta}]}, {"choices": [{"index": 0, "delta": {"content": "b"}}]}]
    assert read(AnswerReader(PLAIN), chunks_) == read(general(PLAIN), chunks_)


def test_text_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = AnswerReader(CompletionRequest("m", (Message(Role.USER, "hello"),), streamed=True))
    for name in ("content", "reasoning"):
        for piece in "ab":  # the second piece tells that none has those before it, too
            reader.take({"choices": [{"index": 0, "delta": {name: piece}}]})
    monkeypatch.setattr("modelyard.parts.upstream.answers.reader._ChoiceReader.take", None)
    (delta,) = reader.take({"choices": [{"index": 0, "delta": {"content": "text"}, "finish_reason": None}]})
    assert delta.text == "text"
    (delta,) = reader.take({"choices": [{"index": 0, "delta": {"content": "", "reasoning": "text"}}]})
    assert (delta.text, delta.reasoning) == ("", "text")


contents = st.sampled_from(["a", "b", "a", "b", " word", "é", "\u2028", 'a"b', "\n", "\\", "\x7f", "content"])
names = st.sampled_from(["content", "content", "reasoning_content", "reasoning", "reasoning"])
besides = st.sampled_from(
    [{}, {}, {"content": ""}, {"content": "a"}, {"content": None}, {"reasoning": None}, {"reasoning": "a"}]
)
members = st.sampled_from([{}, {}, {}, {"finish_reason": None}, {"finish_reason": "stop"}, {"index": 1}])
decoys = st.sampled_from(["id", "id", "content", "reasoning", 'x"content', "con\\tent"])
"""Members before the choices that may be taken for the content."""


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    """Events of one server, some of them damaged."""
    spaces, ascii_only, decoy = draw(st.sampled_from([(",", ":"), (", ", ": ")])), draw(st.booleans()), draw(decoys)
    events, beside = [], draw(besides)
    for name, content, more, before in draw(st.lists(st.tuples(names, contents, members, contents), max_size=6)):
        choice = {"index": 0, "delta": beside | {name: content}, **more}
        chunk = {decoy: "c" if decoy == "id" else before, "choices": [choice]}
        events.append(json.dumps(chunk, ensure_ascii=ascii_only, separators=spaces).encode())
    for at in draw(st.lists(st.integers(0, max(len(events) - 1, 0)), max_size=1)) if events else ():
        place = draw(st.integers(0, len(events[at]) - 1))
        instead = draw(st.sampled_from([b"", b"\xff", b'"', b"\\", b"\n", b"}", b'a","content":"b']))
        events[at] = events[at][:place] + instead + events[at][place + 1 :]
    return events


def read_events(reader: AnswerReader, events: list[bytes]) -> list[Any]:
    """What a reader makes of these events, up to the first fault."""
    found: list[Any] = []
    at = 0
    try:
        while at < len(events):
            texts = reader.take_texts(events, at)
            found += texts or reader.take(loads(events[at]), events[at])
            at += len(texts) or 1
        found += reader.end(finished=True)
    except (InvalidInput, BackendError, AnswerBrokenOff) as fault:
        found.append((type(fault), str(fault)))
    return found


class Parsing(AnswerReader):
    """A reader that parses every event."""

    def take_texts(self, events: Any, start: int) -> list[Any]:
        return []


def chunk_of(content: str, before: str = "", after: str = "", name: str = "content") -> bytes:
    """An event with this text, and more members before and after it."""
    return f'{{{before}"choices":[{{"index":0,"delta":{{"{name}":"{content}"}}{after}}}]}}'.encode()


@given(request=requests, events=streams())
@example(PLAIN, [chunk_of("a", after=',"finish_reason":null'), chunk_of("b", after=',"finish_reason":"stop"')])
@example(PLAIN, [chunk_of("a"), chunk_of("b", after=',"finish_reason":"stop"'), chunk_of("c")])
@example(PLAIN, [chunk_of("a", '"content":"a",'), chunk_of("a", '"content":"b",')])
@example(PLAIN, [chunk_of("a", '"x\\"content":"a",'), chunk_of("a", '"x\\"content":"b",')])
@example(PLAIN, [chunk_of("a"), chunk_of('b","role":"x'), chunk_of("\\n"), chunk_of("b")])
@example(
    PLAIN, [chunk_of("a", '"reasoning":"a",', name="reasoning"), chunk_of("a", '"reasoning":"b",', name="reasoning")]
)
@example(PLAIN, [chunk_of("a", name="reasoning"), chunk_of("b", name="reasoning"), chunk_of("b"), chunk_of("c")])
@example(PLAIN, [chunk_of("a", name='content":"b","reasoning'), chunk_of("c", name='content":"b","reasoning')])
def test_events_that_are_not_parsed_are_read_as_parsed_ones(request: CompletionRequest, events: list[bytes]) -> None:
    assert read_events(AnswerReader(request), events) == read_events(Parsing(request), events)


def begin(reader: AnswerReader, name: str) -> tuple[list[str], list[bytes]]:
    """Take three events: the second tells that pieces do not repeat those before, the third how events look. Return
    their text, and two more events."""
    events = [chunk_of(text, name=name) for text in "abcde"]
    return [delta.text for event in events[:3] for delta in reader.take(loads(event), event)], events[3:]


def test_events_that_differ_in_their_text_are_not_parsed() -> None:
    reader = AnswerReader(PLAIN)
    begun, others = begin(reader, "content")
    assert (begun, [delta.text for delta in reader.take_texts(others, 0)]) == (["a", "b", "c"], ["d", "e"])


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_events_that_differ_in_their_reasoning_are_not_parsed(name: str) -> None:
    reader = AnswerReader(PLAIN)
    _, others = begin(reader, name)
    assert [(delta.text, delta.reasoning) for delta in reader.take_texts(others, 0)] == [("", "d"), ("", "e")]
