"""What a model writes before its answer: in whole answers and streams, counted, cut, stored, and read again."""

from typing import Any

import pytest

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import EchoBackend, Fallback, call, reasoning, say
from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    Role,
    TokenLogprob,
    Usage,
)
from modelyard.errors import BackendError
from modelyard.platform.chat.assembly import ResponseAssembler

REASONED = say(reasoning("Two and"), reasoning(" two."), "It is", " 4")


def asked(*answers: Any, unchecked: bool = False, **options: Any) -> Any:
    with open_platform(backend=ScriptedBackend(list(answers), unchecked=unchecked)) as platform:
        return platform.chat.complete(model="scripted", messages="2 + 2?", **options)


@pytest.mark.parametrize(
    "answer",
    [
        REASONED,
        Message(Role.ASSISTANT, "It is 4", reasoning="Two and two."),
        Choice(0, Message(Role.ASSISTANT, "It is 4", reasoning="Two and two."), FinishReason.STOP),
    ],
)
def test_whole_and_streamed_answers_have_the_same_reasoning(answer: Any) -> None:
    with open_platform(backend=ScriptedBackend([answer] * 2)) as platform:
        whole = platform.chat.complete(model="scripted", messages="2 + 2?")
        with platform.chat.stream(model="scripted", messages="2 + 2?") as stream:
            deltas = list(stream)
        streamed = stream.completion
    assert whole.choices[0].message == Message(Role.ASSISTANT, "It is 4", reasoning="Two and two.")
    assert whole.usage == Usage(3, 6, reasoning_tokens=3)
    assert (streamed.choices, streamed.usage) == (whole.choices, whole.usage)
    assert "".join(delta.reasoning for delta in deltas) == "Two and two."
    assert "".join(delta.text for delta in deltas) == "It is 4"
    kinds = [bool(delta.reasoning) for delta in deltas if delta.reasoning or delta.text]
    assert kinds == sorted(kinds, reverse=True)


def test_what_a_backend_reports_counts() -> None:
    answer = asked(say(reasoning("hm"), "4", usage=Usage(3, 9, reasoning_tokens=7)))
    assert (answer.usage.completion_tokens, answer.usage.reasoning_tokens) == (9, 7)
    with pytest.raises(BackendError, match="more tokens of reasoning"):
        asked(say(reasoning("hm"), "4", usage=Usage(3, 2, reasoning_tokens=7)), unchecked=True)


@pytest.mark.parametrize("streamed", [False, True])
def test_reasoning_is_cut_at_the_token_limit_and_not_at_stop_strings(streamed: bool) -> None:
    def answer(**options: Any) -> Any:
        with open_platform(backend=ScriptedBackend([say(reasoning("a stop b"), "x stop y")])) as platform:
            if not streamed:
                return platform.chat.complete(model="scripted", messages="hi", **options)
            with platform.chat.stream(model="scripted", messages="hi", **options) as stream:
                list(stream)
            return stream.completion

    cut = answer(max_tokens=2)
    assert (cut.choices[0].message.reasoning, cut.text) == ("a stop", "")
    assert cut.choices[0].finish_reason is FinishReason.LENGTH
    stopped = answer(stop="stop")
    assert (stopped.choices[0].message.reasoning, stopped.text) == ("a stop b", "x ")


def test_a_piece_that_is_too_long_is_cut_where_its_text_is() -> None:
    piece = Delta("abcd", 8, reasoning="efgh")
    cuts = {2: ("ef", ""), 4: ("efgh", ""), 6: ("efgh", "ab")}
    for limit, (thought, text) in cuts.items():
        message = asked([piece, Delta(finish_reason=FinishReason.STOP)], max_tokens=limit).choices[0].message
        assert (message.reasoning, message.text) == (thought, text)


@pytest.mark.parametrize("streamed", [False, True])
def test_log_probabilities_of_reasoning_stay_with_it(streamed: bool) -> None:
    with open_platform(backend=ScriptedBackend([REASONED])) as platform:
        options: dict[str, Any] = {"model": "scripted", "messages": "hi", "logprobs": True, "stop": " 4"}
        if streamed:
            with platform.chat.stream(**options) as stream:
                list(stream)
            answer = stream.completion
        else:
            answer = platform.chat.complete(**options)
    tokens = [entry.token for entry in answer.choices[0].logprobs or ()]
    assert tokens[:5] == ["Two", " and", " two.", "It", " is"]
    assert (answer.text, answer.choices[0].message.reasoning) == ("It is", "Two and two.")


