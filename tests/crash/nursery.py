"""Starting worker processes, hearing what they tell, and doing them harm."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Line = list[Any]
"""What a process printed: a word, and what belongs to it."""


class Nursery:
    """Makes worker processes, which have imported these modules. Leaving it kills those that live."""

    def __init__(self, *modules: str, python: str = sys.executable) -> None:
        command = [python, str(Path(__file__).with_name("worker_process.py")), *modules]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._children: dict[int, Child] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()

    def start(self, path: Path | str, **request: Any) -> "Child":
        """A process with a worker, for whose requests see `worker_process.Request`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"path": str(path), **request}).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            child, line = self.listen()
            if line == ["born"]:
                return child

    def listen(self) -> tuple["Child", Line]:
        """The next line of any process."""
        assert self._process.stdout is not None
        reported = self._process.stdout.readline()
        assert reported, "the nursery has ended"
        pid, *line = json.loads(reported)
        if line == ["born"]:  # the number of one that has ended may be given again
            self._children[pid] = Child(self, pid)
        child = self._children[pid]
        child.printed.append(line)
        return child, line


class Child:
    """One worker process. `printed` is all that it has printed so far."""

    def __init__(self, nursery: Nursery, pid: int) -> None:
        self._nursery, self.pid = nursery, pid
        self.printed: list[Line] = []
        self._read = 0

    def resume(self) -> Line:
        """The next line. Its last is `gone`, with the exit status: minus the signal, if one ended it."""
        while self._read == len(self.printed):
            assert not self.gone, f"the process ended: {self.printed[-1]}"
            self._nursery.listen()
        self._read += 1
        return self.printed[self._read - 1]

    def hear_until(self, *reported: Any) -> Line:
        """The first line to come that begins so."""
        while (line := self.resume())[: len(reported)] != list(reported):
            pass
        return line

    def reported(self, word: str) -> list[Line]:
        """What was heard under a word."""
        return [line[1:] for line in self.printed if line[0] == word]

    @property
    def gone(self) -> bool:
        """Whether its end was heard."""
        return bool(self.reported("gone"))

    @property
    def status(self) -> int:
        """Its exit status, once it is gone."""
        return int(self.reported("gone")[0][0])

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it, and hear the rest of what it said before that."""
        with suppress(ProcessLookupError):  # it has ended, and that was not heard yet
            self.send(signal.SIGKILL)
        self.hear_until("gone")

    def stop(self) -> None:
        """Let the worker leave in an orderly way."""
        self.send(signal.SIGTERM)
        self.hear_until("gone")
        assert self.status == 0
