"""Which rule answers, what is raised when none does, and what is reported of it afterwards."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import pytest

from each import each_case
from modelyard import open_platform
from modelyard.domain.completion import (
    Choice,
    CompletionRequest,
    Delta,
    FinishReason,
    Message,
    ResponseFormat,
    ResponseType,
    Role,
    Tool,
    ToolCall,
)
from modelyard.errors import BackendError, InvalidInput, NoAnswerPrepared, Overloaded, RateLimited
from modelyard.parts.scripted.backend import Answer, Rule, ScriptedBackend, call, on, say
from modelyard.platform.chat.assembly import fold_choice
from modelyard.protocols import ServedModel

ASKED = CompletionRequest("scripted", (Message(Role.USER, "Where is my refund?"),), max_tokens=100)
LOOKED_UP = (
    *ASKED.messages,
    Message(Role.ASSISTANT, tool_calls=(ToolCall("c1", "look_up", "{}"), ToolCall("c2", "weigh", "{}"))),
    Message(Role.TOOL, "a refund of 3 EUR", tool_call_id="c1"),
)


def ask(backend: ScriptedBackend, request: CompletionRequest = ASKED, **fields: Any) -> Choice:
    model = ServedModel("scripted", backend.entries()[0])
    return fold_choice(0, backend.stream(attrs.evolve(request, **fields), model), with_logprobs=False)


def answers(rule: Rule, **fields: Any) -> bool:
    backend = ScriptedBackend([rule.answer("yes"), on().answer("no")], unchecked=True)
    return ask(backend, **fields).message.text == "yes"


@each_case(
    ("rule", "fits"),
    [
        (on(), True),
        (on("refund"), True),
        (on("Refund"), False),
        (on(re.compile("where is .* refund", re.IGNORECASE)), True),
        (on(re.compile("^refund")), False),
        (on(str.istitle), False),
        (on(lambda text: text.endswith("?")), True),
        (on(model="scripted"), True),
        (on(model="script"), False),
        (on(model=re.compile("script")), True),
        (on(tool="look_up"), False),
        (on(called="look_up"), False),
        (on(format="text"), True),
        (on(format=ResponseType.JSON_SCHEMA), False),
        (on(when=lambda request: request.max_tokens == 100), True),
        (on("refund", model="another"), False),
        (on("refund", when=lambda request: False), False),
    ],
)
def test_a_rule_fits_what_meets_all_of_its_conditions(rule: Rule, fits: bool) -> None:
    assert answers(rule) is fits


@each_case(
    ("rule", "fits"),
    [
        (on(tool="look_up"), True),
        (on(tool="weigh"), False),
        (on(tool=re.compile("^look")), True),
        (on("3 EUR", tool="look_up"), True),
        (on("4 EUR", tool="look_up"), False),
        (on(called="weigh"), True),
        (on(called="pay"), False),
    ],
)
def test_a_rule_knows_which_tools_were_called_and_which_one_has_answered(rule: Rule, fits: bool) -> None:
    assert answers(rule, messages=LOOKED_UP) is fits


def test_a_rule_for_a_question_never_answers_what_a_tool_brought() -> None:
    backend = ScriptedBackend([on("refund").answer(call("look_up")), on(tool="look_up").answer("done")])
    assert ask(backend, tools=(Tool("look_up"),)).finish_reason is FinishReason.TOOL_CALLS
    assert ask(backend, messages=LOOKED_UP).message.text == "done"


def test_the_result_of_a_tool_is_known_by_the_name_it_carries_when_its_call_is_gone() -> None:
    assert answers(on(tool="look_up"), messages=(Message(Role.TOOL, "3 EUR", name="look_up", tool_call_id="gone"),))


def test_a_rule_may_name_the_requested_schema() -> None:
    wanted = ResponseFormat(ResponseType.JSON_SCHEMA, "invoice", {"type": "object"})
    assert answers(on(format="invoice"), response_format=wanted)
    assert answers(on(format="json_schema"), response_format=wanted)
    assert not answers(on(format="order"), response_format=wanted)


def test_the_first_rule_that_fits_answers() -> None:
    assert ask(ScriptedBackend([on("refund").answer("1"), on("refund").answer("2")])).message.text == "1"


def test_answers_come_one_after_the_other_and_the_last_from_then_on() -> None:
    backend = ScriptedBackend([on("refund").answer("1", "2", "3"), on().answer("else")])
    generated = [ask(backend).message.text for _ in range(5)]
    assert generated == ["1", "2", "3", "3", "3"]
    assert ask(backend, messages=(Message(Role.USER, "hi"),)).message.text == "else"


def test_a_rule_fails_twice_and_then_succeeds() -> None:
    backend = ScriptedBackend([on().answer(Overloaded("busy"), RateLimited("slow down", 3), "at last")])
    with pytest.raises(Overloaded, match="busy"):
        ask(backend)
    with pytest.raises(RateLimited) as refused:
        ask(backend)
    assert refused.value.retry_after == 3
    assert ask(backend).message.text == "at last"


def test_a_list_may_hold_exceptions_and_everything_else_that_a_rule_may() -> None:
    backend = ScriptedBackend([BackendError("down"), call("look_up"), say("up", " again")])
    with pytest.raises(BackendError, match="down"):
        ask(backend)
    assert ask(backend, tools=(Tool("look_up"),)).message.tool_calls[0].name == "look_up"
    assert ask(backend).message.text == "up again"


def test_two_backends_do_not_share_how_far_a_rule_has_come() -> None:
    rule = on().answer("1", "2")
    assert [ask(ScriptedBackend([rule])).message.text for _ in range(2)] == ["1", "1"]


def test_a_function_answers_for_its_rule() -> None:
    backend = ScriptedBackend([on("refund").answer(lambda request: {"n": len(request.messages)})])
    assert ask(backend).message.text == '{"n": 1}'


def test_deltas_from_a_generator_are_said_again_and_again() -> None:
    backend = ScriptedBackend([on().answer(Delta(text, 1) for text in ("a", "b"))])
    assert [ask(backend).message.text for _ in range(2)] == ["ab", "ab"]


def test_requests_are_kept_with_the_rule_that_answered() -> None:
    refund, greeting, never = on("refund").answer("Sure."), on("hello").answer("Hi."), on("bye").answer("Bye.")
    backend = ScriptedBackend([refund, greeting, never])
    for text in ("my refund", "hello", "refund!"):
        ask(backend, messages=(Message(Role.USER, text),))
    with pytest.raises(NoAnswerPrepared):
        ask(backend, messages=(Message(Role.USER, "what?"),))
    assert backend.texts == ["my refund", "hello", "refund!", "what?"]
    assert backend.answered == [refund, greeting, refund]
    assert backend.unused == [never]


def test_each_answer_is_given_once_however_many_threads_ask() -> None:
    backend = ScriptedBackend([on().answer(*map(str, range(200)), "more")])
    with ThreadPoolExecutor(8) as threads:
        generated = list(threads.map(lambda _: ask(backend).message.text, range(200)))
    assert sorted(generated, key=int) == list(map(str, range(200)))
    assert len(backend.answered) == 200


# ---- errors ------------------------------------------------------------------------------------------------------


def refusal(rules: list[Rule], **fields: Any) -> str:
    with pytest.raises(NoAnswerPrepared) as refused:
        ask(ScriptedBackend([rule.answer("-") for rule in rules]), **fields)
    return str(refused.value)


def test_a_request_without_a_rule_is_refused_with_the_nearest_rule_and_what_differs() -> None:
    text = refusal([on("order", model="other"), on("order"), on(tool="look_up", called="pay", format="json_object")])
    assert text == (
        "messages: no rule of the script answers this request: "
        "model 'scripted', last message (user) 'Where is my refund?'; nearest:\n"
        "  rule 2, on(text='order'): text='order', but the last message is 'Where is my refund?'"
    )


@each_case(
    ("rule", "fields", "why"),
    [
        (on(model="gpt"), {}, "model='gpt', but the request names 'scripted'"),
        (on(tool="pay"), {}, "tool='pay', but the last message is not a tool's result; its role is user"),
        (on(tool="pay"), {"messages": LOOKED_UP}, "tool='pay', but it is the result of 'look_up'"),
        (on("refund"), {"messages": LOOKED_UP}, "the last message is the result of 'look_up', which needs tool="),
        (on(called="pay"), {}, "called='pay', but no tool was called before"),
        (on(called="pay"), {"messages": LOOKED_UP}, "called='pay', but 'look_up', 'weigh' was called before"),
        (on(format="json_object"), {}, "format='json_object', but the request's is text"),
        (on(format=ResponseType.JSON_OBJECT), {}, "on(format='json_object')"),
        (on(re.compile("^order")), {}, "on(text=re.compile('^order'))"),
        (on(str.isupper), {}, "on(text=isupper)"),
    ],
)
def test_each_condition_says_what_it_found(rule: Rule, fields: dict[str, Any], why: str) -> None:
    assert why in refusal([rule], **fields)


def test_rules_that_are_equally_near_are_shown_together_and_long_texts_are_cut() -> None:
    text = refusal([on(f"order {n}") for n in range(9)], messages=(Message(Role.USER, "x" * 10_000),))
    assert [f"rule {at}," in text for at in range(1, 6)] == [True, True, True, False, False]
    assert len(text) < 1500


def test_a_missing_answer_is_not_an_error_that_clients_retry() -> None:
    with open_platform(backend=ScriptedBackend([on("order").answer("-")])) as platform:
        with pytest.raises(InvalidInput, match="rule 1"):
            platform.chat.complete(model="scripted", messages="refund")


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ([on("a").answer("b"), "c"], r"answers\.1: is not a rule.*on\(\)\.answer"),
        ([on("a")], r"answers\.0: on\(text='a'\) has no answer"),
    ],
)
def test_a_script_that_cannot_be_meant_is_refused_when_it_is_made(script: list[Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        ScriptedBackend(script)


@each_case("answer", [42, None, b"bytes", Overloaded, Delta("x"), say(3), {"x": object()}])  # type: ignore[arg-type]
def test_what_cannot_be_said_is_refused_by_name(answer: Answer) -> None:
    with pytest.raises(NoAnswerPrepared, match="a script cannot"):
        ask(ScriptedBackend([on().answer(answer)]))
