"""Scripts in JSON."""

import json
from pathlib import Path
from typing import Any

import pytest

from modelyard import ScriptedBackend, open_platform
from modelyard.backends import load_script
from modelyard.errors import BackendError, InvalidInput, Overloaded


def script(tmp_path: Path, rules: Any) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps(rules), encoding="utf-8")
    return path


def test_rules_of_a_file_answer_as_those_of_a_program(tmp_path: Path) -> None:
    rules = [
        {"on": {"text": "refund"}, "answer": {"say": ["Let me see.", {"call": "look_up", "arguments": {"order": 17}}]}},
        {"on": {"model": "m"}, "answer": {"json": {"total": 3}}},
    ]
    with open_platform(backend=ScriptedBackend(load_script(script(tmp_path, rules)), ["m"])) as platform:
        tools = [{"type": "function", "function": {"name": "look_up"}}]
        message = platform.chat.complete(model="m", messages="my refund", tools=tools).choices[0].message
        assert platform.chat.complete(model="m", messages="bill me").text == '{"total": 3}'
    assert (message.text, message.tool_calls[0].arguments) == ("Let me see.", '{"order": 17}')


def test_a_script_that_was_saved_with_a_byte_order_mark_is_read(tmp_path: Path) -> None:
    path = script(tmp_path, [{"answer": "hi"}])
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    with open_platform(backend=ScriptedBackend(load_script(path))) as platform:
        assert platform.chat.complete(model="scripted", messages="hello").text == "hi"


def test_it_fails_as_it_says_and_then_answers(tmp_path: Path) -> None:
    failures = [{"error": "overloaded", "retry_after": 9}, {"error": "backend_error", "message": "gone"}]
    rules = [{"answers": [*failures, "at last"]}]
    with open_platform(backend=ScriptedBackend(load_script(script(tmp_path, rules)))) as platform:
        with pytest.raises(Overloaded) as busy:
            platform.chat.complete(model="scripted", messages="hello")
        with pytest.raises(BackendError, match="gone"):
            platform.chat.complete(model="scripted", messages="hello")
        assert platform.chat.complete(model="scripted", messages="hello").text == "at last"
    assert busy.value.retry_after == 9


@pytest.mark.parametrize(
    ("rules", "place"),
    [
        ({}, "script.json: must be a list"),
        ([{"on": {"txet": "x"}, "answer": "y"}], "0.on.txet: is not known here"),
        ([{"on": {"text": 3}, "answer": "y"}], "0.on.text: must be a string"),
        ([{"on": {"text": "x"}}], "0: needs either an answer or a list"),
        ([{"answers": []}], "0.answers: must be a list with at least one"),
        ([{"answer": 3}], "0.answer.0: must be an object"),
        ([{"answer": {"call": "a", "json": {}}}], "with one of json, call, say, error"),
        ([{"answer": {"json": 3}}], "json: must be an object"),
        ([{"answer": {"call": "a", "arguments": []}}], "arguments an object"),
        ([{"answer": {"say": "a"}}], "say: must be a list"),
        ([{"answer": {"say": [{"arguments": {}}]}}], "say.0: call must be the name"),
        ([{"answer": {"error": "full"}}], "must be one of backend_error, overloaded"),
        ([{"answer": {"error": "overloaded", "retry_after": "soon"}}], "retry_after: must be a number"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(rules: Any, place: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        load_script(script(tmp_path, rules))
    assert place in str(refused.value)
