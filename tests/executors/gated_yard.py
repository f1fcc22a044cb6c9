"""The host's side of a process that runs one job, for the tests: a platform whose trainer waits where a test wants.

In the folder, `gate` holds the name of the item before which the trainer stops. It then writes its process number to
the pipe `reached`, which it keeps open for as long as it lives, and continues when the file `go` is there. The file
`leaving` is there once the process has been asked to leave.
"""

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, NoReturn

import attrs

from modelyard import Platform, Settings, open_platform
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.protocols import SavedState, Started, Step, TrainItem

SAVE_EVERY = 2


@attrs.define
class Gated:
    """The tabular trainer, that passes a gate before each item."""

    folder: Path
    inner: TabularTrainer = attrs.field(factory=lambda: TabularTrainer(save_every=SAVE_EVERY))

    def methods(self, base_model: str) -> Collection[str]:
        return self.inner.methods(base_model)

    def train(self, *given: Any) -> Iterator[TrainItem]:
        for item in self.inner.train(*given):
            self.pass_gate(name_of(item))
            print(f"made {name_of(item)}", flush=True)
            yield item

    def pass_gate(self, name: str) -> None:
        gate = self.folder / "gate"
        if not gate.exists() or gate.read_text() != name:
            return
        say_reached(self.folder)
        while not (self.folder / "go").exists():
            threading.Event().wait(0.005)


def say_reached(folder: str | Path) -> None:
    os.write(os.open(Path(folder) / "reached", os.O_WRONLY), f"{os.getpid()}\n".encode())


def say_leaving(folder: str | Path) -> None:
    for departure in [one for one in gc.get_objects() if type(one).__name__ == "Departure"]:  # of a process of one job
        departure.requested.wait()
        (Path(folder) / "leaving").touch()


@attrs.define
class Deadly(Gated):
    """Each of its processes dies at the gate of its first step, with something to say."""

    def pass_gate(self, name: str) -> None:
        if name == "step 1":
            print("my last words\x1b[31m", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)


def name_of(item: TrainItem) -> str:
    if isinstance(item, Started):
        return "started"
    if isinstance(item, SavedState):
        return f"state {item.number}"
    return f"step {item.number}" if isinstance(item, Step) else "trained"


def gated(folder: str, lease: str = "30") -> Platform:
    assert sys.stdin.read() == "", "the job's code must not read what its process hangs on"
    threading.Thread(target=say_leaving, args=[folder], daemon=True).start()
    return opened(folder, Gated(Path(folder)), lease)


def from_environment() -> Platform:
    return gated(os.environ["YARD"])


def deadly(folder: str) -> Platform:
    return opened(folder, Deadly(Path(folder)), "30")


def opened(folder: str, trainer: Gated, lease: str) -> Platform:
    return open_platform(Path(folder) / "yard.db", trainers=[trainer], settings=Settings(lease=float(lease), poll=0.05))


def stuck(folder: str) -> NoReturn:
    """A platform that never opens."""
    say_reached(folder)
    threading.Event().wait()
    raise AssertionError


def bereaved(folder: str) -> NoReturn:
    """Dies and leaves a process that would run for long."""
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    (Path(folder) / "left").write_text(str(left.pid))
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def talkative() -> NoReturn:
    """Says much, without an end of line, and ends with a status of its own."""
    sys.stdout.write("x" * 300_000)
    sys.stderr.write("\0\x1b[2J the end\r\n")
    sys.exit(3)
