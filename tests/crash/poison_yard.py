"""The host's side of the campaign `poison.py`: a platform whose trainer kills its process over poisoned data.

It is found in the folder that the environment names in YARD; SABOTAGE names what is to be broken in it.
"""

import os
import random
import signal
import time
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from modelyard import Platform, Settings, open_platform
from modelyard.domain.job import JobProgress
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.platform.jobs import queue
from modelyard.protocols import TrainItem

POISON = "poison"
FIRST_STEPS = 5
STEP_SECONDS = 0.02


@attrs.define
class Poisonable:
    """The tabular trainer, slowed down. On poisoned data it ends its process within its first steps."""

    inner: TabularTrainer = attrs.field(factory=TabularTrainer)

    def methods(self, base_model: str) -> Collection[str]:
        return self.inner.methods(base_model)

    def train(self, method: str, config: Any, data: Iterable[Any], context: Any) -> Iterator[TrainItem]:
        poisoned = any(row.messages[0].text == POISON for row in data)
        left = random.randrange(FIRST_STEPS + 1)
        for item in self.inner.train(method, config, data, context):
            yield item
            time.sleep(STEP_SECONDS)  # so that the others are in the middle of their work
            left -= 1
            if poisoned and left < 0:
                os.kill(os.getpid(), signal.SIGSEGV) if random.random() < 0.5 else os._exit(3)


def yard() -> Platform:
    """Open the platform, which the host's processes share."""
    if os.environ.get("SABOTAGE") == "charge all":
        queue._charged = _charge
    settings = Settings(lease=2.0, poll=0.05)
    return open_platform(Path(os.environ["YARD"]) / "yard.db", trainers=[Poisonable()], settings=settings)


def _charge(progress: JobProgress, loss: object) -> JobProgress:
    """Charge every job of a process that died, as if each had been alone in it."""
    return attrs.evolve(progress, crashes=progress.crashes + 1)
