"""The moments in the life of a worker: each call of a port is numbered, and anything may happen at any of them.

`commit 3 inside` is the end of the third durable step, before its transaction commits; `commit 3 after` is after the
commit; a claim counts as one. `beat` is the same for other steps that need not be durable. `put 1 half` is the middle
of writing an artifact; `remove`, `train` (before an item is made) and `observe` need no more words.
"""

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any

from modelyard.domain.job import Job
from modelyard.errors import ModelyardError
from modelyard.protocols import ArtifactStore, Store, StoredArtifact, TrainContext, Trainer, TrainItem, Tx


def tell(what: str, *more: object, by: int | None = None) -> None:
    """Say a line, whole or not at all: a pipe takes up to 4096 bytes at once."""
    os.write(1, json.dumps([by or os.getpid(), what, *more]).encode() + b"\n")


class Moments:
    """Counts the calls of each port and does what was asked for at a moment.

    `die` is kill -9, `freeze` is SIGSTOP outside any transaction, `hold` waits for SIGUSR1, `leave` asks the worker to
    stop and waits until it does so.
    """

    def __init__(self, acts: Mapping[str, str], reported: bool) -> None:
        self.leaving = threading.Event()
        self.quiet: AbstractContextManager[Any] = threading.RLock() if "freeze" in acts.values() else nullcontext()
        self._acts, self._reported = acts, reported
        self.named = ""
        self._numbers: Counter[str] = Counter()
        self._lock = threading.Lock()

    def number(self, port: str) -> str:
        """The port's name and the number of this call of it."""
        with self._lock:
            self._numbers[port] += 1
            return f"{port} {self._numbers[port]}"

    def next(self, port: str) -> None:
        """A call of a port that has one moment only."""
        self.at(self.number(port))

    def at(self, moment: str) -> None:
        """This moment is now."""
        if self._reported and not moment.startswith("beat"):
            tell("at", moment)
        if moment in self._acts:
            getattr(self, self._acts[moment])()

    def die(self) -> None:
        if self._reported:
            tell("dies", self.named)
        os.kill(os.getpid(), signal.SIGKILL)

    def freeze(self) -> None:
        with self.quiet:
            # To this thread: a signal to the process may take effect when this thread is already further.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    def hold(self) -> None:
        tell("held")
        signal.sigwait({signal.SIGUSR1})

    def leave(self) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        self.leaving.wait()


def claims(result: Any) -> bool:
    """Whether a step with this result has claimed a job: alone, or with what was seen of the queue."""
    while isinstance(result, tuple) and result:
        result = result[0]
    return isinstance(result, Job)


def name_of(step: Any) -> str:
    """What a step is called in the code."""
    inner = getattr(step, "func", None) or getattr(step, "step", None)
    return name_of(inner) if inner is not None else getattr(step, "__qualname__", type(step).__name__)


class WatchedStore:
    """A store whose steps are moments. Tells of every step that was refused."""

    def __init__(self, store: Store, moments: Moments) -> None:
        self._store, self._moments = store, moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def transact(self, step: Callable[[Tx], Any], durable: bool = True) -> Any:
        call = ""

        def watched(tx: Tx) -> Any:
            nonlocal call
            result = step(tx)
            call = call or self._moments.number("commit" if durable or claims(result) else "beat")
            self._moments.named = name_of(step)
            self._moments.at(f"{call} inside")
            return result

        try:
            with self._moments.quiet:
                result = self._store.transact(watched, durable)
        except ModelyardError as error:
            tell("refused", error.code)
            raise
        self._moments.at(f"{call} after")
        return result


class WatchedArtifacts:
    """Artifacts whose writing and removal are moments."""

    def __init__(self, artifacts: ArtifactStore, moments: Moments) -> None:
        self._artifacts, self._moments = artifacts, moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._artifacts, name)

    def put(self, chunks: Iterable[bytes]) -> StoredArtifact:
        call = self._moments.number("put")

        def watched() -> Iterator[bytes]:
            for number, chunk in enumerate(chunks):
                yield chunk
                if not number:
                    self._moments.at(f"{call} half")

        stored = self._artifacts.put(watched())
        self._moments.at(f"{call} after")
        return stored

    def remove(self, name: str) -> None:
        self._artifacts.remove(name)
        self._moments.next("remove")


class WatchedTrainer:
    """A trainer whose items are moments. Tells when it is closed before its end."""

    def __init__(self, trainer: Trainer, moments: Moments) -> None:
        self._trainer, self._moments = trainer, moments

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)

    def train(self, method: str, config: Any, data: Iterable[Any], context: TrainContext) -> Iterator[TrainItem]:
        return self._watched(self._trainer.train(method, config, data, context))

    def _watched(self, items: Iterator[TrainItem]) -> Iterator[TrainItem]:
        try:
            for number in count(1):
                self._moments.at(f"train {number}")
                yield next(items)
        finally:
            tell("closed")
