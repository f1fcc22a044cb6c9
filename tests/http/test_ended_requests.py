"""A line of the access log, an event and a count for each request, with no secret in any of them."""

import logging
from typing import Any

import pytest

from http_client import Client, client_of
from modelyard import RequestAnswered, open_platform
from modelyard.asgi import Request
from modelyard.domain.events import CALLER_LEFT, CompletionBooked
from modelyard.http.endpoint import Endpoint
from modelyard.http.error_responses import report


@pytest.fixture
def seen() -> list[Any]:
    return []


@pytest.fixture(params=[False, True], ids=["sync", "async"])
def client(request: pytest.FixtureRequest, seen: list[Any]) -> Any:
    with open_platform(observer=seen.append) as platform:
        yield client_of(platform, asynchronous=request.param)


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "modelyard.access"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_completion_has_a_line_with_what_it_used(
    client: Client, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    with caplog.at_level(logging.INFO, "modelyard.access"):
        client.chat("one two", stream=stream, headers=[("x-request-id", "mine-1")])
    (line,) = lines(caplog)
    (key,) = client.platform.keys.list()
    known = {
        "request": "mine-1",
        "method": "POST",
        "route": "/inference/v1/chat/completions",
        "status": 200,
        "entity": "acme",
        "key": key.id,
        "model": "echo",
    }
    assert known.items() <= line.access.items()  # type: ignore[attr-defined]
    assert line.access["completion_tokens"] > 0  # type: ignore[attr-defined]
    assert "request=mine-1 method=POST route=/inference/v1/chat/completions status=200" in line.getMessage()
    assert client.key not in line.getMessage()
    assert "one two" not in line.getMessage()


def test_nothing_is_written_unless_the_host_wants_it(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.chat()
    assert lines(caplog) == []


def test_the_observer_knows_which_request_asked_for_a_completion(client: Client, seen: list[Any]) -> None:
    client.chat(headers=[("x-request-id", "mine-2")])
    client.send("GET", "/nowhere", key="", check=False)
    booked, answered, lost = seen
    assert isinstance(booked, CompletionBooked)
    assert (booked.request_id, booked.status) == ("mine-2", 200)
    assert isinstance(answered, RequestAnswered)
    assert (answered.request_id, answered.status, answered.entity) == ("mine-2", 200, "acme")
    assert (answered.route, answered.key_id) == ("/inference/v1/chat/completions", booked.key_id)
    assert 0 <= booked.duration <= answered.duration
    assert (lost.route, lost.status, lost.entity, lost.key_id) == ("", 404, "", "")


@pytest.mark.parts
def test_an_upload_s_address_is_not_written(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "modelyard.access"):
        client.send("PUT", "/uploads/files/very-secret", raw=b"x", key="", check=False)
    (line,) = lines(caplog)
    assert "very-secret" not in line.getMessage() + str(line.access)  # type: ignore[attr-defined]
    assert line.access["route"].startswith("/uploads/files/{")  # type: ignore[attr-defined]


def test_a_client_who_leaves_in_the_middle_of_a_stream_has_left() -> None:
    seen: list[Any] = []
    with open_platform(observer=seen.append) as platform:
        endpoint, key = Endpoint(platform), platform.keys.create("acme").secret
        body = b'{"model": "echo", "stream": true, "messages": [{"role": "user", "content": "a b c"}]}'
        headers = [("authorization", f"Bearer {key}")]
        response = endpoint.handle(Request("POST", "/inference/v1/chat/completions", "", headers, iter([body])))
        response.body.close()  # type: ignore[union-attr]
    assert [event.status for event in seen if isinstance(event, RequestAnswered)] == [CALLER_LEFT]


def test_a_failure_is_reported_once_for_a_request(caplog: pytest.LogCaptureFixture) -> None:
    failure = RuntimeError("broken")
    for request in ("one", "one", "two"):
        report(failure, request)
    assert [record.getMessage() for record in caplog.records] == [
        "request one failed: RuntimeError",
        "request two failed: RuntimeError",
    ]
