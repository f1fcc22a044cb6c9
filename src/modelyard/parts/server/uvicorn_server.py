"""The server of `modelyard serve`: uvicorn, for an open port."""

from collections.abc import Mapping
from typing import Any

from modelyard.asgi import Application
from modelyard.parts.server.bounded_heads import BoundedProtocol, Bounds, raise_descriptors
from modelyard.parts.server.joined_writes import uvicorn

GRACE_SECONDS = 10
"""How long streams may continue when the server is stopped: their clients may have stopped reading."""

OPTIONS: Mapping[str, Any] = {
    "http": BoundedProtocol,
    "log_config": None,
    "access_log": False,  # each request has a line of our own
    "server_header": False,
    "timeout_graceful_shutdown": GRACE_SECONDS,
}


def run(app: Application, host: str, port: int, head_seconds: float = Bounds().head_seconds) -> None:
    bounds = Bounds(head_seconds=head_seconds, connections=raise_descriptors())
    protocol = type("Protocol", (BoundedProtocol,), {"bounds": bounds})
    uvicorn.run(app, host=host, port=port, **{**OPTIONS, "http": protocol})
