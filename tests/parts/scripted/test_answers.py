"""What a script says: part by part, with pauses by the clock, in the shape that was asked for."""

import asyncio
import dataclasses
import enum
import json
from decimal import Decimal
from functools import partial
from typing import Any

import attrs
import pydantic
import pytest

from each import each_case
from modelyard import open_platform
from modelyard.domain.catalogue import Pricing
from modelyard.domain.completion import (
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Tool,
    ToolChoice,
    ToolMode,
    Usage,
)
from modelyard.errors import BackendError, BudgetExceeded, NoAnswerPrepared
from modelyard.parts.scripted.backend import ScriptedBackend, call, on, pause, say, token
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import ServedModel
from modelyard.testing.clock import ManualClock


def deltas(answer: Any, **fields: Any) -> list[Delta]:
    request = attrs.evolve(CompletionRequest("scripted", (Message(Role.USER, "hi"),), max_tokens=100), **fields)
    backend = ScriptedBackend([on().answer(answer)])
    return list(backend.stream(request, ServedModel("scripted", backend.entries()[0])))


def test_each_text_is_one_piece_of_the_stream_with_the_tokens_that_its_words_are() -> None:
    first, second, end = deltas(say("Once upon", " a time"), logprobs=True, return_token_ids=True)
    assert (first.text, first.tokens, len(first.logprobs), len(first.token_ids)) == ("Once upon", 2, 2, 2)
    assert [entry.token for entry in second.logprobs] == [" a", " time"]
    assert (end.text, end.finish_reason) == ("", FinishReason.STOP)
    assert [bool(delta.prompt_token_ids) for delta in (first, second, end)] == [True, False, False]


def test_a_string_and_two_calls_in_one_answer() -> None:
    answer = say("One moment.", call("look_up", order=17, deep=None), call("weigh"))
    generated = fold_choice(0, deltas(answer, tools=(Tool("look_up"), Tool("weigh"))), False)
    assert generated.message.text == "One moment."
    assert [(one.name, json.loads(one.arguments)) for one in generated.message.tool_calls] == [
        ("look_up", {"order": 17, "deep": None}),
        ("weigh", {}),
    ]
    assert len({one.id for one in generated.message.tool_calls}) == 2
    assert generated.finish_reason is FinishReason.TOOL_CALLS


def test_the_same_conversation_gets_the_same_call_ids_and_a_longer_one_others() -> None:
    longer = (Message(Role.USER, "hi"), Message(Role.ASSISTANT, "yes?"), Message(Role.USER, "hi"))
    asked: list[dict[str, Any]] = [{}, {}, {"messages": longer}]
    first, again, later = (deltas(call("f"), tools=(Tool("f"),), **fields)[0].tool_call for fields in asked)
    assert first == again
    assert first is not None
    assert later is not None
    assert first.id != later.id


@pytest.mark.parametrize(("limit", "text", "reason"), [(1, "a", "length"), (2, "a b", "length"), (3, "a b c", "stop")])
def test_an_answer_is_cut_at_the_token_limit(limit: int, text: str, reason: str) -> None:
    generated = fold_choice(0, deltas(say("a", " b c"), max_tokens=limit), False)
    assert (generated.message.text, generated.finish_reason) == (text, reason)


def test_nothing_happens_after_the_token_limit() -> None:
    assert deltas(say("a b", BackendError("never")), max_tokens=1)[-1].finish_reason is FinishReason.LENGTH


def test_a_stream_breaks_off_where_an_exception_stands() -> None:
    backend = ScriptedBackend([on().answer(say("Once", BackendError("cable cut")))])
    request = CompletionRequest("scripted", (Message(Role.USER, "hi"),))
    stream = backend.stream(request, ServedModel("scripted", backend.entries()[0]))
    assert next(stream).text == "Once"
    with pytest.raises(BackendError, match="cable cut"):
        next(stream)


