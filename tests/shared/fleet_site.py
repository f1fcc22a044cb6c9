"""Some servers and as many workers, each a process, over one store and one place for artifacts."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Self

import attrs

from fleet_node import __file__ as node
from modelyard import Platform, open_platform
from modelyard.domain.worker import WorkerRecord
from polling import until

SIZE = 4
AN_HOUR = 3600.0
LONGEST_START = 240.0
"""Seconds until processes that started together count as broken: a busy machine takes more than a minute."""


@attrs.frozen
class Reply:
    status: int
    headers: Mapping[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Fleet:
    """The processes, and a platform of this process on their store. The clock of the last server is an hour `ahead`.

    `booted` are words before the command of the last server and the last worker: `in_time_namespace`, for example.
    """

    def __init__(
        self, store: str, artifacts: Path | str, booted: Sequence[str] = (), size: int = SIZE, ahead: float = AN_HOUR
    ) -> None:
        self._booted, self._size, self._ahead = booted, size, ahead
        self.platform: Platform = open_platform(store, artifacts=artifacts)
        self._store, self._artifacts = store, str(artifacts)
        self._folder = tempfile.TemporaryDirectory(prefix="fleet-")
        self._sockets = [socket.create_server(("127.0.0.1", 0), backlog=512) for _ in range(self._size)]
        self.servers = [self._serve(number) for number in range(self._size)]
        self.workers = [self._work(number) for number in range(self._size)]
        try:
            until(lambda: len(self.platform._runtime.store.read(_workers)) == self._size, LONGEST_START)
        except BaseException:
            self.__exit__()
            raise

    def _serve(self, number: int) -> "subprocess.Popen[bytes]":
        descriptor, off = self._sockets[number].fileno(), self._ahead if number == self._size - 1 else 0.0
        words = ["serve", self._store, self._artifacts, str(off), str(descriptor)]
        return self._process(number, words, pass_fds=[descriptor])

    def _work(self, number: int) -> "subprocess.Popen[bytes]":
        return self._process(number, ["work", self._store, self._artifacts, "0"])

    def _process(self, number: int, words: Sequence[str], **options: Any) -> "subprocess.Popen[bytes]":
        """Start a process with a temporary folder of its own, as on a machine of its own."""
        environment = {**os.environ, "TMPDIR": tempfile.mkdtemp(dir=self._folder.name)}
        before = self._booted if number == self._size - 1 else ()
        command = [*before, sys.executable, node, *words]
        return subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, **options)

    def replace_worker(self, number: int) -> None:
        """Kill a worker and start another."""
        self.workers[number].kill()
        self.workers[number].wait()
        self.workers[number] = self._work(number)

    def send(self, number: int, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        """Send one request to a server, on a connection of its own."""
        connection = HTTPConnection("127.0.0.1", self._sockets[number % self._size].getsockname()[1], timeout=120)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(
                method, path, data, {"Content-Type": "application/json", "Connection": "close", **headers}
            )
            answer = connection.getresponse()
            return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def complete(self, number: int, secret: str, model: str = "echo") -> Reply:
        """Have a server complete one chat, by the likeliest tokens."""
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "temperature": 0}
        return self.send(number, "POST", "/v1/chat/completions", body, Authorization=f"Bearer {secret}")

    def restart(self, number: int, how: int = signal.SIGTERM) -> None:
        """End a server and a worker, and start each again."""
        server, worker = self.servers[number], self.workers[number]
        for process in (server, worker):
            process.send_signal(how)
        for process in (server, worker):
            process.wait(timeout=120)
        self.servers[number], self.workers[number] = self._serve(number), self._work(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        processes = [*self.servers, *self.workers]
        for process in processes:
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=60)
            process.kill()
            process.wait()
        for listening in self._sockets:
            listening.close()
        self.platform.close()
        self._folder.cleanup()


def _workers(snapshot: Any) -> Any:
    return snapshot.page(WorkerRecord, "all", "worker")
