"""A script's answer is held against what the request demands."""

from typing import Any

import pytest

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import call, say
from modelyard.errors import BackendError, NoAnswerPrepared

SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "invoice", "schema": {"type": "object", "required": ["total"]}},
}
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("look_up", "pay")]
PAY = {"type": "function", "function": {"name": "pay"}}
OBJECT = {"type": "json_object"}


def ask(answer: Any, unchecked: bool = False, **options: Any) -> str:
    with open_platform(backend=ScriptedBackend([answer], unchecked=unchecked)) as platform:
        return platform.chat.complete(model="scripted", messages="go", **options).text


@pytest.mark.parametrize(
    ("answer", "options", "said"),
    [
        ('{"sum": 3}', {"response_format": SCHEMA}, "valid under its schema 'invoice'"),
        ("three", {"response_format": SCHEMA}, "wants JSON"),
        ("[]", {"response_format": OBJECT}, "wants a JSON object"),
        ("Paid.", {"tools": TOOLS, "tool_choice": "required"}, "insists on a call of a tool"),
        (call("look_up"), {"tools": TOOLS, "tool_choice": PAY}, "insists on a call of pay"),
        (call("pay"), {"tools": TOOLS, "tool_choice": "none"}, "wants no tool called, and this calls pay"),
        (lambda request: "three", {"response_format": SCHEMA}, "wants JSON"),
    ],
)
def test_what_a_server_could_not_have_sent_is_refused_unless_it_is_meant(
    answer: Any, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(NoAnswerPrepared, match=said):
        ask(answer, **options)
    ask(answer, unchecked=True, **options)


@pytest.mark.parametrize(
    ("answer", "options"),
    [
        ({"total": 3}, {"response_format": SCHEMA}),
        (call("look_up"), {"tools": TOOLS, "response_format": SCHEMA}),
        (say('{"tot', finish="length"), {"response_format": SCHEMA}),
        ('{"total": 3}', {"response_format": SCHEMA, "max_tokens": 1}),
        (call("pay"), {"tools": TOOLS, "tool_choice": "required"}),
    ],
    ids=["valid", "a call in its place", "cut by the script", "cut by the limit", "called"],
)
def test_what_fits_or_is_cut_is_answered(answer: Any, options: dict[str, Any]) -> None:
    ask(answer, **options)


def test_an_answer_that_breaks_off_is_passed_on_as_far_as_it_came() -> None:
    script = ScriptedBackend([say('{"tot', BackendError("the cable was cut"))])
    with open_platform(backend=script) as platform:
        stream = platform.chat.stream(model="scripted", messages="go", response_format=SCHEMA)
        assert next(stream).text == '{"tot'
        with pytest.raises(BackendError, match="cable"):
            next(stream)