def entries(*tokens: str) -> tuple[TokenLogprob, ...]:
    return tuple(TokenLogprob(token, -1.0) for token in tokens)


def test_log_probabilities_of_a_piece_with_reasoning_are_cut_by_tokens_alone() -> None:
    piece = Delta("cd", 4, logprobs=entries(*"abcd"), reasoning="ab")
    end = Delta(finish_reason=FinishReason.STOP)
    cut = asked([piece, end], max_tokens=3, logprobs=True).choices[0]
    assert (cut.message.reasoning, cut.message.text) == ("ab", "c")
    assert [entry.token for entry in cut.logprobs] == ["a", "b", "c"]
    stopped = asked([piece, end], stop="d", logprobs=True).choices[0]
    assert (stopped.message.reasoning, stopped.message.text) == ("ab", "c")
    assert [entry.token for entry in stopped.logprobs] == [*"abcd"]


def test_reasoning_is_shown_at_once_also_where_a_stop_string_may_follow() -> None:
    request = CompletionRequest("m", (), max_tokens=9, stop=("zz",), logprobs=True, streamed=True)
    assembler = ResponseAssembler(request, [0])
    assembler.take(Delta("", 1, logprobs=entries("hm"), reasoning="hm"))
    assert [delta.reasoning for delta in assembler.shown] == ["hm"]


def test_reasoning_is_bounded_as_text_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modelyard.platform.chat.assembly.MAX_TEXT", 3)
    with pytest.raises(BackendError, match="longer than 3"):
        asked(say(reasoning("abc"), "d"))


def test_a_completion_that_is_kept_has_its_reasoning() -> None:
    with open_platform(backend=ScriptedBackend([REASONED])) as platform:
        platform.chat.complete(model="scripted", messages="2 + 2?", store=True)
        (kept,) = platform.chat.list()
        assert kept.answer["choices"][0]["message"]["reasoning"] == "Two and two."


def test_earlier_reasoning_reaches_the_backend_under_either_name() -> None:
    backend = ScriptedBackend(lambda request: "ok")
    turns = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "so", "reasoning_content": "hm"},
        {"role": "assistant", "content": None, "reasoning": "well"},
        Message(Role.ASSISTANT, "yes", reasoning="right"),
        {"role": "user", "content": "and?"},
    ]
    with open_platform(backend=backend) as platform:
        platform.chat.complete(model="scripted", messages=turns)
    (request,) = backend.requests
    assert [message.reasoning for message in request.messages] == [None, "hm", "well", "right", None]


def test_echo_reasons_where_an_effort_is_asked_for() -> None:
    with open_platform() as platform:
        reasoned = platform.chat.complete(model="echo", messages="one two", reasoning_effort="low")
        plain = platform.chat.complete(model="echo", messages="one two", reasoning_effort="none")
    assert (reasoned.choices[0].message.reasoning, reasoned.text) == ("one two", "one two")
    assert (reasoned.usage.completion_tokens, reasoned.usage.reasoning_tokens) == (4, 2)
    assert plain.choices[0].message.reasoning is None


def test_a_fallback_and_a_call_keep_reasoning() -> None:
    first, second = ScriptedBackend([BackendError("down")]), ScriptedBackend([say(reasoning("hm"), call("look"))])
    with open_platform(backend=Fallback([first, second])) as platform:
        tools = [{"type": "function", "function": {"name": "look"}}]
        message = platform.chat.complete(model="scripted", messages="hi", tools=tools).choices[0].message
    assert (message.reasoning, message.content, message.tool_calls[0].name) == ("hm", None, "look")


def test_reasoning_that_is_no_text_is_the_backends_fault() -> None:
    for wrong in ("\ud800", 3):
        with pytest.raises(BackendError, match="reasoning"):
            asked([Delta("x", 1, reasoning=wrong), Delta(finish_reason=FinishReason.STOP)], unchecked=True)  # type: ignore[arg-type]


def test_the_capability_is_listed() -> None:
    assert "reasoning" in EchoBackend().entries()[0].supported_features
