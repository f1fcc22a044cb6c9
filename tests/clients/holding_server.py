"""Serve the platform of a file on an inherited socket: python holding_server.py STORE SOCKET [STEP].

The socket stays open where it was made, so that clients that connect meanwhile wait for the next server. With a
step, RL jobs make no step after it: they stand still there until the process is killed. Every job has the same seed.
"""

import os
import socket
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import uvicorn

from modelyard import open_platform
from modelyard.asgi import asgi_app
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.parts.torch.training import trainer as local
from modelyard.platform.runtime import Settings
from modelyard.platform.training.submission import SEED_BYTES
from modelyard.protocols import Step, TrainContext, Trainer, TrainItem
from openapi_check import Checked

SAVE_EVERY = 2


@attrs.frozen
class Holding:
    """Trains up to a step, and no further."""

    trainer: Trainer
    last: int

    def __getattr__(self, name: str) -> Any:
        return getattr(self.trainer, name)

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        for item in self.trainer.train(method, config, data, context):
            if isinstance(item, Step) and item.number > self.last:
                threading.Event().wait()
            yield item


def trainer_of(store: str) -> Trainer:
    """Of the store's local models, if it lists any; else of the tabular ones."""
    with open_platform(store) as platform:
        known = list(platform.base_models())
    return local.LocalTrainer(known, save_every=SAVE_EVERY) if known else TabularTrainer(save_every=SAVE_EVERY)


def randomness(count: int) -> bytes:
    """Random bytes; those of a job's seed are always the same."""
    return bytes(count) if count == SEED_BYTES else os.urandom(count)


def main(store: str, descriptor: str, last: str = "1000000") -> None:
    trainers, settings = [Holding(trainer_of(store), int(last))], Settings(lease=2.0, poll=0.1)
    with open_platform(store, trainers=trainers, settings=settings, randomness=randomness) as platform:
        server = uvicorn.Server(uvicorn.Config(Checked(asgi_app(platform, worker=True)), log_level="warning"))
        server.run(sockets=[socket.socket(fileno=int(descriptor))])


if __name__ == "__main__":
    main(*sys.argv[1:])
