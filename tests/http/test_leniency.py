"""A caller may ask to have members ignored that are not known: the answer names them in a header."""

from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import Settings, open_platform
from modelyard.formats.json import dumps

PATH = "/v1/chat/completions"
LENIENT = [("x-modelyard-unknown", "ignore")]
TOOL = {"type": "function", "function": {"name": "f", "banana": 1}, "strcit": True}
ASKED: dict[str, Any] = {
    "model": "echo",
    "messages": [{"role": "user", "content": "hi", "mood": "good"}],
    "tools": [TOOL],
    "née": 1,
    "a\r\nset-cookie: b": 1,
}


def test_what_is_ignored_is_named_in_a_header(client: Client) -> None:
    refused = client.send("POST", PATH, ASKED, check=False)
    assert (refused.status, "x-modelyard-ignored" in refused.headers) == (400, False)
    answer = client.send("POST", PATH, ASKED, headers=LENIENT)
    assert answer.json["choices"][0]["message"]["content"] == "hi"
    assert sorted(answer.headers["x-modelyard-ignored"].split(", ")) == [
        "a%0D%0Aset-cookie%3A%20b",
        "messages.0.mood",
        "n%C3%A9e",
        "tools.0.function.banana",
        "tools.0.strcit",
    ]
    known = {"model": "echo", "messages": [{"role": "user", "content": "hi"}]}
    assert "x-modelyard-ignored" not in client.send("POST", PATH, known, headers=LENIENT).headers


def test_a_stream_names_it_too(client: Client) -> None:
    answer = client.send("POST", PATH, {**ASKED, "stream": True}, headers=LENIENT)
    assert answer.events[-1] == "[DONE]"
    assert "nvext" not in answer.headers["x-modelyard-ignored"].split(", ")
    assert "tools.0.strcit" in answer.headers["x-modelyard-ignored"].split(", ")


def test_what_is_wrong_otherwise_is_still_refused(client: Client) -> None:
    refused = client.send("POST", PATH, {**ASKED, "temperature": 9}, check=False, headers=LENIENT)
    assert (refused.status, refused.json["error"]["param"]) == (400, "temperature")
    assert "tools.0.strcit" in refused.headers["x-modelyard-ignored"]
    odd = client.send("POST", PATH, ASKED, check=False, headers=[("x-modelyard-unknown", "sometimes")])
    assert (odd.status, "must be 'refuse' or 'ignore'" in odd.json["error"]["message"]) == (400, True)


def test_training_ignores_nothing(client: Client) -> None:
    body = {"project": "p", "name": "m", "base_model": "echo", "retrun_existing": True}
    assert client.send("POST", "/v1/preview/models", body, check=False, headers=LENIENT).status == 422


def test_a_host_may_ask_for_all_and_a_request_for_itself() -> None:
    with open_platform(settings=Settings(unknown_members="ignore")) as platform:
        client = client_of(platform)
        assert client.send("POST", PATH, ASKED).status == 200
        strict = [("x-modelyard-unknown", "refuse")]
        assert client.send("POST", PATH, ASKED, check=False, headers=strict).status == 400


@pytest.mark.slow
@pytest.mark.parametrize("many", [2, 150, 1000])
def test_any_number_is_ignored_and_the_header_stays_short(client: Client, many: int) -> None:
    body = {"model": "echo", "messages": [{"role": "user", "content": "hi"}], **{f"x{at}": 1 for at in range(many)}}
    answer = client.send("POST", PATH, body, headers=LENIENT)
    assert answer.status == 200
    assert len(answer.headers["x-modelyard-ignored"]) <= 4096
    assert len(dumps(body)) > many
