"""Each job in its own process: a crash ends only that job, and the end of the process frees its memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress

import attrs

from modelyard.domain.job import Claim, Needs
from modelyard.errors import InvalidInput
from modelyard.executors.fork_server import ForkServer, Process, can_fork
from modelyard.process_identity import ProcessName, machine, this_process
from modelyard.protocols import Ended, Executor, ExecutorState, Running

WORKER = "modelyard.worker"
LAST_WORDS = 1024
LISTENING = 5.0
"""Seconds to wait for the last output of a dead process."""
GONE = "its process is gone"


class SubprocessExecutor:
    """Runs each job as `python -m modelyard.worker FACTORY JOB_ID [ARGUMENT...]`.

    `factory` is `package.module:function`, code of the host that returns the platform when it is called with
    `arguments`. Everybody on the machine can read these strings: name a file there, never a secret; processes inherit
    the environment.

    With `preload`, names of modules, a spare process imports them before the next job comes: only the first job waits
    for slow imports, such as torch. With `fork` they are imported once: the process that did so forks itself for each
    job. It does nothing else, and does not copy this one, so neither the threads of this process nor its main module
    matter; but modules that start threads or touch a graphics card at their import cannot be preloaded so.

    Unless the environment sets it, threads do not spin while they wait (OMP_WAIT_POLICY), and no model hub is searched
    (HF_HUB_OFFLINE). A process leaves when its standard input is closed, so none outlives this one. Its outputs go to
    this process's standard error; with `log`, "text" or "json", its log does too. `close` gives the processes `grace`
    seconds to give their jobs back.

        executor = SubprocessExecutor("modelyard.compose:open_platform", ["yard.db"])
        with platform.worker(concurrency=2, executor=executor):
            ...

    Raises `InvalidInput` if `factory` does not name a function, if this host cannot `fork` so (it must be Linux), or if
    it has no groups of processes (Windows).
    """

    isolates = True

    def __init__(
        self,
        factory: str,
        arguments: Sequence[str] = (),
        grace: float = 20.0,
        preload: Sequence[str] = (),
        *,
        fork: bool = False,
        log: str = "",
    ) -> None:
        check_factory(factory)
        if not hasattr(os, "killpg"):
            raise InvalidInput.at("executor", msg="a process for each job needs Linux or macOS: on Windows use WSL")
        if fork and not can_fork():
            raise InvalidInput.at("fork", msg="needs Linux; leave it out")
        self._first = (*([f"--log={log}"] if log else []), factory)
        self._arguments, self._grace = tuple(arguments), grace
        self._preload, self._fork = tuple(preload), fork
        self._spare: _Child | None = None
        self._forks: ForkServer | None = None
        self._children: dict[str, _Child] = {}

    def submit(self, claim: Claim, run: Callable[[Claim], None], needs: Needs) -> str:
        words = [*self._first, claim.address, *self._arguments]
        child = self._from_fork(words) or self._from_spare(claim.address) or _Child.start(words)
        self._prepare()
        handle = f"{machine()}/{this_process()}/{ProcessName.of(child.process.pid)}"
        self._children[handle] = child
        return handle

    def _prepare(self) -> None:
        if self._fork:
            self._forks = self._forks or ForkServer(_command(["fork", *self._preload]), _environment())
        elif self._preload:
            self._spare = _Child.start([*self._first, "-", *self._arguments])
            self._spare.tell([f"import {module}" for module in self._preload])

    def _from_fork(self, words: Sequence[str]) -> "_Child | None":
        forked = self._forks and self._forks.fork(words)
        if self._forks and not self._forks.lives:
            self._forks.close()
            self._forks = None
        return _Child.of(forked) if forked else None

    def _from_spare(self, job_id: str) -> "_Child | None":
        child, self._spare = self._spare, None
        if child is None or (child.poll() is None and child.tell([job_id])):
            return child
        child.end(0)
        return None

    def states(self, handles: Collection[str]) -> Mapping[str, ExecutorState]:
        return {handle: self._state(handle) for handle in handles}

    def _state(self, handle: str) -> ExecutorState:
        child = self._children.get(handle)
        if child is None:
            return Running() if _left_alive(handle) else Ended(GONE, preempted=True)
        ended = child.poll()
        if ended is not None:
            self._children.pop(handle, None)
        return ended or Running()

    def cancel(self, handle: str) -> None:
        """Kill the process and what it has started."""
        child = self._children.get(handle)
        if child is not None:
            child.kill()
        elif left := _left_alive(handle):
            _kill_group(left.pid)

    def reattach(self, handle: str, alive: bool) -> bool:
        """Return whether it is a process of this executor, or a process on this machine that has lost its parent."""
        if handle in self._children:
            return True
        parent, child = _parse(handle)
        return parent is not None and child is not None and not parent.lives

    def close(self, leave: bool = False) -> None:
        """Have the processes give their jobs back and leave; kill a process that has not left within the grace. None
        can be left running: each depends on a pipe of this process."""
        children = [self._children.pop(handle) for handle in tuple(self._children)]
        if self._spare is not None:
            children.append(self._spare)
            self._spare = None
        for child in children:
            child.let_go()
        until = time.monotonic() + self._grace
        for child in children:
            child.end(max(0.0, until - time.monotonic()))
        if self._forks is not None:
            self._forks.close()
            self._forks = None


def check_factory(factory: str) -> None:
    if not all(part.isidentifier() for part in factory.replace(":", ".").split(".")) or factory.count(":") != 1:
        raise InvalidInput.at("factory", msg=f"{factory!r} is not of the form package.module:function")


def _command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-X", "faulthandler", "-m", WORKER, *words]


def _environment() -> dict[str, str]:
    """Keep threads of several jobs from spinning, and libraries from asking a model hub."""
    return {"OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", **os.environ}


def _parse(handle: str) -> tuple[ProcessName | None, ProcessName | None]:
    where, *names = handle.split("/")
    if where != machine() or not where or len(names) != 2:
        return None, None
    parent, child = names
    return ProcessName.parse(parent), ProcessName.parse(child)


def _left_alive(handle: str) -> ProcessName | None:
    parent, child = _parse(handle)
    return child if parent is not None and child is not None and not parent.lives and child.lives else None


def _kill_group(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


@attrs.define(eq=False)
class _Child:
    process: Process
    words: str = ""
    listener: threading.Thread = attrs.field(init=False)

    @classmethod
    def start(cls, words: Sequence[str]) -> "_Child":
        # In a session of its own: an interrupt from the terminal reaches this process alone, which then asks the child.
        process = subprocess.Popen(  # noqa: S603 - the command is the host's
            _command(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
            env=_environment(),
        )
        return cls.of(process)

    @classmethod
    def of(cls, process: Process) -> "_Child":
        child = cls(process)
        child.listener = threading.Thread(target=child._listen, name=f"modelyard-words-{process.pid}", daemon=True)
        try:
            child.listener.start()
        except BaseException:
            child.end(0)
            raise
        return child

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as printed:
            for piece in iter(lambda: printed.readline(LAST_WORDS), ""):
                self.words = (self.words + piece)[-LAST_WORDS:]
                with suppress(
                    OSError, ValueError, AttributeError
                ):  # no process need read the output of this one either
                    sys.stderr.write(piece)

    def poll(self) -> Ended | None:
        """Return None while it lives; then how it ended. Processes that it left running are ended with it."""
        status = self.process.poll()
        if status is None:
            return None
        self.kill()
        self._put_away()
        return _ended(status, self.words)

    def tell(self, lines: Sequence[str]) -> bool:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("".join(f"{line}\n" for line in lines))
            self.process.stdin.flush()
        except OSError:
            return False
        return True

    def let_go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def _put_away(self) -> None:
        self.let_go()
        if self.listener.is_alive():
            self.listener.join(LISTENING)

    def kill(self) -> None:
        _kill_group(self.process.pid)

    def end(self, within: float) -> None:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within)
        self.kill()
        self.process.wait()
        self._put_away()


KILLS = frozenset(signal.Signals[name] for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP") if hasattr(signal, name))


def _ended(status: int, words: str) -> Ended:
    if status == 0:
        return Ended()
    how = f"ended with exit status {status}"
    if status < 0:
        how = f"was ended by signal {-status} ({signal.strsignal(-status)})"
    return Ended(with_last_words(f"its process {how}", words), -status in KILLS)


def with_last_words(fault: str, output: str) -> str:
    words = " ".join("".join(letter if letter.isprintable() else " " for letter in output[-LAST_WORDS:]).split())
    return f"{fault}; its last words: {words}" if words else fault


_conforms: type[Executor] = SubprocessExecutor
