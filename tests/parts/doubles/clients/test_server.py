"""A platform on a port of loopback: it answers at once, several side by side, and nothing of it is left."""

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.domain.completion import Delta
from modelyard.parts.doubles.clients.server import asgi_server
from modelyard.parts.scripted.backend import ScriptedBackend
from modelyard.testing import served
from polling import until

CHAT = "/inference/v1/chat/completions"


def test_platforms_are_served_side_by_side_each_to_its_own_keys() -> None:
    with open_platform() as one, open_platform() as other, served(one) as here, served(other) as there:
        headers = {"authorization": f"Bearer {one.keys.create().secret}"}
        body = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
        assert httpx.post(here + CHAT, json=body, headers=headers, timeout=60).status_code == 200
        assert httpx.post(there + CHAT, json=body, headers=headers, timeout=60).status_code == 401


def test_nothing_remains_when_the_block_ends() -> None:
    threads, loggers = threading.enumerate(), states()
    with open_platform() as platform, served(platform) as url:
        assert "modelyard served" in {thread.name for thread in threading.enumerate()}
        assert httpx.get(f"{url}/inference/analysis/partner/models", timeout=60).status_code == 200
    until(lambda: not set(threading.enumerate()) - set(threads))  # its last thread ends by itself
    assert states() == loggers
    address = urlsplit(url)
    with pytest.raises(ConnectionRefusedError), socket.create_connection((address.hostname, address.port)):
        pass


def test_no_answer_waits_for_the_acknowledgement_of_its_first_packet() -> None:
    """With Nagle's algorithm each answer in two packets takes 40 ms longer."""
    with open_platform() as platform, asgi_server(asgi_app(platform)) as server, httpx.Client(timeout=60) as client:
        client.get(f"{server.url}/inference/analysis/partner/models")
        (connection,) = server._server.server_state.connections
        served_socket = connection.transport.get_extra_info("socket")
        assert served_socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def states() -> list[Any]:
    """How the loggers stand that a server likes to configure."""
    named = (logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.error", "uvicorn.access"))
    return [(logger.level, logger.propagate, list(logger.handlers)) for logger in named]


@pytest.mark.slow
def test_an_unread_stream_does_not_keep_a_server_from_ending() -> None:
    done = threading.Event()

    def endless(request: Any) -> Iterator[Delta]:
        while not done.is_set():
            yield Delta("word " * 1000, 1)

    with open_platform(backend=ScriptedBackend(endless)) as platform, httpx.Client(timeout=60) as client:
        headers = {"authorization": f"Bearer {platform.keys.create().secret}"}
        body = {"model": "scripted", "messages": [{"role": "user", "content": "go on"}], "stream": True}
        with served(platform) as url:
            request = client.build_request("POST", url + CHAT, json={**body, "max_tokens": 100_000}, headers=headers)
            answer = client.send(request, stream=True)
            assert answer.status_code == 200
            pieces = answer.iter_raw()
            next(pieces)
        done.set()
        answer.close()
