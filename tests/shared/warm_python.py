"""A Python that has imported what programs need, for tests that start many: each is forked from it in milliseconds.

    with WarmPython("modelyard.cli") as python:
        subprocess.run([python.executable, "-m", "modelyard", "--version"])

`executable` takes what an interpreter takes: a file, `-c` and code, or `-m` and a module, each with its arguments. The
program has the caller's folder, environment, standard files, signals and exit status, and ends when the caller's
process does. It is not for what is read when a module is imported, such as variables of the environment for torch.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

CAN_FORK = hasattr(os, "pidfd_open")
"""Whether this system has what it takes; elsewhere `executable` is the interpreter itself."""

HERE = Path(__file__).resolve()


class WarmPython:
    """Make it on entering; leaving kills the programs that still run.

    `python` is the interpreter, this one unless it is named, and `environment` what the modules are imported in; each
    program has its own. `commands` is a folder for the path, with `python`, `modelyard` and `pytest`.
    """

    def __init__(
        self, *modules: str, python: str = sys.executable, environment: Mapping[str, str] | None = None
    ) -> None:
        self._python, self._modules, self._environment = python, modules, environment
        self._made = tempfile.TemporaryDirectory(prefix="warm-")
        self.commands = Path(self._made.name) / "bin"
        self.executable = str(self.commands / "python")

    def __enter__(self) -> Self:
        address = str(Path(self._made.name) / "socket")
        caller = f'-IS "{HERE.with_name("warm_caller.py")}" "{address}"' if CAN_FORK else ""
        self._command("python", f'exec "{self._python}" {caller}')
        for name in ("modelyard", "pytest"):
            script = Path(self._python).with_name(name)
            program = f'"{script}"' if script.exists() else f"-m {name}"
            self._command(name, f'exec "{self.executable}" {program}')
        if CAN_FORK:
            start = [self._python, str(HERE), address, *self._modules]
            self._process = subprocess.Popen(
                start, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=self._environment
            )
            assert self._process.stdout is not None
            assert self._process.stdout.readline() == b"ready\n", "it did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if CAN_FORK:
            self._process.communicate()
        self._made.cleanup()

    def _command(self, name: str, line: str) -> None:
        self.commands.mkdir(exist_ok=True)
        (self.commands / name).write_text(f'#!/bin/sh\n{line} "$@"\n')
        (self.commands / name).chmod(0o755)


# ---- the process that forks ----------------------------------------------------------------------------------------


def serve(address: str, *modules: str) -> None:
    """Fork a process for each request until standard input ends, which it does when the test's process does."""
    del sys.path[0]  # the folder of this file
    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        os.write(1, b"ready\n")
        words = _requested(listening)
    if words:
        _run(words)


def _requested(listening: socket.socket) -> Sequence[str]:
    """In each process that is forked, what it is to run; nothing in the one that forks, at its end."""
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as watched:
        watched.register(0, selectors.EVENT_READ, "end")
        watched.register(listening, selectors.EVENT_READ, "request")
        while True:
            for key, _ in watched.select():
                if key.data == "end":
                    for pid in running:
                        _kill(pid)
                    return ()
                if key.data == "request":
                    connection, _ = listening.accept()
                    if words := _forked(connection, watched, running):
                        return words
                else:
                    _ended(key, watched, running)


def _forked(connection: socket.socket, watched: Any, running: dict[int, socket.socket]) -> Sequence[str]:
    said, files, _, _ = socket.recv_fds(connection, 2**20, 3)
    pid = os.fork()
    if not pid:
        request = json.loads(said)
        os.setsid()
        for place, file in enumerate(files):
            os.dup2(file, place)
            os.close(file)
        connection.sendall(str(os.getpid()).encode())
        for other in (*running.values(), connection):
            other.close()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        _open_streams()
        return request["words"]
    for file in files:
        os.close(file)
    running[pid] = connection
    watched.register(connection, selectors.EVENT_READ, pid)
    watched.register(os.pidfd_open(pid), selectors.EVENT_READ, pid)
    return ()


def _open_streams() -> None:
    """Anew, as what is known of a file, such as whether it can be sought, is not so of the next one."""
    sys.stdin = sys.__stdin__ = os.fdopen(0, closefd=False)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)


def _ended(key: selectors.SelectorKey, watched: Any, running: dict[int, socket.socket]) -> None:
    """A program has, or who asked for it."""
    pid: int = key.data
    watched.unregister(key.fileobj)
    if isinstance(key.fileobj, socket.socket):
        _kill(pid)
        return
    os.close(key.fd)
    _, status = os.waitpid(pid, 0)
    with running.pop(pid) as connection:
        if connection in {one.fileobj for one in watched.get_map().values()}:
            watched.unregister(connection)
            connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _run(words: Sequence[str]) -> None:
    """As an interpreter runs its arguments."""
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:0] = [path for path in paths if path and path not in sys.path]
    kind, *rest = words
    if kind == "-m":
        sys.path.insert(0, os.getcwd())
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif kind == "-c":
        sys.path.insert(0, "")
        sys.argv[:] = ["-c", *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.path.insert(0, str(Path(kind).resolve().parent))
        sys.argv[:] = words
        runpy.run_path(kind, run_name="__main__")


if __name__ == "__main__":
    serve(*sys.argv[1:])
