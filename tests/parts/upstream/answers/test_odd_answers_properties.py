"""Any answer, in any dialect and with any faults, however its bytes are cut, is read with its text, its calls and its
bill.
"""

import json
from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.completion import CompletionRequest, FinishReason, Message, Role, Tool, ToolCall, Usage
from modelyard.parts.upstream.answers.reader import AnswerReader
from modelyard.parts.upstream.answers.values import read_json
from modelyard.parts.upstream.events import EventReader, event_within
from modelyard.parts.upstream.odd_server.dialects import DIALECTS
from modelyard.parts.upstream.odd_server.faults import UNCOUNTED
from modelyard.parts.upstream.odd_server.server import odd_bytes
from modelyard.platform.chat.assembly import fold_choice
from modelyard.testing import OddAnswer, OddDialect, OddFault

TOOLS = ("look", "look_up", "pay", "get_weather")
ASKED = CompletionRequest(
    "odd",
    (Message(Role.USER, "a question of some words"),),
    max_tokens=4000,
    tools=tuple(map(Tool, TOOLS)),
)

texts = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cc"]) | st.sampled_from("ab {}[]🙂é\u2028"), max_size=30
)
arguments = st.dictionaries(
    st.sampled_from("abc"), texts | st.integers() | st.lists(st.booleans(), max_size=2), max_size=2
)


@st.composite
def usages(draw: st.DrawFn) -> Usage:
    prompt, completion = draw(st.integers(1, 2000)), draw(st.integers(1, 2000))
    cached, reasoning = draw(st.integers(0, prompt)), draw(st.integers(0, completion - 1))
    return Usage(prompt, completion, cached, reasoning_tokens=reasoning)


@st.composite
def answers(draw: st.DrawFn) -> OddAnswer:
    names = draw(st.lists(st.sampled_from(TOOLS), max_size=3))
    calls = [ToolCall(f"id-{at}", name, json.dumps(draw(arguments))) for at, name in enumerate(names)]
    reason = draw(st.sampled_from([FinishReason.LENGTH, FinishReason.CONTENT_FILTER, None]))
    ends = {} if reason is None else {"finish": reason}
    text = draw(texts)
    if not calls and not text:
        text = "so"
    return OddAnswer(text, draw(texts), tuple(calls), draw(usages()), piece=draw(st.integers(1, 9)), **ends)


dialects, faults = st.sampled_from(OddDialect), st.frozensets(st.sampled_from(OddFault), max_size=5)
UNTOLD = {
    OddFault.CALLS_WITHOUT_INDEX,
    OddFault.CALLS_WITH_NULL_INDEX,
    OddFault.CALLS_WITH_ONE_INDEX,
    OddFault.CALLS_WITHOUT_ID,
    OddFault.NAMES_IN_PIECES,
    OddFault.ID_IN_EACH_PIECE,
    OddFault.NAME_IN_EACH_PIECE,
    OddFault.FUNCTION_CALL,
}
"""With these, a piece of a call that is written as a message may be the call again."""


def is_certain(answer: OddAnswer, wrong: frozenset[OddFault]) -> bool:
    """Whether no other answer is written in the same way: what repeats may be repeated, or the text itself."""
    pieces = [answer.cut(answer.text), answer.cut(answer.reasoning)]
    if OddFault.CUMULATIVE_TEXT in wrong:
        if OddFault.HALVED_CHARACTERS in wrong or wrong & {*MESSAGES, OddFault.WHOLE_TEXT_LAST}:
            return False
        return all(len(one) < 2 or (len(one) > 2 and len({*"".join(one[:4])}) > 2) for one in pieces)
    if OddFault.WHOLE_TEXT_LAST in wrong:
        long = all(not one or (len(one) > 1 and len("".join(one).encode()) >= 12) for one in pieces)
        return long and not wrong & MESSAGES
    if OddFault.PIECES_AS_MESSAGES in wrong:
        if wrong & (UNTOLD | {*MESSAGES} - {OddFault.PIECES_AS_MESSAGES} | {OddFault.CUMULATIVE_ARGUMENTS}):
            return False
        said = [(piece, "".join(one[:at])) for one in pieces for at, piece in enumerate(one) if at]
        return not any(piece.startswith(before) or before.strip().startswith(piece.strip()) for piece, before in said)
    return True


REPEATING = {
    OddFault.WHOLE_MESSAGE_IN_EACH,
    OddFault.CUMULATIVE_TEXT,
    OddFault.WHOLE_TEXT_LAST,
    OddFault.CUMULATIVE_ARGUMENTS,
}
MESSAGES = {OddFault.WHOLE_MESSAGE_LAST, OddFault.WHOLE_MESSAGE_IN_EACH, OddFault.PIECES_AS_MESSAGES}


