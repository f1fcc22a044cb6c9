"""A receiver of webhooks on loopback, which answers as a test says."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import attrs


@attrs.frozen
class Received:
    path: str
    headers: dict[str, str]
    body: bytes


@attrs.define(eq=False)
class Receiver:
    """Keeps what it receives, and answers with `answer`: a function of the handler."""

    answer: Callable[[BaseHTTPRequestHandler], None]
    port: int = 0
    received: list[Received] = attrs.field(factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"


def answering(status: int, *headers: tuple[str, str], body: bytes = b"") -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in headers:
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def cut(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    handler.connection.close()


@contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    """Receive on a port of loopback, over TLS if there is a context of it."""
    one = Receiver(answering(204))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            one.received.append(Received(self.path, {k.lower(): v for k, v in self.headers.items()}, body))
            with suppress(OSError):
                one.answer(self)
            self.close_connection = True

        def do_GET(self) -> None:
            one.received.append(Received(f"GET {self.path}", {}, b""))
            answering(200)(self)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.handle_error = lambda *_: None  # type: ignore[method-assign,assignment]
    one.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield one
    server.shutdown()
    thread.join()
    server.server_close()
