"""One process of a fleet, with its clock some seconds ahead: `fleet_node.py serve|work STORE ARTIFACTS SECONDS [FD]`.

A server accepts connections on the listening socket that it inherits as FD, so that none is lost while it restarts.
"""

import signal
import sys
import threading
from datetime import datetime, timedelta

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.clock import SystemClock


class SkewedClock(SystemClock):
    """A clock that is so many seconds ahead of that of the machine."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._ahead = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._ahead


def main(what: str, store: str, artifacts: str, seconds: str, descriptor: str = "") -> None:
    with open_platform(store, artifacts=artifacts, clock=SkewedClock(float(seconds))) as platform:
        if what == "serve":
            import uvicorn

            uvicorn.run(asgi_app(platform), fd=int(descriptor), log_level="warning", timeout_graceful_shutdown=60)
            return
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        with platform.worker():
            stopped.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
