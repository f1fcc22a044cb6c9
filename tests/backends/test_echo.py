"""The echo: what it says, and that its tokens are exact."""

import json
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import open_platform
from modelyard.backends import echo
from modelyard.backends.deltas import one_by_one
from modelyard.backends.echo import EchoBackend
from modelyard.domain.catalogue import Feature, Pricing, SamplingParameter
from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    ContentPart,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Sampling,
    Tool,
    ToolChoice,
    ToolMode,
)
from modelyard.errors import InvalidInput, UnsupportedParameter
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import ServedModel

ECHO = EchoBackend()
MODEL = ServedModel("echo", ECHO.entries()[0])
texts = st.text(st.one_of(st.sampled_from(" \n\tab"), st.characters()))
words = st.one_of(texts, st.integers(1, 3 * echo.LONGEST).map("x".__mul__))
long_texts = st.lists(words).map("".join)


def deltas(text: str, **fields: Any) -> list[Delta]:
    request = attrs.evolve(CompletionRequest("echo", (Message(Role.USER, text),), max_tokens=1000), **fields)
    return list(one_by_one(ECHO.stream(request, MODEL)))


def answer(text: str, **fields: Any) -> Choice:
    return fold_choice(0, deltas(text, **fields), with_logprobs=True)


@given(st.lists(st.one_of(texts, words, st.none()), max_size=12))
def test_the_tokens_of_a_prompt_are_those_of_its_messages(contents: list[str | None]) -> None:
    messages = [Message(Role.USER, content) for content in contents]
    assert echo.count_prompt(messages) == sum(len(echo.split_tokens(content or "")) for content in contents)


@given(texts, st.booleans())
def test_it_says_the_text_exactly(text: str, streamed: bool) -> None:
    assert answer(text, streamed=streamed).message.text == text


@given(texts)
def test_tokens_join_to_the_text_and_are_counted_without_cutting(text: str) -> None:
    tokens = echo.split_tokens(text)
    assert "".join(tokens) == text
    assert len(tokens) == echo.count(text)
    assert all(tokens)


@given(texts, st.booleans())
def test_every_token_has_a_logprob_of_0_its_bytes_and_a_stable_id(text: str, streamed: bool) -> None:
    generated = answer(text, streamed=streamed, logprobs=True, top_logprobs=3, return_token_ids=True)
    assert generated.logprobs is not None
    assert [token.token for token in generated.logprobs] == echo.split_tokens(text)
    assert b"".join(bytes(token.bytes or ()) for token in generated.logprobs) == text.encode("utf-8", "surrogatepass")
    assert {token.logprob for token in generated.logprobs} <= {0.0}
    assert all([(top.token, top.logprob) for top in token.top] == [(token.token, 0.0)] for token in generated.logprobs)
    assert generated.token_ids == tuple(token.id for token in generated.logprobs) == generated.prompt_token_ids


def test_token_ids_are_the_same_in_every_process_and_release() -> None:
    assert echo.token_id(" hello") == 1180497166


def test_a_whole_answer_is_one_delta_and_a_stream_has_one_per_token() -> None:
    assert deltas("one two three") == [Delta("one two three", 3, finish_reason=FinishReason.STOP)]
    assert [delta.text for delta in deltas("one two three", streamed=True)] == ["one", " two", " three"]


def test_an_empty_text_is_an_answer_without_tokens() -> None:
    for streamed in (False, True):
        assert deltas("", streamed=streamed) == [Delta(finish_reason=FinishReason.STOP)]


@pytest.mark.parametrize("streamed", [False, True])
def test_the_limit_cuts_at_a_token_with_the_finish_reason_length(streamed: bool) -> None:
    cut = answer("one two three", max_tokens=2, streamed=streamed)
    assert (cut.message.text, cut.finish_reason) == ("one two", FinishReason.LENGTH)
    whole = answer("one two three", max_tokens=3, streamed=streamed)
    assert (whole.message.text, whole.finish_reason) == ("one two three", FinishReason.STOP)


def test_the_last_user_message_is_said_or_else_the_last_message() -> None:
    driver = (Message(Role.USER, "first"), Message(Role.USER, (ContentPart("text", "sec"), ContentPart("text", "ond"))))
    assert answer("", messages=(*driver, Message(Role.ASSISTANT, "no"))).message.text == "second"
    assert answer("", messages=(Message(Role.SYSTEM, "alone"),)).message.text == "alone"


