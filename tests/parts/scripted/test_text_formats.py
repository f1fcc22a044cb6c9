"""Strings of a script's answer are in the formats that its schema names."""

import json
from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from each import each_case
from modelyard import ScriptedBackend, open_platform
from modelyard.backends import call
from modelyard.backends.json_schema.instances import FORMATS
from modelyard.errors import NoAnswerPrepared

WRONG = {
    "date-time": ["yesterday", "2024-02-30T00:00:00Z", "2024-01-01T25:00:00Z"],
    "date": ["2024-13-01", "01.02.2024", "today"],
    "time": ["noon", "25:00:00"],
    "duration": ["two days", "P", "PT", "P1DT"],
    "email": ["ada", "ada@", "a b@example.com"],
    "hostname": ["-a.example", "a b", "a..b"],
    "ipv4": ["256.0.0.1", "1.2.3", "::1"],
    "ipv6": ["1.2.3.4", "g::"],
    "uri": ["no address", "/path"],
    "uuid": ["123", "0" * 32],
}


def answered(text: Any, name: str, unchecked: bool = False) -> str:
    schema = {"type": "object", "properties": {"at": {"type": ["string", "null"], "format": name}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with open_platform(backend=ScriptedBackend([json.dumps({"at": text})], unchecked=unchecked)) as platform:
        answer = platform.chat.complete(model="scripted", messages="go", response_format=wanted)
    return str(json.loads(answer.text)["at"])


@each_case(("name", "text"), [(name, text) for name, texts in WRONG.items() for text in texts])
def test_what_is_not_in_its_format_is_refused(name: str, text: str) -> None:
    with pytest.raises(NoAnswerPrepared, match="valid under its schema 'x'"):
        answered(text, name)
    assert answered(text, name, unchecked=True) == text


@each_case("name", FORMATS)
def test_what_an_echo_makes_up_is_in_its_format(name: str) -> None:
    assert answered(FORMATS[name], name) == FORMATS[name]
    assert answered(None, name) == "None"


def test_a_format_that_nobody_knows_says_nothing() -> None:
    assert answered("anything", "colour") == "anything"


@given(st.datetimes(), st.uuids(), st.booleans())
def test_what_python_writes_is_in_its_format(moment: datetime, id: UUID, has_zone: bool) -> None:
    moment = moment.replace(tzinfo=UTC) if has_zone else moment
    parts: list[tuple[str, datetime | date | time]] = [
        *(("date-time", moment), ("date", moment.date()), ("time", moment.timetz()))
    ]
    for name, value in parts:
        assert answered(value.isoformat(), name) == value.isoformat()
    assert answered(str(id), "uuid") == str(id)


def test_arguments_of_strict_tools_are_held_against_their_formats() -> None:
    parameters = {"properties": {"day": {"type": "string", "format": "date"}}}
    tools = [{"type": "function", "function": {"name": "book", "strict": True, "parameters": parameters}}]
    for day, fits in (("2024-02-29", True), ("2023-02-29", False)):
        with open_platform(backend=ScriptedBackend([call("book", day=day)])) as platform:
            if fits:
                platform.chat.complete(model="scripted", messages="go", tools=tools)
                continue
            with pytest.raises(NoAnswerPrepared, match="arguments of 'book'"):
                platform.chat.complete(model="scripted", messages="go", tools=tools)
