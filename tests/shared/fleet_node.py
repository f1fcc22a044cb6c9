"""One process of a fleet, with its clock some seconds ahead: `fleet_node.py serve|work STORE ARTIFACTS SECONDS [FD]`.

A server accepts connections on the listening socket that it inherits as FD, so that none is lost while it restarts.
Checkpoints have a file of so many bytes more as the variable FLEET_LARGE says.
"""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import attrs

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.clock import SystemClock
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.protocols import Trained, TrainItem

LARGE = "large.bin"


class SkewedClock(SystemClock):
    """A clock that is so many seconds ahead of that of the machine."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._ahead = timedelta(seconds=seconds)

    def now(self) -> datetime:
        return super().now() + self._ahead


class LargeTrainer(TabularTrainer):
    """Trains the tabular models, and adds a large file of zeros to each checkpoint."""

    def train(self, *arguments: Any) -> Iterator[TrainItem]:
        size = int(os.environ.get("FLEET_LARGE", "0"))
        for item in super().train(*arguments):
            yield attrs.evolve(item, files={**item.files, LARGE: [bytes(size)]}) if isinstance(item, Trained) else item


def main(what: str, store: str, artifacts: str, seconds: str, descriptor: str = "") -> None:
    clock, trainers = SkewedClock(float(seconds)), [LargeTrainer()] if "FLEET_LARGE" in os.environ else None
    with open_platform(store, artifacts=artifacts, clock=clock, trainers=trainers) as platform:
        if what == "serve":
            import uvicorn

            uvicorn.run(
                asgi_app(platform, dashboard=True),
                fd=int(descriptor),
                log_level="warning",
                timeout_graceful_shutdown=60,
            )
            return
        stopped = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: stopped.set())
        with platform.worker():
            stopped.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
