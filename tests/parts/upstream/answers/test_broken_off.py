"""What a server has written with the chunk that breaks its answer off is paid for, and booked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_counts import examples
from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.parts.upstream.answers.reader import AnswerBrokenOff, AnswerReader

ASKED = CompletionRequest("m", (Message(Role.USER, "go"),), max_tokens=99, streamed=True)


def chunk(delta: Any, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@given(
    st.lists(st.text("abc é", min_size=1, max_size=9), max_size=3),
    st.text("abc é", min_size=1, max_size=40),
    st.sampled_from(["content", "reasoning_content"]),
    st.sampled_from(["error", "aborted", "server_failed"]),
)
@examples(30)
def test_the_text_of_the_last_chunk_is_counted(before: list[str], last: str, member: str, reason: str) -> None:
    whole, broken = AnswerReader(ASKED), AnswerReader(ASKED)
    for piece in before:
        for reader in (whole, broken):
            reader.take(chunk({"content": piece}), json.dumps(chunk({"content": piece})).encode())
    whole.take(chunk({member: last}, "stop"))
    whole.end(finished=True)
    with pytest.raises(AnswerBrokenOff):
        broken.take(chunk({member: last}, reason))
    assert broken.costs
    assert 0 < broken.usage().completion_tokens <= whole.usage().completion_tokens
    if not before:
        assert broken.usage() == whole.usage()
