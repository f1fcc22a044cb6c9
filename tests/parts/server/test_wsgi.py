"""WSGI: the standard library's validator watches over every exchange."""

import io
import json
from collections.abc import Iterator
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import pytest

from modelyard.compose import open_platform
from modelyard.wsgi import wsgi_app

CHAT = "/inference/v1/chat/completions"
HELLO = {"model": "echo", "messages": [{"role": "user", "content": "hello there"}]}


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Any, str, Any]]:
    with open_platform() as platform:
        yield validator(wsgi_app(platform)), platform.keys.create("acme").secret, platform


def call(
    served: Any,
    method: str,
    path: str,
    raw: bytes | None = None,
    *,
    auth: bool = True,
    take: int | None = None,
    **environ: Any,
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body; `take` reads so many pieces only."""
    app, key, _ = served
    full: dict[str, Any] = {"REQUEST_METHOD": method, "PATH_INFO": path, "SCRIPT_NAME": "", "QUERY_STRING": ""}
    if auth:
        full["HTTP_AUTHORIZATION"] = f"Bearer {key}"
    if raw is not None:
        full |= {"wsgi.input": io.BytesIO(raw), "CONTENT_LENGTH": str(len(raw)), "CONTENT_TYPE": "application/json"}
    full |= environ
    setup_testing_defaults(full)
    reported: dict[str, Any] = {}

    def start_response(status: str, headers: list[tuple[str, str]], *_: Any) -> Any:
        reported.update(status=int(status.split()[0]), headers=dict(headers))
        return lambda data: None

    body = app(full, start_response)
    pieces = iter(body)
    whole = b"".join(piece for _, piece in zip(range(take), pieces, strict=False)) if take else b"".join(pieces)
    body.close()
    return reported["status"], reported["headers"], whole


def test_a_chat_is_answered(served: Any) -> None:
    status, headers, raw = call(served, "POST", CHAT, json.dumps(HELLO).encode())
    assert status == 200
    assert headers["content-length"] == str(len(raw))
    assert json.loads(raw)["choices"][0]["message"]["content"] == "hello there"


def test_a_chat_is_streamed(served: Any) -> None:
    status, headers, raw = call(served, "POST", CHAT, json.dumps({**HELLO, "stream": True}).encode())
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert raw.endswith(b"data: [DONE]\n\n")


def test_the_catalogue_is_public_and_the_rest_is_not(served: Any) -> None:
    assert call(served, "GET", "/inference/analysis/partner/models", auth=False)[0] == 200
    status, headers, _ = call(served, "GET", "/v1/health", auth=False)
    assert (status, headers["www-authenticate"]) == (401, "Bearer")


@pytest.mark.parametrize(
    ("environ", "status"),
    [
        ({"PATH_INFO": "/v1/health", "SCRIPT_NAME": "/ai"}, 200),
        ({"PATH_INFO": "/v1/health", "SCRIPT_NAME": "/ai", "REQUEST_URI": "/ai/v1/health?x=1"}, 200),
        ({"PATH_INFO": "/v1/health", "RAW_URI": "http://host/v1/health"}, 200),
        ({"PATH_INFO": "/v1/health", "REQUEST_URI": "/rewritten/from/here"}, 200),
        ({"PATH_INFO": "/v1/mod/els", "REQUEST_URI": "/v1/mod%2Fels"}, 404),
        ({"PATH_INFO": "/v1/\xff"}, 404),
    ],
)
def test_the_path_is_read_below_the_mount_point(served: Any, environ: dict[str, str], status: int) -> None:
    assert call(served, "GET", environ.pop("PATH_INFO"), **environ)[0] == status


def test_a_body_of_unknown_length_is_read_where_the_server_marks_its_end(served: Any) -> None:
    raw = json.dumps(HELLO).encode()
    chunked = {"wsgi.input": io.BytesIO(raw), "CONTENT_TYPE": "application/json"}
    assert call(served, "POST", CHAT, **chunked, **{"wsgi.input_terminated": True})[0] == 200
    assert call(served, "POST", CHAT, **chunked)[0] == 400


@pytest.mark.parametrize("length", ["-1", "abc", "1e3"])
def test_a_length_that_is_not_a_number_is_refused(served: Any, length: str) -> None:
    app, key, platform = served
    reported = []
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": CHAT,
        "HTTP_AUTHORIZATION": f"Bearer {key}",
        "CONTENT_LENGTH": length,
        "wsgi.input": io.BytesIO(b"{}"),
    }
    list(wsgi_app(platform)(environ, lambda status, headers: reported.append(status)))
    assert reported == ["400 Bad Request"]


def test_a_body_that_ends_early_is_refused(served: Any) -> None:
    raw = json.dumps(HELLO).encode()
    status, _, answer = call(served, "POST", CHAT, raw, CONTENT_LENGTH=str(len(raw) + 1))
    assert status == 400
    assert b"ended before" in answer


def test_a_client_who_goes_away_is_noticed_at_the_next_write(served: Any) -> None:
    _, _, platform = served
    requested = {**HELLO, "messages": [{"role": "user", "content": "word " * 3000}], "stream": True}
    call(served, "POST", CHAT, json.dumps(requested).encode(), take=1)
    newest = platform.usage.list().page().items[-1]
    assert 0 < newest.completion_tokens < 3000


@pytest.mark.parts
def test_no_answer_closes_the_connection_which_is_the_servers(served: Any) -> None:
    """Where a route asks for that over ASGI. Servers refuse it of an application (PEP 3333)."""
    status, headers, _ = call(served, "POST", "/api/v1/client/config", b"{}", HTTP_CONNECTION="keep-alive")
    assert status == 200
    assert "connection" not in headers


def test_a_body_that_breaks_off_under_wsgi_is_the_clients_affair(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise ConnectionResetError

    with open_platform() as platform:
        key = platform.keys.create("acme").secret
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": CHAT,
            "CONTENT_LENGTH": "10",
            "HTTP_AUTHORIZATION": f"Bearer {key}",
            "wsgi.input": Broken(),
        }
        statuses: list[str] = []
        list(wsgi_app(platform)(environ, lambda status, headers: statuses.append(status)))
    assert statuses == ["400 Bad Request"]
    assert not caplog.records