def test_tokens_have_the_logprobs_and_alternatives_that_the_script_gives() -> None:
    answer = say(token("no", -1.5, {"yes": -0.3, "maybe": -4.0}), token("!", -0.1))
    no, mark, _ = deltas(answer, logprobs=True, top_logprobs=2)
    assert (no.text, no.tokens, no.logprobs[0].logprob) == ("no", 1, -1.5)
    assert [(entry.token, entry.logprob) for entry in no.logprobs[0].top] == [("yes", -0.3), ("no", -1.5)]
    assert [entry.token for entry in mark.logprobs[0].top] == ["!"]
    assert all(delta.logprobs == () for delta in deltas(answer))


def test_usage_and_finish_reason_are_as_the_script_says() -> None:
    end = deltas(say("no", finish="content_filter", usage=Usage(11, 3, cached_tokens=8)))[-1]
    assert end.finish_reason is FinishReason.CONTENT_FILTER
    with open_platform(backend=ScriptedBackend([say("no", usage=Usage(11, 3, cached_tokens=8))])) as platform:
        assert platform.chat.complete(model="scripted", messages="hi").usage == Usage(11, 3, cached_tokens=8)


REPORTED = Usage(20, 9, cached_tokens=4)


@each_case(
    "answer",
    [
        say("hi", usage=REPORTED),
        [Delta("hi", 1), Delta(finish_reason=FinishReason.STOP, usage=REPORTED)],
        lambda request: say("hi", usage=REPORTED),
        lambda request: iter([Delta("hi", 1), Delta(finish_reason=FinishReason.STOP, usage=REPORTED)]),
    ],
    ids=["say", "deltas", "function", "function that makes deltas"],
)
def test_usage_is_reported_as_given(answer: Any) -> None:
    for script in ([answer], [on("hi").answer(answer)], lambda request: answer):
        with open_platform(backend=ScriptedBackend(script)) as platform:
            assert platform.chat.complete(model="scripted", messages="hi").usage == REPORTED


@pytest.mark.parametrize("usage", [None, Usage(6, 2)])
def test_a_function_reserves_the_words_of_the_messages_and_the_tokens_that_are_asked_for(usage: Usage | None) -> None:
    with open_platform(backend=ScriptedBackend(lambda request: say("one two", usage=usage))) as platform:
        price = Pricing(prompt=Decimal("0.01"), completion=Decimal("0.1"))
        platform.catalogue.register(attrs.evolve(platform.catalogue.get("scripted"), pricing=price))
        platform.usage.set_budget("0.32")
        with pytest.raises(BudgetExceeded, match=r"would cost 0\.33 USD"):
            platform.chat.complete(model="scripted", messages="a b c", max_tokens=3)
        reported = platform.chat.complete(model="scripted", messages="a b", max_tokens=3).usage
        assert reported == (usage or Usage(2, 2))


def test_the_usage_of_a_function_that_reports_none_is_counted_however_its_answer_ends() -> None:
    with open_platform(backend=ScriptedBackend(lambda request: "one two END three")) as platform:
        ask = partial(platform.chat.complete, model="scripted", messages="a b c")
        assert ask().usage == Usage(3, 4)
        assert ask(max_tokens=2).usage == Usage(3, 2)
        assert ask(stop="END").usage == Usage(3, 4)
        with platform.chat.stream(model="scripted", messages="a b c") as stream:
            assert next(stream).text == "one"
        (left,) = [entry for entry in platform.usage.list() if entry.completion_tokens == 1]
        assert (left.prompt_tokens, left.estimated) == (3, False)


def test_an_empty_answer_of_a_function_is_counted_and_text_without_tokens_is_refused() -> None:
    ending = Delta("", finish_reason=FinishReason.STOP)
    with open_platform(backend=ScriptedBackend([lambda _: "", lambda _: [Delta("text"), ending]])) as platform:
        assert platform.chat.complete(model="scripted", messages="a b").usage == Usage(2, 0)
        with pytest.raises(BackendError, match="did not count"):
            platform.chat.complete(model="scripted", messages="a b")


@pytest.mark.parametrize("answer", [["a", "b"], ("a",), lambda request: ["a"]])
def test_a_list_of_strings_is_refused_with_what_streams_them(answer: Any) -> None:
    with pytest.raises(NoAnswerPrepared, match=r'use say\("a", "b"\)'):
        deltas(answer)


