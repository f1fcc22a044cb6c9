"""The scripted backend: lists, functions, and everything that an answer can be."""

from typing import Any

import attrs
import pytest

from modelyard.domain.completion import (
    Choice,
    Completion,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    Tool,
    ToolCall,
    Usage,
)
from modelyard.errors import NoAnswerPrepared, Overloaded
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import ServedModel


def ask(backend: ScriptedBackend, text: str = "hi", **fields: Any) -> Choice:
    request = attrs.evolve(CompletionRequest("scripted", (Message(Role.USER, text),), max_tokens=100), **fields)
    model = ServedModel("scripted", backend.entries()[0])
    return fold_choice(0, backend.stream(request, model), with_logprobs=request.logprobs)


def test_answers_are_given_in_order_and_requests_are_kept() -> None:
    backend = ScriptedBackend(["one", "two words"])
    assert [ask(backend, "a").message.text, ask(backend, "b").message.text] == ["one", "two words"]
    assert [request.messages[0].text for request in backend.requests] == ["a", "b"]


def test_an_exhausted_list_of_answers_raises() -> None:
    backend = ScriptedBackend(["only one"])
    ask(backend)
    with pytest.raises(NoAnswerPrepared, match=r"used up: it held 1 answer,.*'once more\?'"):
        ask(backend, "once more?")


def test_a_function_answers_by_the_request() -> None:
    backend = ScriptedBackend(lambda request: request.messages[-1].text.upper())
    assert ask(backend, "loud").message.text == "LOUD"


def test_what_a_function_raises_reaches_the_caller() -> None:
    def busy(request: CompletionRequest) -> str:
        raise Overloaded("no room")

    with pytest.raises(Overloaded):
        ask(ScriptedBackend(busy))


@pytest.mark.parametrize("streamed", [False, True])
def test_a_message_brings_its_tool_calls(streamed: bool) -> None:
    calls = (ToolCall("call_1", "add", '{"a": 1}'), ToolCall("call_2", "sub", ""))
    script = ScriptedBackend([Message(Role.ASSISTANT, "let me see", tool_calls=calls)])
    generated = ask(script, streamed=streamed, tools=(Tool("add"), Tool("sub")))
    assert generated.message == Message(Role.ASSISTANT, "let me see", tool_calls=calls)
    assert generated.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize("streamed", [False, True])
def test_a_completion_keeps_its_finish_reason_and_its_own_tokens(streamed: bool) -> None:
    logprobs = (TokenLogprob("blo", -0.5, tuple(b"blo"), id=3), TokenLogprob("cked", -1.5, tuple(b"cked"), id=4))
    choice = Choice(0, Message(Role.ASSISTANT, "blocked"), FinishReason.CONTENT_FILTER, logprobs, (3, 4), (1, 2))
    script = Completion("id", 0, "m", (choice,), Usage())
    assert ask(ScriptedBackend([script]), streamed=streamed, logprobs=True, return_token_ids=True) == choice
    assert ask(ScriptedBackend([choice]), streamed=streamed).token_ids == ()


def test_a_choice_without_tokens_is_said_in_words() -> None:
    choice = Choice(0, Message(Role.ASSISTANT, "two words"), FinishReason.CONTENT_FILTER)
    generated = ask(ScriptedBackend([choice]), logprobs=True)
    assert generated.finish_reason is FinishReason.CONTENT_FILTER
    assert generated.logprobs is not None
    assert [token.token for token in generated.logprobs] == ["two", " words"]


def test_deltas_are_passed_on_as_they_are() -> None:
    deltas = [Delta("a", 1), Delta("b", 1, finish_reason=FinishReason.STOP, usage=Usage(5, 2))]
    backend = ScriptedBackend([deltas])
    request = CompletionRequest("scripted", (Message(Role.USER, "hi"),))
    assert list(backend.stream(request, ServedModel("scripted", backend.entries()[0]))) == deltas


def test_nothing_is_taken_from_the_list_before_the_first_delta_is_requested() -> None:
    backend = ScriptedBackend(["one"])
    request = CompletionRequest("scripted", (Message(Role.USER, "hi"),))
    backend.stream(request, ServedModel("scripted", backend.entries()[0]))
    assert backend.requests == []
    assert ask(backend).message.text == "one"
