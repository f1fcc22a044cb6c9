"""Servers on loopback for the backend that asks servers."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest

Canned = Callable[..., str]


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that reads a request on each connection, sends the next of these answers as it is, and hangs up.

    After the last answer the server listens no more.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    if not answers:
        listener.close()
        yield url
        return

    def serve() -> None:
        with listener:
            for answer in answers:
                connection, _ = listener.accept()
                with connection, suppress(ConnectionError):
                    _read_request(connection)
                    connection.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield url
    with suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()


def _read_request(connection: socket.socket) -> None:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(65536)
    head, _, body = raw.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65536)


@pytest.fixture
def canned() -> Iterator[Canned]:
    """Starts servers that answer with these bytes; gives the address of each."""
    with ExitStack() as servers:
        yield lambda *answers: servers.enter_context(answering(*answers))