# ---- structured values -------------------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = "red"


@attrs.frozen
class Line:
    text: str
    colour: Colour = Colour.RED


@attrs.frozen
class Invoice:
    total: int
    lines: tuple[Line, ...] = ()


@dataclasses.dataclass
class PlainLine:
    text: str
    colour: Colour = Colour.RED


@dataclasses.dataclass
class PlainInvoice:
    total: int
    lines: list[PlainLine]


class PydanticLine(pydantic.BaseModel):
    text: str
    shade: Colour = pydantic.Field(alias="colour")


class PydanticInvoice(pydantic.BaseModel):
    total: int
    lines: tuple[PydanticLine, ...]


INVOICE = Invoice(3, (Line("cup"),))
AS_JSON = {"total": 3, "lines": [{"text": "cup", "colour": "red"}]}
SCHEMA = ResponseFormat(ResponseType.JSON_SCHEMA, "invoice", {"type": "object"})
BILL = Tool("bill", parameters={"type": "object"})


@each_case(
    "value",
    [
        INVOICE,
        AS_JSON,
        PlainInvoice(3, [PlainLine("cup")]),
        PydanticInvoice(total=3, lines=(PydanticLine(text="cup", colour=Colour.RED),)),
        {"total": 3, "lines": [PydanticLine(text="cup", colour=Colour.RED)]},
    ],
)
@each_case("fields", [{}, {"response_format": SCHEMA}, {"tools": (BILL,)}])
def test_a_structured_value_is_said_as_json(value: Any, fields: dict[str, Any]) -> None:
    assert json.loads(fold_choice(0, deltas(value, **fields), False).message.text) == AS_JSON


@pytest.mark.parametrize("name", [None, "bill"])
def test_a_structured_value_is_the_arguments_of_the_tool_that_must_be_called(name: str | None) -> None:
    choice = ToolChoice(ToolMode.REQUIRED, name)
    generated = fold_choice(0, deltas(INVOICE, tools=(BILL,), tool_choice=choice), False)
    (made,) = generated.message.tool_calls
    assert (made.name, json.loads(made.arguments)) == ("bill", AS_JSON)
    assert generated.message.content is None


# ---- pauses ------------------------------------------------------------------------------------------------------

SLOW = say("Once", pause(5), " upon", pause(2))


def test_without_a_clock_pauses_take_no_time_and_nothing_blocks() -> None:
    assert [delta.text for delta in deltas(SLOW)] == ["Once", " upon", ""]
    assert ScriptedBackend([SLOW]).blocking is False


def test_pauses_take_the_time_of_the_clock() -> None:
    clock = ManualClock()
    backend = ScriptedBackend([SLOW], clock=clock)
    assert backend.blocking is True
    request = CompletionRequest("scripted", (Message(Role.USER, "hi"),))
    stream = backend.stream(request, ServedModel("scripted", backend.entries()[0]))
    generated = [(clock.monotonic(), delta.text) for delta in stream]
    assert generated == [(0, "Once"), (5, " upon"), (7, "")]


def test_pauses_on_an_event_loop_take_the_time_of_the_clock_and_end_when_the_reader_goes() -> None:
    clock = ManualClock()

    async def converse() -> list[str]:
        with open_platform(backend=ScriptedBackend([SLOW, SLOW], clock=clock), clock=clock) as platform:
            stream = platform.chat.astream(model="scripted", messages="hi")
            generated = [(await anext(stream)).text]
            waiting = asyncio.ensure_future(anext(stream))
            await some_turns()
            assert not waiting.done()
            await clock.aadvance(5)
            generated.append((await waiting).text)
            left = asyncio.ensure_future(anext(stream))
            await some_turns()
            left.cancel()
            with pytest.raises(asyncio.CancelledError):
                await left
        return generated

    assert asyncio.run(asyncio.wait_for(converse(), 60)) == ["Once", " upon"]


async def some_turns() -> None:
    """Let the tasks of the event loop come as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)
