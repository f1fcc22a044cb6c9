"""A server on loopback that answers in any dialect and with any faults, for the tests of what asks servers.

    with odd_server("kimi", ["calls_without_index", "heartbeats"]) as server:
        backend = UpstreamBackend(server.url, models=[...])

The dialects are those of `OddDialect`, the faults those of `OddFault`; any number of them goes together. Every answer
is complete, and was paid for: a reader should find its text, its calls and its usage in each case.
"""

import gzip
import json
import socket
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import attrs

from modelyard.errors import InvalidInput
from modelyard.parts.upstream.odd_server.answer import OddAnswer
from modelyard.parts.upstream.odd_server.dialects import DIALECTS, OddDialect
from modelyard.parts.upstream.odd_server.faults import OddFault, with_faults
from modelyard.parts.upstream.odd_server.rules import Frame
from modelyard.parts.upstream.odd_server.writer import AnswerText


@attrs.define(eq=False)
class OddServer:
    """A server that runs. What it answers may be changed between two requests. `requests` are the bodies that it was
    sent. It sends at most `sent_at_once` bytes at once, if that is given.
    """

    url: str
    dialect: OddDialect
    faults: frozenset[OddFault]
    answer: OddAnswer
    sent_at_once: int | None = None
    requests: list[dict[str, Any]] = attrs.field(factory=list)


def odd_bytes(dialect: OddDialect, faults: frozenset[OddFault], answer: OddAnswer, streamed: bool) -> bytes:
    """Return the body of an answer."""
    text = AnswerText(answer, *with_faults(DIALECTS[dialect].rules, faults))
    return text.stream() if streamed else text.whole()


@contextmanager
def odd_server(
    dialect: OddDialect | str = OddDialect.OPENAI,
    faults: Iterable[OddFault | str] = (),
    answer: OddAnswer | None = None,
    *,
    sent_at_once: int | None = None,
) -> Iterator[OddServer]:
    """Serve `answer` below `url`, to streamed requests as a stream; `GET <url>/models` lists one model, "odd".

    Nothing in it waits or sleeps: a stream that is held open ends when its reader leaves. Raises `InvalidInput` for a
    dialect or a fault that is not known.
    """
    spoken, wrong = _known(OddDialect, "dialect", dialect), [_known(OddFault, "faults", fault) for fault in faults]
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
    server = OddServer(url, spoken, frozenset(wrong), answer or OddAnswer(), sent_at_once)
    thread = threading.Thread(target=_accept, args=(listener, server), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def _known(kind: Any, place: str, name: str) -> Any:
    try:
        return kind(name)
    except ValueError:
        raise InvalidInput.at(place, msg=f"must be one of {', '.join(kind)}, not {name!r}") from None


def _accept(listener: socket.socket, server: OddServer) -> None:
    threads = []
    with suppress(OSError):
        while True:
            connection, _ = listener.accept()
            threads.append(threading.Thread(target=_attend, args=(connection, server), daemon=True))
            threads[-1].start()


def _attend(connection: socket.socket, server: OddServer) -> None:
    with connection, suppress(OSError):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head, body = _request(connection)
        if head.startswith(b"GET "):
            connection.sendall(_headed(b'{"object":"list","data":[{"id":"odd","object":"model"}]}', Frame()))
            return
        asked = json.loads(body)
        server.requests.append(asked)
        _answer(connection, server, bool(asked.get("stream")))


def _request(connection: socket.socket) -> tuple[bytes, bytes]:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += _received(connection)
    head, _, body = raw.partition(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += _received(connection)
    return head, body


def _received(connection: socket.socket) -> bytes:
    piece = connection.recv(65536)
    if not piece:
        raise ConnectionResetError
    return piece


def _answer(connection: socket.socket, server: OddServer, streamed: bool) -> None:
    _, frame = with_faults(DIALECTS[server.dialect].rules, server.faults)
    body = odd_bytes(server.dialect, server.faults, server.answer, streamed)
    for _ in range(frame.gzipped):
        body = gzip.compress(body)
    raw = _stream(body, frame) if streamed else _headed(body, frame)
    size = server.sent_at_once or len(raw)
    for at in range(0, len(raw), size):
        connection.sendall(raw[at : at + size])
    while streamed and frame.held_open and connection.recv(65536):
        pass  # until the reader has closed the connection


def _head(kind: str, frame: Frame) -> bytes:
    label = kind if frame.label is None else frame.label
    lines = [f"HTTP/1.1 {frame.status}", "connection: close"]
    lines += [f"content-type: {label}"] if label else []
    encoding = frame.encoding or ", ".join(["gzip"] * frame.gzipped)
    lines += [f"content-encoding: {encoding}"] if encoding else []
    return "".join([f"{line}\r\n" for line in lines]).encode()


def _headed(body: bytes, frame: Frame) -> bytes:
    return _head("application/json", frame) + b"content-length: %d\r\n\r\n%s" % (len(body), body)


def _stream(body: bytes, frame: Frame) -> bytes:
    """Return a stream that ends with its connection, as one without a length may; one that is cut may not."""
    head = _head("text/event-stream", frame)
    if frame.cut:
        return head + b"transfer-encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n" % (len(body), body)
    return head + b"\r\n" + body
