"""Serve the platform of a file on an inherited socket: python holding_server.py STORE SOCKET [STEP].

The socket stays open where it was made, so that whoever connects while no server lives waits for the next one. With a
step, RL jobs make no step behind it: they hold still there until the process is killed.
"""

import socket
import sys
import threading
from collections.abc import Iterable, Iterator

import uvicorn

from modelyard import TrajectoryGroup, open_platform
from modelyard.asgi import asgi_app
from modelyard.domain.training_config import RLConfig
from modelyard.protocols import Step, TrainContext, TrainItem
from modelyard.service.ports import Settings
from modelyard.trainers.tabular import TabularTrainer
from openapi_check import Checked


class HoldingTrainer(TabularTrainer):
    """Trains up to a step, and no further."""

    def __init__(self, last: int) -> None:
        super().__init__(save_every=2)
        self._last = last

    def rl(self, config: RLConfig, data: Iterable[TrajectoryGroup], context: TrainContext) -> Iterator[TrainItem]:
        for item in super().rl(config, data, context):
            if isinstance(item, Step) and item.number > self._last:
                threading.Event().wait()
            yield item


def main(store: str, descriptor: str, last: str = "1000000") -> None:
    trainers, settings = [HoldingTrainer(int(last))], Settings(lease=2.0, poll=0.1)
    with open_platform(store, trainers=trainers, settings=settings) as platform:
        server = uvicorn.Server(uvicorn.Config(Checked(asgi_app(platform, worker=True)), log_level="warning"))
        server.run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])
