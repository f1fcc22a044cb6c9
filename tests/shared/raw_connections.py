"""Connections to a server on a socket, byte for byte."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit


@contextmanager
def connected(url: str) -> Iterator[tuple[socket.socket, Any]]:
    """A client's socket, and a file of what it receives."""
    address = urlsplit(url)
    with socket.create_connection((address.hostname, address.port), 60) as client, client.makefile("rb") as received:
        yield client, received


def head_of(received: Any) -> bytes:
    lines = []
    while (line := received.readline()) not in (b"\r\n", b""):
        lines.append(line)
    return b"".join(lines)


def request(method: str = "GET", body: bytes = b"", more: str = "") -> bytes:
    head = f"{method} /path HTTP/1.1\r\nhost: localhost\r\n{more}"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers the body of a request."""
    if scope["type"] == "http":
        message = await receive()
        body = message["body"]
        while message["more_body"]:
            message = await receive()
            body += message["body"]
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
