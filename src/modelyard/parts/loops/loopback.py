"""A server of this process alone, for the agents of a loop: on a port of loopback, with a thread for each call."""

import threading
from contextlib import suppress
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from modelyard.domain.identity import host
from modelyard.executors.thread import ThreadExecutor
from modelyard.parts.server.wsgi import wsgi_app
from modelyard.platform.opened_with import Lifetime
from modelyard.platform.platform import Platform
from modelyard.platform.runtime import Runtime

_BACKLOG = 128


class LoopbackServer:
    """Serves the platform of a runtime at `url` until it is closed. `over_budget` are the keys of which a call was
    refused because of a budget."""

    def __init__(self, runtime: Runtime) -> None:
        self.over_budget: set[str] = set()
        self._answer = wsgi_app(Platform(runtime, host(), Lifetime(_nothing, ThreadExecutor)))
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.set_app(self._app)
        self.url: str = f"http://127.0.0.1:{self._server.server_port}"
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), name="modelyard-loopback", daemon=True)
        self._thread.start()

    def _app(self, environ: Any, start_response: Any) -> Any:
        def start(status: str, headers: Any) -> object:
            if status.startswith("402"):
                key = environ.get("HTTP_X_API_KEY") or environ.get("HTTP_AUTHORIZATION", "")
                self.over_budget.add(key.removeprefix("Bearer ").strip())
            return start_response(status, headers)

        return self._answer(environ, start)

    def close(self) -> None:
        """Stop serving. Calls that are being answered are not waited for."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _nothing() -> None:
    pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG

    def server_bind(self) -> None:
        """Bind without asking for the name of the host, which may take seconds."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that has left."""


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the platform logs its requests itself."""

    def finish(self) -> None:
        with suppress(OSError):  # the client has left
            super().finish()
