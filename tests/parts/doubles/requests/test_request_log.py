"""The requests of a test: noted through every door, and what was refused or missed is found out."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelyard import EchoBackend, Platform, Router, ScriptedBackend, open_platform
from modelyard.backends import on, say
from modelyard.errors import ContextLengthExceeded, InvalidInput, NoAnswerPrepared, Overloaded, Problem
from modelyard.parts.doubles.requests.differences import differences
from modelyard.parts.doubles.requests.logged_request import LoggedRequest, words_of
from modelyard.testing import (
    Faults,
    HttpxTransport,
    async_openai_client,
    expect,
    intercept,
    openai_client,
    served,
    use_cassette,
    watch_requests,
)

ASK: Any = [{"role": "user", "content": "Where is my refund?"}]


@pytest.fixture
def scripted() -> Iterator[Platform]:
    backend = ScriptedBackend([on("refund").answer("Here.")], models=["support"])
    with open_platform(backend=backend) as platform:
        yield platform


def ask_in_process(platform: Platform, **body: Any) -> None:
    with openai_client(platform, max_retries=0) as client:
        client.chat.completions.create(**body)


def ask_async(platform: Platform, **body: Any) -> None:
    asyncio.run(async_openai_client(platform, max_retries=0).chat.completions.create(**body))


def ask_intercepted(platform: Platform, **body: Any) -> None:
    with intercept(platform), openai.OpenAI(api_key="sk-any", max_retries=0) as client:
        client.chat.completions.create(**body)


def ask_served(platform: Platform, **body: Any) -> None:
    key = platform.keys.create().secret
    with served(platform) as url, openai.OpenAI(base_url=f"{url}/inference/v1", api_key=key, max_retries=0) as client:
        client.chat.completions.create(**body)


DOORS: Any = [
    ask_in_process,
    ask_async,
    ask_intercepted,
    pytest.param(ask_served, marks=pytest.mark.servers),
]
each_door = pytest.mark.parametrize("ask", DOORS)


@each_door
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_noted_with_its_answer(scripted: Platform, ask: Any, stream: bool) -> None:
    log = watch_requests(scripted)
    ask(scripted, model="support", messages=ASK, stream=stream)
    (request,) = log
    assert (request.method, request.status, request.model) == ("POST", 200, "support")
    assert request.path.endswith("/chat/completions")
    assert request.text == "Where is my refund?"
    assert [body["messages"] for body in log.sent] == [ASK]
    assert log.swallowed == []
    log.check()


@each_door
def test_a_miss_that_is_swallowed_is_found(scripted: Platform, ask: Any) -> None:
    log = watch_requests(scripted)
    with pytest.raises(openai.BadRequestError):
        ask(scripted, model="support", messages=[{"role": "user", "content": "Hello?"}])
    with pytest.raises(AssertionError, match=r"swallowed(.|\n)*400 POST .*support 'Hello\?'\n.*no rule of the script"):
        log.check()
    assert len(log.swallowed) == 1


def test_a_miss_in_python_is_found(scripted: Platform) -> None:
    log = watch_requests(scripted)
    with pytest.raises(NoAnswerPrepared):
        scripted.chat.complete(model="support", messages="Hello?")
    with pytest.raises(AssertionError, match="no rule of the script answers this request"):
        log.check()
    log.allow_refusals(400)
    log.check()


def test_a_miss_of_one_of_several_backends_and_of_a_disturbed_one_is_found() -> None:
    for wrap in (lambda one: Router([EchoBackend(), one]), Faults().backend):
        with open_platform(backend=wrap(ScriptedBackend([], models=["support"]))) as platform:
            log = watch_requests(platform)
            with pytest.raises(NoAnswerPrepared):
                platform.chat.complete(model="support", messages="Hello?")
            assert [said for said in log.swallowed if "the script is used up" in said]


def test_a_miss_of_a_cassette_is_found(tmp_path: Path) -> None:
    recorded = use_cassette(tmp_path / "c.jsonl", EchoBackend(["m"]), mode="new")
    with open_platform(backend=recorded) as platform:
        platform.chat.complete(model="m", messages="Hello")
    with open_platform(backend=use_cassette(tmp_path / "c.jsonl")) as platform:
        log = watch_requests(platform)
        with pytest.raises(NoAnswerPrepared):
            platform.chat.complete(model="m", messages="Hi")
        (miss,) = log.swallowed
        assert "--yard-record=new" in miss


def too_long() -> ContextLengthExceeded:
    return ContextLengthExceeded([Problem(("messages",), "too long by 7 tokens", "context_length_exceeded")])


def raising(_: Any) -> str:
    raise too_long()


@pytest.mark.parametrize("answer", [too_long(), say(too_long()), raising])
def test_what_the_script_plans_is_no_fault(answer: Any) -> None:
    with open_platform(backend=ScriptedBackend([answer], models=["m"])) as platform:
        log = watch_requests(platform)
        with pytest.raises(openai.BadRequestError, match="too long by 7"):
            ask_in_process(platform, model="m", messages=ASK)
        assert (log[0].status, log.swallowed) == (400, [])


def test_what_is_scheduled_is_no_fault() -> None:
    faults = Faults()
    faults.completion(InvalidInput.at("messages", msg="a planned refusal"))
    faults.completion(Overloaded("busy"), at=2)
    with faults.open_platform() as platform:
        log = watch_requests(platform)
        log.faults = faults
        for _ in range(2):
            with pytest.raises(openai.APIStatusError):
                ask_in_process(platform, model="echo", messages=ASK)
        assert ([one.status for one in log], log.swallowed) == ([400, 503], [])


def test_refusals_are_allowed_by_status(scripted: Platform) -> None:
    log = watch_requests(scripted)
    with pytest.raises(openai.NotFoundError):
        ask_in_process(scripted, model="other", messages=ASK)
    with pytest.raises(openai.BadRequestError):
        ask_in_process(scripted, model="support", messages=ASK, temperature=9)
    assert len(log.swallowed) == 2
    log.allow_refusals(404)
    assert len(log.swallowed) == 1
    log.allow_refusals()
    assert log.swallowed == []


def test_whether_a_thing_is_there_may_be_asked_but_not_for_a_route_that_is_not(scripted: Platform) -> None:
    log = watch_requests(scripted)
    with openai_client(scripted, base_url="http://any.invalid/v1", max_retries=0) as client:
        for ask in (lambda: client.models.retrieve("gone"), lambda: client.vector_stores.list()):
            with pytest.raises(openai.NotFoundError):
                ask()
    assert [one for one in log.swallowed if "models" in one.partition("\n")[0]] == []
    assert len(log.swallowed) == 1


def test_a_platform_that_is_not_watched_keeps_nothing_and_says_so(scripted: Platform) -> None:
    ask_in_process(scripted, model="support", messages=ASK)
    with pytest.raises(InvalidInput, match=r"watch_requests\(platform\)"):
        expect(scripted).requests()
    assert len(watch_requests(scripted)) == 0


def test_keys_are_shown_to_nobody(scripted: Platform) -> None:
    log = watch_requests(scripted)
    secret = "sk-proj-abcdefghijklmnop1234"
    ask_in_process(scripted, model="support", messages=[{"role": "user", "content": f"refund for {secret}"}])
    assert secret not in str(log)
    assert "[redacted]" in str(log)


def test_a_body_that_is_no_json_passes_unread(scripted: Platform) -> None:
    log = watch_requests(scripted)
    key = scripted.keys.create().secret
    with httpx.Client(transport=HttpxTransport(scripted), base_url="http://any.invalid") as client:
        form = {"file": ("a.jsonl", b"{}\n")}
        headers = {"authorization": f"Bearer {key}"}
        client.post("/v1/files", data={"purpose": "batch"}, files=form, headers=headers)
        client.post("/v1/chat/completions", content=b"{", headers={**headers, "content-type": "application/json"})
    assert [(one.body, one.status) for one in log] == [(None, 200), (None, 400)]


def test_expectations_say_what_differs(scripted: Platform) -> None:
    log = watch_requests(scripted)
    ask_in_process(scripted, model="support", messages=[{"role": "system", "content": "Be kind."}, *ASK], temperature=0)
    expect(scripted).requests("Where is my refund?")
    expect(scripted).requests({"model": "support", "messages": ["Be kind.", {"role": "user"}], "temperature": 0})
    assert log == [{"path": "/inference/v1/chat/completions", "status": 200}]
    assert log == list(log)
    assert log != []
    with pytest.raises(AssertionError) as wrong:
        expect(scripted).requests({"model": "sales", "messages": ["Be rude.", "?"], "temperature": False, "n": 2})
    assert str(wrong.value).splitlines() == [
        "the requests differ:",
        "request 1, POST /inference/v1/chat/completions:",
        "  model: expected 'sales', sent 'support'",
        "  messages[0]: expected 'Be rude.', sent 'Be kind.'",
        "  messages[1]: expected '?', sent 'Where is my refund?'",
        "  temperature: expected False, sent 0",
        "  n: expected 2, not sent",
    ]
    with pytest.raises(AssertionError, match="2 requests were expected, and 1 were sent"):
        expect(scripted).requests("Where is my refund?", "And now?")
    with pytest.raises(AssertionError, match=r"messages: expected 1 items, sent 2"):
        expect(scripted).requests({"messages": ["Be kind."]})


def test_an_expectation_may_be_any_object_with_its_own_equality(scripted: Platform) -> None:
    log = watch_requests(scripted)
    with openai_client(scripted) as client:
        client.models.list()
    ask_in_process(scripted, model="support", messages=ASK)
    assert log[0].method == "GET"
    assert log == list(log)
    assert log == [None, mock.ANY]
    assert log == [mock.ANY, {"messages": mock.ANY}]
    assert log != [{"a": 1}, mock.ANY]
    assert log != [None, {"n": mock.ANY}]
    assert differences([7, mock.ANY], list(log)) == [
        "request 1, GET /inference/v1/models:",
        "  body: expected 7, sent None",
    ]


CALL: Any = {"id": "a", "type": "function", "function": {"name": "look", "arguments": '{"order": 17, "why": "x"}'}}
USED: Any = {"type": "tool_use", "name": "look", "input": {"order": 17, "why": "x"}}
CALLS: Any = {
    "chat": ({"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL, CALL]}]}, 2),
    "messages": ({"messages": [{"role": "assistant", "content": [USED]}]}, 1),
    "responses": ({"input": [{"type": "function_call", **CALL["function"]}]}, 1),
}


@pytest.mark.parametrize("kind", CALLS)
def test_where_the_last_message_is_a_call_its_name_and_arguments_are_shown(kind: str) -> None:
    body, times = CALLS[kind]
    line = str(LoggedRequest("POST", "/v1/x", {"model": "m", **body}, 400, "no answer"))
    assert line.splitlines()[0] == "400 POST /v1/x m " + ", ".join(["look('order': 17, 'why': 'x')"] * times)
    assert line.splitlines()[1:] == ["    no answer"]


def test_arguments_that_are_no_json_are_shown_as_they_are() -> None:
    wrong = {**CALL, "function": {"name": "look", "arguments": "{order"}}
    body = {"model": "m", "messages": [{"role": "assistant", "tool_calls": [wrong]}]}
    assert str(LoggedRequest("POST", "/v1/x", body, 400)).endswith("look('{order')")


SECRET = "sk-proj-abcdefghijklmnop1234"


@given(st.integers(0, 320), st.sampled_from(["", " ", "\n", "\t", "'"]), st.booleans())
def test_no_part_of_a_key_is_shown(length: int, before: str, nested: bool) -> None:
    """Wherever it lies in the text, also where that is cut."""
    text = "-" * length + before + SECRET
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "metadata": {"a": {text: text} if nested else [text]},
    }
    request = LoggedRequest("POST", f"/v1/{SECRET}", body, 400, f"refused: {text}")
    others: Any = [
        "other",
        text + "?",
        {"metadata": {"a": 1}},
        {"metadata": 1, "messages": [text + "?"]},
        [],
        {SECRET: 1},
    ]
    shown = [str(request), repr(request), *(line for one in others for line in differences([one], [request]))]
    shown += differences([], [request])
    for line in shown:
        assert SECRET[:8] not in line


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=2)
            | st.dictionaries(
                st.sampled_from(
                    ["messages", "input", "content", "tool_calls", "function", "name", "arguments", "prompt", "text"]
                ),
                inner,
            )
        ),
        max_leaves=12,
    )
)
def test_any_body_is_shown(body: Any) -> None:
    assert str(LoggedRequest("POST", "/v1/x", body, 400)).startswith("400 POST")


@given(st.integers(0, 320), st.sampled_from(["name", "arguments", "value"]))
def test_no_part_of_a_key_is_shown_of_a_call(length: int, place: str) -> None:
    text = "-" * length + " " + SECRET
    given_ = json.dumps({"a": text}) if place == "value" else text if place == "arguments" else "{}"
    called = {"name": text if place == "name" else "look", "arguments": given_}
    request = LoggedRequest("POST", "/v1/x", {"messages": [{"tool_calls": [{"function": called}]}]}, 400)
    assert SECRET[:8] not in str(request)


JSON = st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)
PROBLEM = st.fixed_dictionaries({"loc": JSON, "msg": JSON})


@given(st.lists(PROBLEM | JSON, min_size=1))
def test_whatever_the_problems_of_an_error_are_it_has_words(problems: Any) -> None:
    assert isinstance(words_of(json.dumps({"detail": problems}).encode()), str)


def test_places_of_an_error_may_be_numbers() -> None:
    assert words_of(b'{"detail":[{"loc":["body",0,"role"],"msg":"is wrong"}]}') == "body.0.role: is wrong"