def test_the_prompt_is_the_words_of_all_messages() -> None:
    request = CompletionRequest("echo", (Message(Role.SYSTEM, "a b"), Message(Role.USER, "c")), return_token_ids=True)
    assert ECHO.prompt_tokens(request, MODEL) == 3
    assert [len(delta.prompt_token_ids) for delta in ECHO.stream(request, MODEL)] == [3]


def test_a_forced_call_streams_its_arguments_and_can_be_cut() -> None:
    tools = (
        Tool("add", parameters={"properties": {"a": {"minimum": 1}, "b": {"const": "x y"}}, "required": ["a", "b"]}),
    )
    forced = {"tools": tools, "tool_choice": ToolChoice(ToolMode.REQUIRED)}
    whole = answer("hi", streamed=True, logprobs=True, **forced)
    assert (whole.message.content, whole.finish_reason) == (None, FinishReason.TOOL_CALLS)
    assert json.loads(whole.message.tool_calls[0].arguments) == {"a": 1, "b": "x y"}
    assert whole.logprobs is not None
    assert "".join(token.token for token in whole.logprobs) == whole.message.tool_calls[0].arguments
    cut = answer("hi", max_tokens=1, **forced)
    assert cut.finish_reason is FinishReason.LENGTH
    assert whole.message.tool_calls[0].arguments.startswith(cut.message.tool_calls[0].arguments)


def test_a_schema_that_cannot_be_satisfied_fails_with_the_first_delta() -> None:
    schema = ResponseFormat(ResponseType.JSON_SCHEMA, "none", {"type": "string", "pattern": "(?=x)"})
    request = CompletionRequest("echo", (Message(Role.USER, "hi"),), response_format=schema)
    stream = ECHO.stream(request, MODEL)
    with pytest.raises(InvalidInput, match="pattern"):
        next(stream)


def test_its_entries_say_what_it_can() -> None:
    pricing = Pricing(request=1)  # type: ignore[arg-type]
    one, two = EchoBackend(("a", "b"), pricing=pricing, context_length=64).entries()
    assert (one.id, two.id, one.pricing, one.context_length) == ("a", "b", pricing, 64)
    assert set(one.supported_sampling_parameters) == set(SamplingParameter)
    assert set(one.supported_features) == set(Feature) - {Feature.WEB_SEARCH}


@given(long_texts)
def test_a_token_is_of_bounded_size_and_counted_as_it_is_split(text: str) -> None:
    tokens = echo.split_tokens(text)
    assert "".join(tokens) == text
    assert len(tokens) == echo.count(text)
    assert all(len(token) <= echo.LONGEST + 1 for token in tokens)


def test_a_word_of_megabytes_is_an_answer_of_many_tokens() -> None:
    (said,) = deltas("x" * 2**20, max_tokens=10**6)
    assert said.tokens == 2**20 // echo.LONGEST
    assert len(deltas("x" * 2**20, max_tokens=10**6, streamed=True)) == said.tokens
    assert len(deltas("x" * 2**20, max_tokens=3)[0].text) == 3 * echo.LONGEST


@pytest.mark.parametrize("option", [{"min_tokens": 3}, {"ignore_eos": True}])
def test_what_would_make_an_echo_longer_is_refused_by_name(option: Any) -> None:
    with open_platform(backend=EchoBackend()) as platform:
        for more in ({}, {"response_format": {"type": "json_object"}}):
            with pytest.raises(UnsupportedParameter, match=f"{next(iter(option))}.*does not support"):
                platform.chat.complete(model="echo", messages="hi", **option, **more)
        off: Any = {"min_tokens": 0, "ignore_eos": False}
        assert platform.chat.complete(model="echo", messages="hi", **off).text == "hi"


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
def test_an_echo_ends_at_a_stop_token(streamed: bool) -> None:
    stop = Sampling(stop_token_ids=(7, echo.token_id(" b")))
    told = answer("a b c b", streamed=streamed, return_token_ids=True, sampling=stop)
    assert (told.message.text, told.finish_reason) == ("a b", FinishReason.STOP)
    assert told.token_ids == (echo.token_id("a"), echo.token_id(" b"))
    assert answer("a b", streamed=streamed, max_tokens=1, sampling=stop).finish_reason is FinishReason.LENGTH
    continued = answer("", streamed=streamed, prompt=(5, 7, 9), return_token_ids=True, sampling=stop)
    assert (continued.token_ids, continued.finish_reason) == ((5, 7), FinishReason.STOP)
