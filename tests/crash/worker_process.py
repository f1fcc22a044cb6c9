"""Worker processes that come to harm: python worker_process.py [MODULE...], started by `nursery.py`.

Each line of standard input is a request for a process with a worker; each line of standard output tells what happened
in one. The processes are forked, before anything is opened, from this one, which has imported everything, the modules
with it: so one costs milliseconds. When standard input ends, all of them are killed.
"""

import gc
import json
import os
import pkgutil
import select
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, closing
from importlib import import_module
from pathlib import Path
from typing import Any

import attrs
from moments import Moments, WatchedArtifacts, WatchedStore, WatchedTrainer, tell
from mutants import MUTANTS

from modelyard import Settings, open_platform
from modelyard.artifacts.folder import FolderArtifacts
from modelyard.clock import SystemClock
from modelyard.domain.events import JobChanged, JobEventRecorded, LeaseTaken
from modelyard.domain.schema import RECORDS
from modelyard.engines.tabular.trainer import TabularTrainer
from modelyard.executors.thread import ThreadExecutor
from modelyard.parts.torch.training import trainer as local
from modelyard.platform.artifacts import artifacts_folder
from modelyard.protocols import Trainer
from modelyard.stores.sqlite import SqliteStore
from modelyard.stores.sqlite.rows import plans_of

sys.path.append(str(Path(__file__).parents[1] / "shared"))  # with the agents of loops

WHOLE = ("platform", "formats", "engines.tabular", "http", "parts.episodes", "parts.webhooks")
OF_PARTS = (
    *("annotations.changes", "batches.changes", "responses.changes", "tinker.changes", "traces.changes"),
    *("variants.changes", "review.changes", "torch.changes", "torch.engine", "server.wsgi", "metrics.slowest"),
    "fine_tuning.result_file",
)
"""What a worker imports by the time that its first job has ended."""

SIGNALS = {signal.SIGTERM, signal.SIGUSR1}


# ---- one worker --------------------------------------------------------------------------------------------------


@attrs.frozen
class Request:
    """A worker for the platform in `path`. `acts` says what it does at which moment (`moments.py`); `told` makes it
    tell of every moment. `mutant` names what is broken in it. `program` is a module that runs on the store instead of a
    worker on the `artifacts` of a folder, and `started` how many did before; `path` may be the address of a database.
    """

    path: str
    acts: Mapping[str, str] = attrs.field(factory=dict)
    reported: bool = False
    mutant: str = ""
    save_every: int = 8
    lease: float = 0.1
    poll: float = 0.02
    max_crashes: int = 1000
    program: str = ""
    artifacts: str = ""
    started: int = 0


class LeavingExecutor(ThreadExecutor):
    """Says when the worker begins to leave."""

    def __init__(self, leaving: threading.Event) -> None:
        super().__init__()
        self._leaving = leaving

    def close(self, leave: bool = False) -> None:
        self._leaving.set()
        super().close(leave)


class PollClock(SystemClock):
    """Tells of the worker's own time: what it read, and for how long it asked to wait."""

    def monotonic(self) -> float:
        read = super().monotonic()
        self._tell("read", read)
        return read

    def wait(self, event: threading.Event, seconds: float) -> bool:
        self._tell("waits", seconds)
        return super().wait(event, seconds)

    def _tell(self, what: str, seconds: float) -> None:
        if threading.current_thread().name == "modelyard-worker":
            tell(what, seconds)


def trainer_of(request: Request) -> Trainer:
    """Of the store's networks, if it lists any; else of the tabular models."""
    with open_platform(request.path) as platform:
        networks = list(platform.base_models())
    if networks:
        return local.LocalTrainer(networks, device="cpu", save_every=request.save_every)
    return TabularTrainer(save_every=request.save_every)


def store_at(path: str) -> Any:
    """Open the store in a file, or at an address."""
    if not path.startswith("postgresql:"):
        return SqliteStore(path, RECORDS)
    from modelyard.parts.postgres.store import PostgresStore

    return PostgresStore(path, RECORDS)


def work(request: Request) -> None:
    """Run a worker until SIGTERM, or a program until its end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    tell("born")
    moments = Moments(request.acts, request.reported)
    if request.program:
        with closing(store_at(request.path)) as opened:
            watched = WatchedStore(opened, moments)
            if request.mutant:
                import_module(request.program).MUTANTS[request.mutant](watched)
            import_module(request.program).run(watched, FolderArtifacts(request.artifacts), request.started)
        return

    def observer(event: object) -> None:
        moments.next("observe")
        if isinstance(event, JobEventRecorded):
            tell("event", event.job_id, event.type, event.seq)
        elif isinstance(event, JobChanged):
            tell("changed", event.job_id, event.status)
        elif isinstance(event, LeaseTaken):
            tell("taken", event.job_id)

    with ExitStack() as opened:
        store: Any = opened.enter_context(closing(SqliteStore(request.path, RECORDS)))
        trainer: Any = trainer_of(request)
        if request.mutant:
            store, trainer = MUTANTS[request.mutant](store, trainer, moments)
        platform = open_platform(
            store=WatchedStore(store, moments),
            artifacts=WatchedArtifacts(FolderArtifacts(artifacts_folder(request.path)), moments),
            trainers=[WatchedTrainer(trainer, moments)],
            clock=PollClock() if request.reported else SystemClock(),
            observer=observer,
            settings=Settings(lease=request.lease, poll=request.poll, max_crashes=request.max_crashes),
        )
        opened.enter_context(platform)
        with platform.worker(executor=LeavingExecutor(moments.leaving)):
            signal.sigwait({signal.SIGTERM})


# ---- all of them -------------------------------------------------------------------------------------------------


def born(line: bytes) -> int:
    """A process for a request."""
    pid = os.fork()
    if pid:
        return pid
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    status = 1
    try:
        work(Request(**json.loads(line)))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def bury(alive: set[int]) -> None:
    """Tell of the processes that are gone or frozen."""
    for pid in sorted(alive):
        found, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if found and os.WIFSTOPPED(status):
            tell("frozen", by=pid)
        elif found:
            alive.discard(pid)
            tell("gone", os.waitstatus_to_exitcode(status), by=pid)


def prepare(*modules: str) -> None:
    """Load what a worker would load when it first uses it, and plan its statements: once, and not in each process."""
    for name in WHOLE:
        package = import_module(f"modelyard.{name}")
        modules += tuple(found.name for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."))
    for module in (*modules, *(f"modelyard.parts.{name}" for name in OF_PARTS)):
        import_module(module)
    plans_of(RECORDS)
    gc.collect()
    gc.freeze()


def main(*modules: str) -> None:
    prepare(*modules)
    rings, bell = os.pipe()
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    alive: set[int] = set()
    requests = sys.stdin.buffer.raw  # type: ignore[attr-defined]  # nothing is read ahead, so `select` sees it all
    while True:
        ready, _, _ = select.select([requests, rings], [], [])
        if rings in ready:
            os.read(rings, 4096)
            bury(alive)
        if requests in ready:
            line = requests.readline()
            if not line:
                break
            alive.add(born(line))
    for pid in alive:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*sys.argv[1:])