def read(answer: OddAnswer, dialect: OddDialect, wrong: frozenset[OddFault], cuts: Sequence[int]) -> list[Any]:
    """Read the answer as a stream that comes in pieces of these sizes."""
    raw = odd_bytes(dialect, wrong, answer, True)
    events, reader, found, at = EventReader(), AnswerReader(attrs.evolve(ASKED, streamed=True)), [], 0
    for size in [*cuts, len(raw)]:
        found += chunks_of(events.take(raw[at : at + size]), reader)
        at += size
    found += chunks_of(events.end(), reader)
    return [*found, *reader.end(finished=True)]


def unwrapped(event: bytes) -> bytes:
    """An event, which may be written as a text."""
    return event if event.startswith(b"{") else event_within(event) or b""


def chunks_of(events: Sequence[bytes], reader: AnswerReader) -> list[Any]:
    """The deltas of events, as the exchange takes them."""
    found: list[Any] = []
    at = 0
    while at < len(events):
        if texts := reader.take_texts(events, at):
            found += texts
        elif (event := unwrapped(events[at].strip())).startswith(b"{"):
            found += reader.take(read_json(event), event)
        at += len(texts) or 1
    return found


def read_whole(answer: OddAnswer, dialect: OddDialect, wrong: frozenset[OddFault]) -> list[Any]:
    return AnswerReader(ASKED).whole([read_json(odd_bytes(dialect, wrong, answer, False))])


def told(usage: Usage, dialect: OddDialect, wrong: frozenset[OddFault]) -> Usage:
    """The usage as far as this server tells it."""
    known = DIALECTS[dialect]
    reasoning = usage.reasoning_tokens if known.tells_reasoning else 0
    return attrs.evolve(
        usage, cached_tokens=usage.cached_tokens if known.tells_cached else 0, reasoning_tokens=reasoning
    )


def check(found: list[Any], answer: OddAnswer, dialect: OddDialect, wrong: frozenset[OddFault]) -> None:
    choice, usage = fold_choice(0, found, False), found[-1].usage
    assert (choice.message.text, choice.message.reasoning or "") == (answer.text, answer.reasoning)
    calls = choice.message.tool_calls
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [
        (call.name, json.loads(call.arguments)) for call in answer.calls
    ]
    assert len({call.id for call in calls}) == len(calls)
    if not wrong & {OddFault.CALLS_WITHOUT_ID, OddFault.FUNCTION_CALL}:
        assert [call.id for call in calls] == [call.id for call in answer.calls]
    if OddFault.UNKNOWN_REASON not in wrong or answer.finish is not FinishReason.STOP:
        assert choice.finish_reason is answer.finish
    if wrong & UNCOUNTED:
        assert usage.estimated
        assert usage.prompt_tokens > 0
        assert usage.completion_tokens > 0
    else:
        assert usage == told(answer.usage, dialect, wrong)


@pytest.mark.slow
@given(answers(), dialects, faults, st.lists(st.integers(1, 300), max_size=8))
@example(OddAnswer(), OddDialect.OPENAI, frozenset({OddFault.BYTE_ORDER_MARK, OddFault.SPLIT_USAGE}), [1])
@example(OddAnswer("\U000470c2", piece=1), OddDialect.OPENAI, frozenset({OddFault.HALVED_CHARACTERS}), [])
@examples(100)
def test_any_stream_is_read_as_it_was_meant(
    answer: OddAnswer, dialect: OddDialect, wrong: frozenset[OddFault], cuts: list[int]
) -> None:
    assume(is_certain(answer, wrong))
    check(read(answer, dialect, wrong, cuts), answer, dialect, wrong)


@pytest.mark.slow
@given(answers(), dialects, st.frozensets(st.sampled_from(OddFault), max_size=2), st.sampled_from(sorted(REPEATING)))
@examples(100)
def test_what_is_said_again_and_again_is_read_once(
    answer: OddAnswer, dialect: OddDialect, others: frozenset[OddFault], repeating: OddFault
) -> None:
    wrong = others | {repeating}
    assume(is_certain(answer, wrong))
    check(read(answer, dialect, wrong, []), answer, dialect, wrong)


@pytest.mark.slow
@given(answers(), dialects, faults)
@examples(60)
def test_any_document_is_read_as_its_stream_is(
    answer: OddAnswer, dialect: OddDialect, wrong: frozenset[OddFault]
) -> None:
    assume(is_certain(answer, wrong))
    found = read_whole(answer, dialect, wrong)
    check(found, answer, dialect, wrong)
    streamed = read(answer, dialect, wrong, [])
    assert found[-1].usage == streamed[-1].usage
    assert fold_choice(0, found, False).finish_reason == fold_choice(0, streamed, False).finish_reason
