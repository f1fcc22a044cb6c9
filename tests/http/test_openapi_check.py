"""The check of exchanges against the OpenAPI document has teeth: each way to break the wire is caught."""

import asyncio
import json
from typing import Any

import pytest

from each import each_case
from http_client import Client
from modelyard.asgi import asgi_app
from modelyard.compose import open_platform
from openapi_check import Checked, described

CHAT, MODELS = "/v1/chat/completions", "/v1/preview/models"
ASKED = {"model": "echo", "messages": [{"role": "user", "content": "hi there"}]}


def check(
    method: str, path: str, raw: bytes, *, query: str = "", body: Any = None, status: int = 200, media: str = ""
) -> None:
    sent = b"" if body is None else json.dumps(body).encode()
    described().check(method, path, query, sent, status, media or "application/json", raw)


@pytest.fixture(scope="module")
def completion(client: Client) -> Any:
    return client.send("POST", CHAT, ASKED).json


@pytest.fixture(scope="module")
def stream(client: Client) -> bytes:
    return client.send("POST", CHAT, ASKED | {"stream": True}).raw


def test_what_the_platform_answers_is_as_it_is_described(completion: Any, stream: bytes) -> None:
    check("POST", CHAT, json.dumps(completion).encode(), body=ASKED)
    check("POST", CHAT, stream, body=ASKED, media="text/event-stream; charset=utf-8")


@pytest.mark.parametrize(
    "change", [{"novel": 1}, {"id": 5}, {"choices": None}, {"usage": {"prompt_tokens": "1"}}, {"created": None}]
)
def test_a_member_that_is_wrong_or_not_described_is_caught(completion: Any, change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match=next(iter(change))):
        check("POST", CHAT, json.dumps(completion | change).encode(), body=ASKED)


def test_a_member_that_is_missing_is_caught(completion: Any) -> None:
    with pytest.raises(AssertionError, match="'object' is a required property"):
        check("POST", CHAT, json.dumps({k: v for k, v in completion.items() if k != "object"}).encode(), body=ASKED)


def test_each_event_of_a_stream_is_checked_when_it_is_whole(stream: bytes) -> None:
    wrong = stream.replace(b'"object":', b'"objects":', 2).replace(b'"objects":', b'"object":', 1)
    answer = described().answer("POST", CHAT, 200, "text/event-stream")
    at = wrong.index(b"\n\n", wrong.index(b'"objects":')) + 2
    for byte in wrong[: at - 1]:
        answer.resume(bytes([byte]))
    with pytest.raises(AssertionError, match="objects"):
        answer.resume(wrong[at - 1 : at])


@pytest.mark.parametrize(
    "wrong", [b'data: {"error": {"message": 5}}\n\n', b"event: x\n\n", b"data: half", b'data: {"error": "why"}\n\n']
)
def test_an_event_that_is_none_is_caught(stream: bytes, wrong: bytes) -> None:
    with pytest.raises(AssertionError):
        check("POST", CHAT, stream + wrong, body=ASKED, media="text/event-stream")


def test_each_line_is_checked() -> None:
    with pytest.raises(AssertionError, match="evaluation_run_id"):
        check("GET", "/v2/acme/p/evaluation_runs", b'{"no": 1}\n', media="application/jsonl")


@each_case(
    ("method", "path", "status", "media"),
    [
        ("POST", CHAT, 201, "application/json"),
        ("POST", CHAT, 200, "text/plain"),
        ("POST", CHAT, 500, "text/html"),
        ("GET", "/v1/nothing", 200, "application/json"),
    ],
)
def test_a_status_a_media_type_or_a_path_that_is_not_described_is_caught(
    method: str, path: str, status: int, media: str
) -> None:
    with pytest.raises(AssertionError):
        check(method, path, b"{}", status=status, media=media)


@each_case(
    ("method", "path", "query", "body"),
    [
        ("POST", MODELS, "", {"project": 5, "name": "m", "base_model": "b"}),
        ("POST", MODELS, "", {"name": "m"}),
        ("POST", MODELS, "", None),
        ("GET", MODELS, "limit=0", None),
        ("GET", MODELS, "order=up", None),
        ("DELETE", "/v2/acme/p/evaluation_runs", "", None),
    ],
)
def test_a_request_that_should_not_have_been_accepted_is_caught(method: str, path: str, query: str, body: Any) -> None:
    with pytest.raises(AssertionError):
        described().check_request(method, path, query, b"" if body is None else json.dumps(body).encode())


def test_beneath_a_server_a_wrong_answer_is_not_sent_and_a_wrong_event_ends_the_stream() -> None:
    def spoilt(raw: bytes, media: bytes) -> list[Any]:
        async def app(scope: Any, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", media)]})
            for at in range(0, len(raw), 7):
                await send({"type": "http.response.body", "body": raw[at : at + 7], "more_body": True})
            await send({"type": "http.response.body"})

        checked, sent = Checked(app), []
        with pytest.raises(AssertionError):
            asyncio.run(passed_on(checked, sent))
        assert len(checked.faults) == 1
        return sent

    assert spoilt(b'{"wrong": 1}', b"application/json") == []
    begun = spoilt(b'data: [DONE]\n\ndata: {"wrong": 1}\n\ndata: [DONE]\n\n', b"text/event-stream")
    reported = b"".join(message.get("body", b"") for message in begun)
    assert reported.startswith(b"data: [DONE]\n\n")
    assert len(begun) < 7


def test_beneath_a_server_what_is_right_goes_through_as_it_is() -> None:
    with open_platform() as platform:
        checked, sent = Checked(asgi_app(platform)), []
        asyncio.run(passed_on(checked, sent, platform.keys.create("acme").secret))
    assert checked.faults == []
    assert sent[0]["status"] == 200
    assert json.loads(sent[1]["body"])["object"] == "chat.completion"


async def passed_on(app: Any, sent: list[Any], key: str = "") -> None:
    async def receive() -> Any:
        return {"type": "http.request", "body": json.dumps(ASKED).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"authorization", b"Bearer " + key.encode())]
    scope = {"type": "http", "method": "POST", "path": f"/ai{CHAT}", "root_path": "/ai"}
    await app(scope | {"raw_path": f"/ai{CHAT}".encode(), "query_string": b"", "headers": headers}, receive, send)
