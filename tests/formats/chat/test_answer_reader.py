"""Answers of other servers: chunks that bring only text are read by a short way, which comes to the same."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard.domain.completion import CompletionRequest, Message, Role
from modelyard.errors import BackendError, InvalidInput
from modelyard.formats.chat.answer_reader import AnswerBrokenOff, AnswerReader

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
        "reasoning_content": st.sampled_from(["hm", None]),
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
text = st.builds(lambda index: {"choices": [{"index": index, "delta": {"content": "text"}}]}, st.sampled_from([0, 1]))
requests = st.builds(
    CompletionRequest,
    st.just("m"),
    st.just((Message(Role.USER, "hello"),)),
    n=st.sampled_from([1, 2]),
    logprobs=st.booleans(),
    return_token_ids=st.booleans(),
    streamed=st.booleans(),
)


class General(AnswerReader):
    """A reader that knows no short way."""

    def _text_only(self, chunk: Any) -> None:
        return None


def read(reader: AnswerReader, given: list[Any]) -> list[Any]:
    """What a reader makes of these chunks, up to the first fault."""
    found: list[Any] = []
    try:
        for chunk in given:
            found.append(reader.take(chunk))
        found.append(reader.end())
    except (InvalidInput, BackendError, AnswerBrokenOff) as fault:
        found.append((type(fault), str(fault)))
    return found


@given(request=requests, given=st.lists(text | text | chunks | odd, max_size=6))
def test_the_short_way_of_text_comes_to_the_same_as_the_general_one(
    request: CompletionRequest, given: list[Any]
) -> None:
    assert read(AnswerReader(request), given) == read(General(request), given)


def test_text_takes_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.formats.chat.answer_reader._ChoiceReader.take", None)
    reader = AnswerReader(CompletionRequest("m", (Message(Role.USER, "hello"),), streamed=True))
    (delta,) = reader.take({"choices": [{"index": 0, "delta": {"content": "text"}, "finish_reason": None}]})
    assert delta.text == "text"
