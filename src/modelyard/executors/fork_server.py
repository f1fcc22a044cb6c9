"""Processes forked from one that has imported slow modules: both ends of the socket between it and an executor. One
message on the socket asks for one process. It holds, as JSON, the arguments of the process, and comes with three
descriptors: its standard input, its outputs, and a pipe on which its number is sent and, at its end, its exit status, a
line each. This waits on descriptors of processes (pidfd_open(2)), which Linux alone has."""

import gc
import json
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import IO, Any, Protocol

import attrs

LONGEST = 2**16


def can_fork() -> bool:
    return hasattr(os, "pidfd_open")


# ---- where the executor is ---------------------------------------------------------------------------------------


class Process(Protocol):
    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...


@attrs.define(eq=False)
class Forked:
    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None
    reported: IO[str]
    status: int | None = None

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. If the process that reports it has died, it counts as killed, and the caller must kill
        it."""
        if self.status is None:
            if not select.select([self.reported], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            with self.reported:
                self.status = int(self.reported.readline() or -signal.SIGKILL)
        return self.status


class ForkServer:
    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - the command is the host's
                command, stdin=theirs.fileno(), start_new_session=True, env=environment
            )

    @property
    def ready(self) -> bool:
        return bool(select.select([self._orders], [], [], 0)[0])

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def fork(self, words: Sequence[str]) -> Forked | None:
        if not self.ready or not self.lives:
            return None
        (stdin, ours), (output, their_output), (reported, report) = os.pipe(), os.pipe(), os.pipe()
        theirs = [stdin, their_output, report]
        with suppress(OSError):  # it has died, so no number will come
            socket.send_fds(self._orders, [json.dumps(list(words)).encode()], theirs)
        for descriptor in theirs:
            os.close(descriptor)
        ends = _opened(ours, "w"), _opened(output, "r"), _opened(reported, "r")
        if pid := int(ends[2].readline() or 0):
            return Forked(pid, *ends)
        for end in ends:
            end.close()
        return None

    def close(self) -> None:
        """End it: it only waits, or imports. Its forks must have ended."""
        self._process.kill()
        self._process.wait()
        self._orders.close()


def _opened(descriptor: int, mode: str) -> IO[str]:
    return open(descriptor, mode, encoding="utf-8", errors="replace")


# ---- where processes are forked ----------------------------------------------------------------------------------


def serve_forks(modules: Sequence[str]) -> list[str]:
    """Import the modules; then fork for each message on the socket that is the standard input. Returns in each forked
    process, with its arguments; and with none when the requester is gone."""
    for module in modules:
        import_module(module)
    gc.freeze()  # what is there stays where it is, so that forks can share it
    with socket.socket(fileno=os.dup(0)) as orders:
        orders.send(b"ready")
        return _Forks(orders).serve()


@attrs.define
class _Forks:
    orders: socket.socket
    alive: dict[int, tuple[int, int]] = attrs.field(factory=dict)

    def serve(self) -> list[str]:
        while True:
            waited: list[Any] = [self.orders, *self.alive]
            ready, _, _ = select.select(waited, [], [])
            for process in self.alive.keys() & ready:
                self._bury(process)
            if self.orders in ready:
                words, descriptors = self._order()
                if not words or self._fork(*descriptors):
                    return words

    def _order(self) -> tuple[list[str], list[int]]:
        try:
            message, descriptors, _, _ = socket.recv_fds(self.orders, LONGEST, 3)
        except ConnectionResetError:
            return [], []
        return json.loads(message or b"[]"), descriptors

    def _bury(self, process: int) -> None:
        pid, report = self.alive.pop(process)
        _tell(report, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os.close(report)
        os.close(process)

    def _fork(self, stdin: int, output: int, report: int) -> bool:
        """Return whether this is the new process, which leads its own group before its number is known."""
        pid = os.fork()
        with suppress(PermissionError):  # each of the two does it, lest the other be late
            os.setpgid(pid, pid)
        if pid:
            self.alive[os.pidfd_open(pid)] = pid, report
            _tell(report, pid)
        else:
            for ours, standard in ((stdin, 0), (output, 1), (output, 2)):
                os.dup2(ours, standard)
            for process, (_, others) in self.alive.items():
                os.close(process)
                os.close(others)
            os.close(report)
        os.close(stdin)
        os.close(output)
        return not pid


def _tell(where: int, number: int) -> None:
    with suppress(BrokenPipeError):  # the requester is gone
        os.write(where, b"%d\n" % number)
