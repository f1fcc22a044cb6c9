"""One job in its own process: `python -m modelyard.worker MODULE:FUNCTION JOB_ID[:ATTEMPT] [ARGUMENT...]`. The function
is the host's; called with the arguments it returns the platform. A worker has claimed the job; this process adopts it
under another claim. So starting it twice does no harm: the older one writes nothing more. With the number of an ATTEMPT
it leaves the job alone once that attempt is over, however late it is started. If JOB_ID is `-`, the process waits for
it as a spare: lines of its standard input name what to import until then (`import MODULE`), and then the job. `python
-m modelyard.worker fork [MODULE...]` imports the modules, and forks a process for each job that it receives on a
socket. It gives the job back after the current item when it gets SIGTERM, or when its standard input, if that is a
pipe, is closed: then the process that started it is gone, or requests it to leave. In any case it leaves within the
lease."""

import io
import os
import pkgutil
import signal
import stat
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, TextIO

from modelyard.errors import InvalidInput, RecordNotFound
from modelyard.executors.fork_server import serve_forks
from modelyard.platform.jobs.claims import ClaimedJob
from modelyard.platform.jobs.runner import Runner
from modelyard.platform.platform import Platform
from modelyard.report import terminal

USAGE = "usage: python -m modelyard.worker [--log=text|json] MODULE:FUNCTION JOB_ID [ARGUMENT...]"


def platform_of(factory: str, arguments: Sequence[str] = ()) -> Platform:
    try:
        function = pkgutil.resolve_name(factory)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput.at("factory", msg=f"{factory} cannot be loaded: {error}") from error
    made = function(*arguments)
    if not isinstance(made, Platform):
        raise InvalidInput.at("factory", msg=f"{factory} returned {type(made).__name__} in the place of a platform")
    return made


class Departure:
    def __init__(self) -> None:
        self.requested: threading.Event = threading.Event()
        self._lock = threading.Lock()
        self._held: tuple[Runner, ClaimedJob] | None = None

    def begin(self, runner: Runner, job_id: str, attempt: int) -> ClaimedJob | None:
        with self._lock:
            claimed = runner.adopt(job_id, attempt)
            self._held = None if claimed is None else (runner, claimed)
        return claimed

    def leave(self) -> None:
        """Leave at once while nothing was adopted; else after the current item, which has the lease to end."""
        self.requested.set()
        with self._lock:
            held = self._held
            if held is None:
                os._exit(0)
        runner, claimed = held
        threading.Event().wait(runner.runtime.settings.lease)
        runner.give_back(claimed)
        os._exit(0)

    def leave_soon(self, *_: object) -> None:
        threading.Thread(target=self.leave, name="modelyard-leave", daemon=True).start()


def leave_on_signals(departure: Departure) -> None:
    """Leave on SIGTERM, and when the pipe from the parent process ends. The job's code finds an empty input."""
    signal.signal(signal.SIGTERM, departure.leave_soon)
    if sys.stdin is None or not stat.S_ISFIFO(os.fstat(0).st_mode):
        return
    lifeline = os.dup(0)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)

    def wait() -> None:
        while os.read(lifeline, 1):
            pass
        departure.leave()

    threading.Thread(target=wait, name="modelyard-lifeline", daemon=True).start()


class _Unheard(io.FileIO):
    """An output that drops what no process reads any more: a job must not fail because its parent is dead."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            return len(memoryview(data))


def _output(descriptor: int) -> io.TextIOWrapper:
    return io.TextIOWrapper(_Unheard(descriptor, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)


def awaited(lines: TextIO) -> str:
    """Import the modules that a spare is sent, and return the job that follows; nothing when it is not needed."""
    while line := lines.readline().strip():
        word, _, module = line.partition(" ")
        if word != "import":
            return line
        import_module(module)
    return ""


def main(words: Sequence[str]) -> int:
    if words[:1] == ["fork"]:
        sys.argv[1:] = forked = serve_forks(words[1:])
        os._exit(main(forked) if forked else 0)  # to take all modules down again would cost seconds
    form = words[0].removeprefix("--log=") if words and words[0].startswith("--log=") else ""
    words = words[1:] if form else words
    if len(words) < 2:
        print(USAGE, file=sys.stderr)
        return 2
    factory, job_id, *arguments = words
    if job_id == "-" and not (job_id := awaited(sys.stdin)):
        return 0
    job_id, _, attempt = job_id.partition(":")
    departure = Departure()
    leave_on_signals(departure)
    with platform_of(factory, arguments) as platform:
        if form:
            terminal.log_to_terminal(form)
        runner = Runner(platform._runtime)
        try:
            claimed = departure.begin(runner, job_id, int(attempt or 0))
        except RecordNotFound:
            print(f"there is no job {job_id} in the platform that {factory} returns", file=sys.stderr)
            return 1
        if claimed is not None:
            with runner.beating():
                runner.run(claimed, departure.requested.is_set)
    return 0


if __name__ == "__main__":
    sys.stdout, sys.stderr = _output(1), _output(2)
    sys.exit(main(sys.argv[1:]))
