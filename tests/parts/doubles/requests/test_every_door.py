"""A watched platform is as strict through every door of HTTP, whichever was opened first."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from free_ports import free_ports
from modelyard import Platform, ScriptedBackend, open_platform
from modelyard.asgi import Endpoint, Request, asgi_app
from modelyard.backends import on
from modelyard.testing import HttpxTransport, served, watch_requests
from modelyard.wsgi import wsgi_app

CHAT = "/inference/v1/chat/completions"
ASK: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
WRONG: Any = {**ASK, "tool_choice": "auto"}
MISSED: Any = {"model": "m", "messages": [{"role": "user", "content": "Who are you?"}]}
ALONE = "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."

Send = Callable[[Any, Any], httpx.Response]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with open_platform(backend=ScriptedBackend([on("hello").answer("Hi.")], models=["m"])) as platform:
        yield platform


def _client(transport: httpx.BaseTransport) -> Iterator[Send]:
    with httpx.Client(transport=transport, base_url="http://any.invalid") as client:
        yield lambda body, headers: client.post(CHAT, json=body, headers=headers)


@contextmanager
def in_process(platform: Platform) -> Iterator[Send]:
    yield from _client(HttpxTransport(platform))


@contextmanager
def by_wsgi(platform: Platform) -> Iterator[Send]:
    yield from _client(httpx.WSGITransport(wsgi_app(platform)))


@contextmanager
def by_asgi(platform: Platform, **options: Any) -> Iterator[Send]:
    app = asgi_app(platform, **options)

    async def post(body: Any, headers: Any) -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://any.invalid") as client:
            return await client.post(CHAT, json=body, headers=headers)

    yield lambda body, headers: asyncio.run(post(body, headers))


@contextmanager
def beside_a_dashboard(platform: Platform) -> Iterator[Send]:
    with by_asgi(platform, dashboard=True) as send:
        yield send


@contextmanager
def by_socket(platform: Platform) -> Iterator[Send]:
    with served(platform) as url, httpx.Client(base_url=url) as client:
        yield lambda body, headers: client.post(CHAT, json=body, headers=headers)


DOORS: Any = [in_process, by_wsgi, by_asgi, beside_a_dashboard, pytest.param(by_socket, marks=pytest.mark.servers)]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("first", ["door", "watch"])
def test_a_request_is_refused_and_noted_once(platform: Platform, door: Any, first: str) -> None:
    headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
    if first == "watch":
        watch_requests(platform, "openai")
    with door(platform) as send:
        log = watch_requests(platform, "openai")
        refused = send(WRONG, headers)
        error = {"message": ALONE, "type": "invalid_request_error", "param": "tool_choice", "code": None}
        assert (refused.status_code, refused.json()) == (400, {"error": error})
        assert int(refused.headers["content-length"]) == len(refused.content)
        assert send(ASK, headers).status_code == 200
        assert "data: [DONE]" in send({**ASK, "stream": True}, headers).text
        assert send(WRONG, {"authorization": "Bearer wrong"}).status_code == 401
        assert send(MISSED, headers).status_code == 400
    assert [one.status for one in log] == [400, 200, 200, 401, 400]
    assert [one.path for one in log] == [CHAT] * 5
    assert log.sent == [WRONG, ASK, {**ASK, "stream": True}, WRONG, MISSED]
    assert len(log.swallowed) == 2
    assert "Who are you?" in log.swallowed[1]


def test_what_is_refused_goes_to_the_log_in_a_line(platform: Platform, caplog: pytest.LogCaptureFixture) -> None:
    watch_requests(platform)
    headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
    with caplog.at_level("INFO", "modelyard.requests"), in_process(platform) as send:
        send(ASK, headers)
        send({**WRONG, "messages": [{"role": "user", "content": "hello\nsk-proj-abcdefghijklmnop1234"}]}, headers)
    (record,) = caplog.records
    line = record.getMessage()
    assert line.startswith(f"refused: 400 POST {CHAT} m 'hello")
    assert line.endswith(ALONE)
    assert "\n" not in line
    assert "sk-proj" not in line


JSON: Any = [("content-type", "application/json")]


def _broken() -> Iterator[bytes]:
    yield b"{"
    raise ValueError("the cable was cut")


async def _abroken() -> AsyncIterator[bytes]:
    yield b"{"
    raise ValueError("the cable was cut")


def test_a_body_that_breaks_off_is_as_on_a_platform_that_is_not_watched(platform: Platform) -> None:
    endpoint = Endpoint(platform)
    headers = [*JSON, ("authorization", f"Bearer {platform.keys.create().secret}")]

    def statuses() -> list[int]:
        at_once = endpoint.handle(Request("POST", CHAT, "", headers, _broken())).status
        return [at_once, asyncio.run(endpoint.ahandle(Request("POST", CHAT, "", headers, _abroken()))).status]

    before = statuses()
    log = watch_requests(platform)
    assert statuses() == before
    assert [(one.body, one.status) for one in log] == [(None, status) for status in before]


FACTORY = """
from modelyard import ScriptedBackend, open_platform
from modelyard.backends import on
from modelyard.testing import watch_requests

def platform():
    opened = open_platform(backend=ScriptedBackend([on("hello").answer("Hi.")], models=["m"]))
    watch_requests(opened, profile="openai")
    return opened
"""


@pytest.mark.slow
@pytest.mark.servers
def test_a_factory_is_served_as_strictly_and_its_log_names_what_was_refused(tmp_path: Path) -> None:
    (tmp_path / "strict_yard.py").write_text(FACTORY, encoding="utf-8")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "modelyard", "serve", "--factory", "strict_yard:platform", "--port", str(port)]
    with subprocess.Popen(
        [*command, "--anonymous", "local"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        try:
            assert server.stderr is not None
            said = next(line for line in server.stderr if "running on" in line.lower())
            address = f"http://127.0.0.1:{port}{CHAT}"
            refused, missed = (httpx.post(address, json=body) for body in (WRONG, MISSED))
            assert (refused.status_code, refused.json()["error"]["message"]) == (400, ALONE)
            assert missed.status_code == 400
        finally:
            server.send_signal(signal.SIGINT)
            rest = server.stderr.read() if server.stderr is not None else ""
    assert f"refused: 400 POST {CHAT} m 'hello' {ALONE}" in rest, said
    assert f"refused: 400 POST {CHAT} m 'Who are you?'" in rest
